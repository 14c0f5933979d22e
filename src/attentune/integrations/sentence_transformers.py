"""Export the encoder of a run as a folder for sentence-transformers.

The folder's files have the form that sentence-transformers 2 to 6 load, which does not change between versions.
"""

import importlib.util
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModel

from attentune.data.dataset import TextRows
from attentune.data.tokenization import encode_rows, pad_batch
from attentune.errors import ConfigError, ExportError
from attentune.inference.predictor import ModelPredictor, Predictor, predict_rows
from attentune.integrations.hub import (
    SENTENCE_USE,
    Say,
    check_difference,
    computed_elsewhere,
    copy_card,
    made_up_rows,
)
from attentune.integrations.transformers import slot_reasons
from attentune.io.files import check_new_folder, new_folder, storage_errors, write_text
from attentune.models.saving import Tokenizer, is_pooler_weight, quiet, save_tokenizer
from attentune.nn.classifiers import DotProduct, ScaledDotProduct, ScaledOutput, ScaledSimilarity
from attentune.nn.heads import masked_mean
from attentune.plugins import install_command
from attentune.results import to_json

ABOUT_FILE, TOLERANCE = "export.json", 1e-5
_LOADING = """
from sentence_transformers import SentenceTransformer

model = SentenceTransformer(folder, device="cpu")
vectors = model.encode(inputs["texts"], convert_to_tensor=True, show_progress_bar=False).float().contiguous()
similarities = model.similarity_pairwise(vectors[:-1], vectors[1:]).contiguous()
save_file({"vectors": vectors, "similarities": similarities}, outputs)
"""


@dataclass(frozen=True)
class TextEncoder:
    """An encoder of single texts: the encoder, a pooling of its tokens, and possibly a dense layer."""

    encoder: Any  # the encoder of transformers, on the CPU, in float32 and evaluation mode
    tokenizer: Tokenizer
    max_length: int  # the maximum length of a text in tokens
    pooling: str  # "mean" over the tokens, or "cls" for the first one
    dense: nn.Linear | None = None  # a linear layer on the pooled vector; None without one
    activation: str = "Identity"  # the name of the function after it in torch.nn, "Tanh" or "Identity"
    similarity: str = "cosine"  # how two vectors are compared, "cosine" or "dot"
    # scale, offset: the score of a pair is scale x similarity + offset; None if it is not a function of it.
    scale: float | None = None
    offset: float | None = None

    @property
    def width(self) -> int:
        """The number of values in a vector."""
        return int(self.encoder.config.hidden_size if self.dense is None else self.dense.out_features)

    @torch.no_grad()
    def vectors(self, texts: Sequence[str]) -> Tensor:
        """Encode texts, (N, D) float32."""
        features = encode_rows(_rows(texts), self.tokenizer, max_length=self.max_length)
        inputs = pad_batch(features, range(len(texts)), pad_token_id=self.tokenizer.pad_token_id).inputs
        hidden_NTD = self.encoder(**inputs).last_hidden_state
        pooled_ND = hidden_NTD[:, 0]
        if self.pooling == "mean":
            pooled_ND = masked_mean(hidden_NTD, inputs["attention_mask"].bool())
        return pooled_ND if self.dense is None else getattr(nn, self.activation)()(self.dense(pooled_ND))


@dataclass(frozen=True)
class SentenceExport:
    """Result of an export for sentence-transformers and of its check."""

    folder: Path  # the folder that was written
    encoder: TextEncoder
    texts: int  # the number of compared texts
    max_difference: float  # the largest absolute difference of a value of a vector from that of the run
    note: str | None  # what of the run the folder does not have; None if it has all


def export_for_sentences(
    run: str | Path | Predictor, output_dir: str | Path, *, say: Say | None = None
) -> SentenceExport:
    """Write the encoder of a saved run for sentence-transformers, and check it where Attentune cannot be imported."""
    target = Path(output_dir)
    check_new_folder(target)
    if importlib.util.find_spec("sentence_transformers") is None:
        raise ExportError(f"sentence-transformers: not installed; run: {install_command('export')}")
    saved = (run if isinstance(run, Predictor) else Predictor.load(run)).single_model("export")
    saved.model.to("cpu").float().eval()
    encoder = text_encoder(saved)
    note = None
    if encoder.scale is None:
        note = "the folder has the encoder alone; --format onnx and transformers have the classifier too"
    with new_folder(target) as folder:
        _fill(encoder, folder)
        about = {
            "labels": list(saved.label_space.names),
            "task_type": saved.label_space.task_type,
            **{name: getattr(encoder, name) for name in ("max_length", "pooling", "similarity", "scale", "offset")},
        }
        write_text(folder / ABOUT_FILE, to_json(about))
        copy_card(saved.folder, folder, SENTENCE_USE, pair=False, library="sentence-transformers")
        (say or (lambda text: None))("loading it where Attentune cannot be imported")
        texts = _texts(encoder)
        computed = computed_elsewhere(folder, _LOADING, {"texts": texts})
        difference = _difference(saved, encoder, texts, computed)
        check_difference(saved.folder, "sentence-transformers", difference, TOLERANCE)
    return SentenceExport(target, encoder, len(texts), difference, note)


