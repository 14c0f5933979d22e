"""Export a run as a folder for sentence-transformers, or with its linear classifier for SetFit.

The folder's files have the form that sentence-transformers 2 to 6 load, which does not change between versions.
"""

from __future__ import annotations

import importlib.util
import json
import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import joblib  # type: ignore[import-untyped]
import numpy as np
import torch
from safetensors.torch import load_file, save_file
from scipy.special import softmax
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn
from transformers import AutoModel

from attentune.baselines.frozen import Cosine, FrozenLinear, TokenAlignment
from attentune.baselines.predictor import BaselinePredictor
from attentune.data.batching import pad_batch
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.tokenization import encode_rows
from attentune.errors import ConfigError, ExportError
from attentune.inference.predictor import ModelPredictor, Predictor, predict_rows
from attentune.integrations.hub.export import run_elsewhere
from attentune.integrations.hub.publish import SENTENCE_USE, SETFIT_USE, copy_card
from attentune.integrations.hub.stock import last_layer, slot_reasons
from attentune.integrations.onnx.checking import made_up_rows
from attentune.io.files import check_new_folder, new_folder, storage_errors, write_text
from attentune.models.build import build_model, load_tokenizer
from attentune.models.saving import Tokenizer, is_pooler_weight, quiet, save_tokenizer
from attentune.nn.classifiers import DotProduct, ScaledDotProduct, ScaledOutput, ScaledSimilarity
from attentune.nn.heads import masked_mean
from attentune.results import to_json


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
        rows = TextRows(tuple(map(str, range(len(texts)))), tuple(texts), None, None, "texts")
        features = encode_rows(rows, self.tokenizer, max_length=self.max_length)
        inputs = pad_batch(features, range(len(texts)), pad_token_id=self.tokenizer.pad_token_id).inputs
        hidden_NTD = self.encoder(**inputs).last_hidden_state
        pooled_ND = hidden_NTD[:, 0]
        if self.pooling == "mean":
            pooled_ND = masked_mean(hidden_NTD, inputs["attention_mask"].bool())
        if self.dense is None:
            return pooled_ND
        return getattr(nn, self.activation)()(self.dense(pooled_ND))


def text_encoder(saved: Predictor) -> TextEncoder:
    """Return the encoder of single texts of a run."""
    if isinstance(saved, BaselinePredictor):
        return _of_baseline(saved)
    return _of_model(saved.single_model("export"))


def _of_baseline(saved: BaselinePredictor) -> TextEncoder:
    baseline = saved.baseline
    if not isinstance(baseline, (Cosine, FrozenLinear)):
        reason = "has no encoder"
        if isinstance(baseline, TokenAlignment):
            reason = "predicts from the vectors of all tokens of both texts, not from one vector a text"
        raise ConfigError(
            f"export: got {saved.folder}, a {saved.kind}, which {reason}. Expected frozen-linear, cosine or a"
            " fine-tuned encoder."
        )
    frozen = baseline.frozen
    tokenizer = load_tokenizer(frozen.encoder)
    space = LabelSpace("regression")
    model = build_model(frozen.encoder, space, tokenizer, max_length=frozen.max_length, is_pair=False, seed=0)
    scale = offset = None
    if isinstance(baseline, Cosine):
        # Of two classes the second one's logit minus the first one's.
        weights_P, bias_P = baseline.linear.weights_PD[:, 0], baseline.linear.bias_P
        scale, offset = (float(values[-1] - (values[0] if len(values) > 1 else 0)) for values in (weights_P, bias_P))
    return TextEncoder(
        model.encoder.eval(), tokenizer, frozen.max_length, "mean", scale=scale, offset=offset, similarity="cosine"
    )