def text_encoder(saved: ModelPredictor) -> TextEncoder:
    """Return the encoder of single texts of a run."""
    config = saved.model.config
    model: Any = saved.model
    head, classifier = config.head["kind"], model.classifier
    dense = model.head.pooler.dense if head == "cls" and model.head.pooler is not None else None
    has_projection = isinstance(classifier, (DotProduct, ScaledDotProduct))
    reasons = {
        **slot_reasons(config),
        "it encodes the two texts of a pair together (sentence-transformers loads such a run as CrossEncoder)": (
            saved.is_pair and not config.is_bi_encoder
        ),
        f"its head is {head}, not mean or cls": head not in ("mean", "cls"),
        "it applies a projection after a pooler": has_projection and dense is not None,
    }
    reason = next((reason for reason, applies in reasons.items() if applies), None)
    if reason is not None:
        raise ConfigError(
            f"export: {saved.folder} is not an encoder of single texts for sentence-transformers: {reason}. Use"
            " --format transformers or onnx, or train one of the presets bi-encoder-cosine, bi-encoder-mean and"
            " bert-mean."
        )
    activation = "Identity" if dense is None else "Tanh"
    score: dict[str, Any] = {}
    if isinstance(classifier, ScaledSimilarity):
        score = {"scale": classifier.scale.item(), "offset": classifier.offset.item()}
    if has_projection:
        dense = classifier.projection
        scale = score["scale"] / math.sqrt(dense.out_features) if score else 1.0
        score = {"similarity": "dot", "scale": scale, "offset": score.get("offset", 0.0)}
    if score and isinstance(model.outputs, ScaledOutput):
        score["scale"] *= float(model.outputs.scale)
        score["offset"] = score["offset"] * float(model.outputs.scale) + float(model.outputs.offset)
    if score:
        score |= {name: config.score_std * score[name] / config.calibration_temperature for name in ("scale", "offset")}
        score["offset"] += config.score_mean
    return TextEncoder(
        model.encoder, saved.tokenizer, config.max_seq_length, head, dense=dense, activation=activation, **score
    )


def _rows(texts: Sequence[str], pairs: Sequence[str] | None = None) -> TextRows:
    ids = tuple(map(str, range(len(texts))))
    return TextRows(ids, tuple(texts), None if pairs is None else tuple(pairs), None, "synthetic texts")


def _texts(encoder: TextEncoder) -> list[str]:
    """Return synthetic texts; special tokens as text only if the tokenizer reads them alike when loaded elsewhere."""
    texts = made_up_rows(pairs=False).texts
    if type(encoder.tokenizer.backend_tokenizer.model).__name__ != "Unigram":
        return list(texts)
    return [text for text in texts if not any(token in text for token in encoder.tokenizer.all_special_tokens)]


def _difference(saved: ModelPredictor, encoder: TextEncoder, texts: list[str], computed: dict[str, Tensor]) -> float:
    """Compare what sentence-transformers computes with the run: the vectors of texts, and the scores of pairs."""
    difference = float((computed["vectors"] - encoder.vectors(texts)).abs().max())
    if encoder.scale is None or encoder.offset is None:
        return difference
    logits_NC = predict_rows(saved, _rows(texts[:-1], texts[1:]), precision="fp32")
    wanted_N = logits_NC[:, -1] - (logits_NC[:, 0] if logits_NC.shape[1] > 1 else 0.0)
    scores_N = encoder.scale * computed["similarities"].double().numpy() + encoder.offset
    # Rounding grows with the size of the score, such as that of dot products of long vectors.
    return max(difference, float(abs(scores_N - wanted_N).max()) / max(1.0, float(abs(wanted_N).max())))


def _fill(encoder: TextEncoder, folder: Path) -> None:
    """Write encoder, tokenizer and the modules after it."""
    with storage_errors(folder), quiet():
        encoder.encoder.save_pretrained(folder, state_dict=_with_pooler(encoder.encoder))
        (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)
        save_tokenizer(encoder.tokenizer, folder, longest=encoder.max_length)
    width = int(encoder.encoder.config.hidden_size)
    modes = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max", "mean_sqrt_len_tokens": "sqrt"}
    pooling = {f"pooling_mode_{name}": encoder.pooling == mode for name, mode in modes.items()}
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    settings: dict[str, Any] = {
        "sentence_bert_config.json": {"max_seq_length": encoder.max_length, "do_lower_case": False},
        "1_Pooling/config.json": {"word_embedding_dimension": width, **pooling},
        "config_sentence_transformers.json": {
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": encoder.similarity,
        },
    }
    if encoder.dense is not None:
        modules.append(("2_Dense", "Dense"))
        place = "activation" if encoder.activation != "Identity" else "linear"
        settings["2_Dense/config.json"] = {
            "in_features": width,
            "out_features": encoder.width,
            "bias": True,
            "activation_function": f"torch.nn.modules.{place}.{encoder.activation}",
        }
    settings["modules.json"] = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(modules)
    ]
    for name, content in settings.items():
        with storage_errors(folder):
            (folder / name).parent.mkdir(exist_ok=True)
        write_text(folder / name, json.dumps(content, indent=2) + "\n")
    if encoder.dense is not None:
        weights = {f"linear.{name}": value.detach().contiguous() for name, value in encoder.dense.state_dict().items()}
        with storage_errors(folder):
            save_file(weights, folder / "2_Dense" / "model.safetensors")


def _with_pooler(encoder: Any) -> dict[str, Tensor]:
    """Return the encoder's weights, with new ones for the pooler that its class has and nothing here uses.

    Without them, transformers reports at each loading that weights are missing.
    """
    with torch.device("meta"):
        whole = AutoModel.from_config(encoder.config).state_dict()
    weights = dict(encoder.state_dict())
    generator = torch.Generator().manual_seed(0)
    for name, empty in whole.items():
        if name not in weights and is_pooler_weight(name):
            weights[name] = 0.02 * torch.randn(empty.shape, generator=generator)
    return weights