def _of_model(saved: ModelPredictor) -> TextEncoder:
    config = saved.model.config
    model: Any = saved.model
    head = config.head["kind"]
    reasons = {
        **slot_reasons(config),
        "it encodes the two texts of a pair together (sentence-transformers loads such a run as CrossEncoder)": (
            saved.is_pair and not config.is_bi_encoder
        ),
        f"its head is {head}, not mean or cls": head not in ("mean", "cls"),
    }
    reason = next((reason for reason, applies in reasons.items() if applies), None)
    if reason is not None:
        raise ConfigError(
            f"export: {saved.folder} is not an encoder of single texts for sentence-transformers: {reason}. Use"
            " --format transformers or onnx, or train one of the presets bi-encoder-cosine, bi-encoder-mean and"
            " bert-mean."
        )
    dense, activation = None, "Identity"
    if head == "cls" and model.head.pooler is not None:
        dense, activation = model.head.pooler.dense, "Tanh"
    made: dict[str, Any] = {}
    classifier = model.classifier
    if isinstance(classifier, ScaledSimilarity):
        made = {"scale": classifier.scale.item(), "offset": classifier.offset.item()}
    if isinstance(classifier, (DotProduct, ScaledDotProduct)):
        if dense is not None:
            raise ConfigError(
                f"export: {saved.folder} applies a projection after a pooler; expected one of them. Use --format"
                " transformers or onnx."
            )
        dense = classifier.projection
        scale = made.get("scale", 1.0) / math.sqrt(dense.out_features) if made else 1.0
        made = {"similarity": "dot", "scale": scale, "offset": made.get("offset", 0.0)}
    if made and isinstance(model.outputs, ScaledOutput):
        made["scale"] *= float(model.outputs.scale)
        made["offset"] = made["offset"] * float(model.outputs.scale) + float(model.outputs.offset)
    if made:
        made |= {name: config.score_std * made[name] / config.calibration_temperature for name in ("scale", "offset")}
        made["offset"] += config.score_mean
    return TextEncoder(
        model.encoder,
        saved.tokenizer,
        config.max_seq_length,
        "cls" if head == "cls" else "mean",
        dense=dense,
        activation=activation,
        **made,
    )


def linear_head(saved: Predictor) -> tuple[np.ndarray, np.ndarray]:
    """Return the linear classifier on the vectors of `text_encoder`: weights (C, D) and biases (C,)."""
    space = saved.label_space
    reasons = {
        "it compares pairs of texts": saved.is_pair,
        f"its task is {space.task_type}": space.task_type not in ("classification", "ordinal"),
        "it predicts by thresholds": space.thresholds is not None,
        "it predicts the class nearest to the mean of class numbers": space.ordinal_prediction == "expected-value",
        "it has one class": space.num_labels < 2,
        "its training rows lacked a class": isinstance(saved, BaselinePredictor)
        and isinstance(saved.baseline, FrozenLinear)
        and len(saved.baseline.linear.classes_P) < space.num_labels,
        "with the loss corn its logits are not linear in the vector": isinstance(saved, ModelPredictor)
        and saved.model.outputs is not None,
    }
    reason = next((reason for reason, applies in reasons.items() if applies), None)
    if reason is not None:
        others = "" if isinstance(saved, BaselinePredictor) else ", or --format onnx"
        raise ConfigError(
            f"export: {saved.folder} is not a SetFit model, which takes a single text and predicts the most probable"
            f" class by a logistic regression: {reason}. Use --format sentence-transformers for the encoder alone"
            f"{others}."
        )
    if isinstance(saved, BaselinePredictor):
        assert isinstance(saved.baseline, FrozenLinear)
        order = np.argsort(saved.baseline.linear.classes_P)
        return saved.baseline.linear.weights_PD[order], saved.baseline.linear.bias_P[order]
    weight_CD, bias_C = last_layer(saved.single_model("export").model)
    return weight_CD.double().numpy(), bias_C.double().numpy()


FORMATS = ("sentence-transformers", "setfit")
ABOUT_FILE, HEAD_FILE = "export.json", "model_head.pkl"
TOLERANCE, BF16_TOLERANCE = 1e-5, 0.05
Say = Callable[[str], None]
_LOADING = """
import json, torch
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer

folder, texts, outputs = sys.argv[1:]
model = SentenceTransformer(folder, device="cpu")
texts = json.load(open(texts, encoding="utf-8"))
vectors = model.encode(texts, convert_to_tensor=True, show_progress_bar=False).float().contiguous()
similarities = model.similarity_pairwise(vectors[:-1], vectors[1:]).contiguous()
save_file({"vectors": vectors, "similarities": similarities}, outputs)
"""


@dataclass(frozen=True)
class SentenceExport:
    """Result of an export for sentence-transformers or SetFit, and of its check."""

    folder: Path  # the folder that was written
    width: int  # the number of values in a vector
    pooling: str  # "mean" or "cls"
    similarity: str  # "cosine" or "dot"
    # scale, offset: the run's score of a pair is scale x similarity + offset; None if it is not a function of it.
    scale: float | None
    offset: float | None
    labels: tuple[str, ...] | None  # the labels of the classifier for SetFit; None without one
    texts: int  # the number of compared texts
    max_difference: float  # the largest absolute difference of a value of a vector from that of the run
    note: str | None  # what of the run the folder does not have; None if it has all


def export_for_sentences(
    run: str | Path | Predictor, output_dir: str | Path, *, output_format: str = FORMATS[0], say: Say | None = None
) -> SentenceExport:
    """Write the encoder of a saved run for sentence-transformers, and check it where Attentune cannot be imported."""
    target = Path(output_dir)
    check_new_folder(target)
    if importlib.util.find_spec("sentence_transformers") is None:
        raise ExportError("sentence-transformers: not installed; run: pip install 'attentune[export]'")
    saved = run if isinstance(run, Predictor) else Predictor.load(run)
    if isinstance(saved, ModelPredictor):
        saved.model.to("cpu").float().eval()
    encoder = text_encoder(saved)
    head = linear_head(saved) if output_format == "setfit" else None
    labels = None if head is None else saved.label_space.names
    with new_folder(target) as folder:
        _fill(encoder, folder)
        write_text(folder / ABOUT_FILE, to_json(_about(encoder, saved)))
        if head is not None:
            _write_head(folder, *head, saved.label_space.names)
        use = SENTENCE_USE if head is None else SETFIT_USE
        copy_card(saved.folder, folder, use, pair=False, library=output_format)
        (say or (lambda text: None))("loading it where Attentune cannot be imported")
        texts = _texts(encoder)
        difference = _difference(saved, encoder, folder, texts, has_head=head is not None)
    return SentenceExport(
        target,
        encoder.width,
        encoder.pooling,
        encoder.similarity,
        encoder.scale,
        encoder.offset,
        labels,
        len(texts),
        difference,
        _note(saved, encoder, has_head=head is not None),
    )


def _texts(encoder: TextEncoder) -> list[str]:
    """Return synthetic texts; special tokens as text only if the tokenizer reads them alike when loaded elsewhere."""
    texts = made_up_rows(pairs=False).texts
    if type(encoder.tokenizer.backend_tokenizer.model).__name__ != "Unigram":
        return list(texts)
    return [text for text in texts if not any(token in text for token in encoder.tokenizer.all_special_tokens)]


def _note(saved: Predictor, encoder: TextEncoder, *, has_head: bool) -> str | None:
    if has_head or encoder.scale is not None:
        return None
    if saved.is_pair:
        return (
            "the score of a pair is a linear layer on both vectors, which sentence-transformers has no module for: the"
            " folder has the encoder alone (--format onnx and transformers have the scores)"
        )
    return "the folder has the encoder alone; --format setfit, onnx and transformers have the classifier too"


def _about(encoder: TextEncoder, saved: Predictor) -> dict[str, Any]:
    return {
        "labels": list(saved.label_space.names),
        "task_type": saved.label_space.task_type,
        "max_length": encoder.max_length,
        "pooling": encoder.pooling,
        "similarity": encoder.similarity,
        "scale": encoder.scale,
        "offset": encoder.offset,
    }


def _fill(encoder: TextEncoder, folder: Path) -> None:
    """Write encoder, tokenizer and the modules after it."""
    with storage_errors(folder), quiet():
        encoder.encoder.save_pretrained(folder, state_dict=_with_pooler(encoder.encoder))
        (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)
        save_tokenizer(encoder.tokenizer, folder, longest=encoder.max_length)
    modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
    width = int(encoder.encoder.config.hidden_size)
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": encoder.max_length, "do_lower_case": False})
    modes = {"cls_token": "cls", "mean_tokens": "mean", "max_tokens": "max", "mean_sqrt_len_tokens": "sqrt"}
    pooling = {f"pooling_mode_{name}": encoder.pooling == mode for name, mode in modes.items()}
    with storage_errors(folder):
        (folder / "1_Pooling").mkdir()
    _write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **pooling})
    if encoder.dense is not None:
        modules.append(("2_Dense", "Dense"))
        place = "activation" if encoder.activation != "Identity" else "linear"
        settings = {
            "in_features": width,
            "out_features": encoder.width,
            "bias": True,
            "activation_function": f"torch.nn.modules.{place}.{encoder.activation}",
        }
        with storage_errors(folder):
            (folder / "2_Dense").mkdir()
            weights = {
                f"linear.{name}": value.detach().contiguous() for name, value in encoder.dense.state_dict().items()
            }
            save_file(weights, folder / "2_Dense" / "model.safetensors")
        _write_json(folder / "2_Dense" / "config.json", settings)
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (path, kind) in enumerate(modules)
    ]
    write_text(folder / "modules.json", json.dumps(listed, indent=2) + "\n")
    _write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": {}, "default_prompt_name": None, "similarity_fn_name": encoder.similarity},
    )


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


def _write_json(file: Path, content: dict[str, Any]) -> None:
    write_text(file, json.dumps(content, indent=2) + "\n")


def _write_head(folder: Path, weight_CD: np.ndarray, bias_C: np.ndarray, labels: Sequence[str]) -> None:
    """Write the classifier of SetFit: a `LogisticRegression` of scikit-learn, as a pickle of joblib."""
    if len(bias_C) == 2:  # scikit-learn has one output for two classes
        weight_CD, bias_C = weight_CD[1:] - weight_CD[:1], bias_C[1:] - bias_C[:1]
    head = LogisticRegression()
    head.classes_ = np.arange(len(labels))
    head.coef_, head.intercept_, head.n_features_in_ = weight_CD, bias_C, weight_CD.shape[1]
    head.n_iter_ = np.zeros(1, dtype=np.int32)
    with storage_errors(folder):
        joblib.dump(head, folder / HEAD_FILE)
    _write_json(folder / "config_setfit.json", {"normalize_embeddings": False, "labels": list(labels)})


def _difference(saved: Predictor, encoder: TextEncoder, folder: Path, texts: list[str], *, has_head: bool) -> float:
    """Compare what sentence-transformers computes with the run: vectors, and probabilities or scores of pairs."""
    found = _loaded_elsewhere(folder, texts)
    vectors = float((found["vectors"] - encoder.vectors(texts)).abs().max())
    scores = 0.0
    if has_head:
        wanted_NC = softmax(predict_rows(saved, _rows(texts), precision="fp32"), axis=1)
        # A pickle that was written a moment ago, by this process.
        got_NC = joblib.load(folder / HEAD_FILE).predict_proba(found["vectors"].numpy())
        scores = float(np.abs(got_NC - wanted_NC).max())
    elif encoder.scale is not None and encoder.offset is not None:
        logits_NC = predict_rows(saved, _rows(texts[:-1], texts[1:]), precision="fp32")
        wanted_N = logits_NC[:, -1] - (logits_NC[:, 0] if logits_NC.shape[1] > 1 else 0.0)
        got_N = encoder.scale * found["similarities"].double().numpy() + encoder.offset
        # Rounding grows with the size of the score, such as that of dot products of long vectors.
        scores = float(np.abs(got_N - wanted_N).max()) / max(1.0, float(np.abs(wanted_N).max()))
    # A frozen encoder runs in bf16 where the processor is fast at it, so that only its vectors are compared strictly.
    allowed = BF16_TOLERANCE if isinstance(saved, BaselinePredictor) else TOLERANCE
    if not (vectors <= TOLERANCE and scores <= allowed):
        raise ExportError(
            f"{saved.folder}: loaded by sentence-transformers its vectors differ by {vectors:.2g}, its scores by"
            f" {scores:.2g}, expected at most {TOLERANCE:.0e} and {allowed:.0e}; nothing was written. Please report it."
        )
    return max(vectors, scores)


def _rows(texts: Sequence[str], pairs: Sequence[str] | None = None) -> TextRows:
    ids = tuple(map(str, range(len(texts))))
    return TextRows(ids, tuple(texts), None if pairs is None else tuple(pairs), None, "synthetic texts")


def _loaded_elsewhere(folder: Path, texts: list[str]) -> dict[str, torch.Tensor]:
    with tempfile.TemporaryDirectory() as place:
        there, back = Path(place) / "texts.json", Path(place) / "vectors.safetensors"
        there.write_text(json.dumps(texts), encoding="utf-8")
        error = run_elsewhere(_LOADING, str(folder), str(there), str(back))
        if error is not None:
            raise ExportError(
                f"{folder}: sentence-transformers could not load what was written ({error}); nothing is left of it."
            )
        return dict(load_file(back))
