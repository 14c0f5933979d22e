"""Export a run as a folder that transformers loads without Attentune.

Where a class of transformers has the model's logits exactly, the folder holds weights for that class. Else it holds the
code of the model, which transformers runs with `trust_remote_code`.

Those classes classify the first token's vector h by dense -> activation -> linear: W2 f(W1 h + b1) + b2. Ours is
W2 tanh(W1 h + b1) + b2 with a pooler and W h + b without one. The first is theirs where f is tanh. The second is theirs
where f(z) - f(-z) = z, as ReLU, GELU and SiLU have it: the dense layer gets the rows W and -W, the last one subtracts.
"""

import copy
import json
import re
from dataclasses import dataclass
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from attentune import __version__
from attentune.config.parse import did_you_mean
from attentune.data.tokenization import encode_rows, pad_batch
from attentune.errors import ConfigError
from attentune.inference.predictor import ModelPredictor, Predictor
from attentune.integrations.exports import (
    REMOTE_USE,
    STOCK_USE,
    Say,
    check_difference,
    computed_elsewhere,
    copy_card,
    made_up_rows,
)
from attentune.io.files import check_new_folder, new_folder, storage_errors, write_text
from attentune.models.configuration import AttentuneConfig
from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.models.saving import is_pooler_weight, quiet, save_model, save_tokenizer
from attentune.nn.classifiers import ScaledOutput
from attentune.plugins import is_plugin

TOLERANCE = 1e-5
# Which class loads the folder: one of transformers, ours with its code in the folder, or the first where it is exact.
CODE = ("auto", "stock", "remote")
_LOADING = """
from transformers import AutoModelForSequenceClassification, AutoTokenizer

options = {"trust_remote_code": True} if inputs.pop("trust") else {}
AutoTokenizer.from_pretrained(folder, **options)
model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32, **options).eval()
with torch.no_grad():
    logits = model(**{name: torch.tensor(values) for name, values in inputs.items()}).logits
save_file({"logits": logits.contiguous()}, outputs)
"""


@dataclass(frozen=True)
class TransformersExport:
    """Result of an export for transformers and of its check."""

    folder: Path  # the folder that was written
    class_name: str | None  # the class of transformers that loads it
    reason: str | None  # why the class is not one of transformers, or what such a class leaves out
    files: tuple[str, ...]  # the names of the code files; none for a class of transformers
    rows: int  # the number of compared rows
    max_difference: float  # the largest absolute difference between the logits of the run and those of the export
    own_pipeline: bool = False  # whether the folder has a pipeline of its own


def export_for_transformers(
    run: str | Path | Predictor, output_dir: str | Path, *, code: str = "auto", say: Say | None = None
) -> TransformersExport:
    """Write a saved run for transformers, and check it in a process that cannot import Attentune."""
    target = Path(output_dir)
    if code not in CODE:
        raise ConfigError(f"--code: got {code!r}, expected {', '.join(CODE)}.{did_you_mean(code, CODE)}")
    check_new_folder(target)
    saved = (run if isinstance(run, Predictor) else Predictor.load(run)).single_model("export")
    saved.check_reads_all("export")
    config = saved.model.to("cpu").float().eval().config
    is_stock, reason = _form(saved, code)
    rows = made_up_rows(pairs=saved.is_pair)
    features = encode_rows(rows, saved.tokenizer, max_length=config.max_seq_length, bi_encoder=config.is_bi_encoder)
    inputs = pad_batch(features, range(len(rows)), pad_token_id=saved.tokenizer.pad_token_id).inputs
    with new_folder(target) as folder:
        class_name, files = (_fill_stock if is_stock else _fill_with_code)(saved, folder)
        (say or (lambda text: None))("loading it where Attentune cannot be imported")
        listed = {name: tensor.tolist() for name, tensor in inputs.items()}
        logits = computed_elsewhere(folder, _LOADING, {**listed, "trust": not is_stock})["logits"]
        with torch.no_grad():
            difference = float((saved.model(**inputs).logits - logits).abs().max())
        # transformers has scores in float32.
        allowed = TOLERANCE * config.score_std + 1e-6 * abs(config.score_mean)
        check_difference(saved.folder, "transformers", difference, allowed)
    own_pipeline = not is_stock and has_own_answers(config)
    return TransformersExport(target, class_name, reason, files, len(rows), difference, own_pipeline)


def _form(saved: ModelPredictor, code: str) -> tuple[bool, str | None]:
    """Return whether to write a class of transformers, and why not, or what it will leave out."""
    cannot, leaves_out = unavailable_reason(saved.model), differing_predictions(saved.model)
    if code == "stock" and cannot is not None:
        raise ConfigError(
            f"--code: got stock, but no class of transformers has the logits of {saved.folder}: {cannot}. Leave --code"
            " out to write the code of the model (loaded with trust_remote_code)."
        )
    if code == "stock" or (code == "auto" and cannot is None and leaves_out is None):
        return True, leaves_out
    _check_own_parts(saved.model.config)
    return False, None if code == "remote" else cannot or leaves_out


def _check_own_parts(config: AttentuneConfig) -> None:
    """Check that the model has no part whose code is not ours to copy."""
    kinds = [config.head["kind"], config.layer_mix["kind"], config.token_gate["kind"], config.blur.get("kind")]
    others = [kind for kind in kinds if is_plugin(kind)]
    if others:
        raise ConfigError(
            f"export: the model has {', '.join(others)} of another package, whose code is not copied. Export it as ONNX"
            " (attentune export RUN), or install Attentune and that package where it is used."
        )


def _fill_stock(saved: ModelPredictor, folder: Path) -> tuple[str, tuple[str, ...]]:
    """Write weights and configuration of a class of transformers, tokenizer and card; return the class's name."""
    model = stock_model(saved.model)
    with storage_errors(folder), quiet():
        model.save_pretrained(folder)
        save_tokenizer(saved.tokenizer, folder, longest=saved.model.config.max_seq_length)
        (folder / "model.safetensors").chmod((folder / "config.json").stat().st_mode)
    copy_card(saved.folder, folder, STOCK_USE, pair=saved.is_pair)
    return type(model).__name__, ()


def _fill_with_code(saved: ModelPredictor, folder: Path) -> tuple[None, tuple[str, ...]]:
    """Write weights, configuration, tokenizer, code and the model card; return the names of the code files."""
    with storage_errors(folder):
        save_model(saved.model, saved.tokenizer, folder)
        settings = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    settings["auto_map"] = AUTO_MAP
    if has_own_answers(saved.model.config):
        settings["custom_pipelines"] = PIPELINES
    write_text(folder / "config.json", json.dumps(settings, indent=2, sort_keys=True) + "\n")
    files = code_files()
    for name, text in files.items():
        write_text(folder / name, text)
    copy_card(saved.folder, folder, REMOTE_USE, pair=saved.is_pair)
    return None, tuple(files)


def has_own_answers(config: AttentuneConfig) -> bool:
    """Return whether the pipeline of transformers would predict differently from the run.

    It does for decision thresholds, expected-value ordinal predictions and multi-label tasks, since it takes the most
    probable class; and for bi-encoders, since it joins the texts of a pair.
    """
    return (
        config.is_bi_encoder
        or config.thresholds is not None
        or config.ordinal_prediction == "expected-value"
        or config.task_type == "multi_label"
    )


_ROOTS = {
    "attentune.models.configuration": "configuration_attentune",
    "attentune.models.modeling": "modeling_attentune",
    "attentune.models.pipeline": "pipeline_attentune",
}
AUTO_MAP = {
    "AutoConfig": "configuration_attentune.AttentuneConfig",
    "AutoModelForSequenceClassification": "modeling_attentune.AttentuneForSequenceClassification",
}
# For runs that predict differently: transformers then uses this pipeline for the task.
PIPELINES = {
    "text-classification": {
        "impl": "pipeline_attentune.AttentunePipeline",
        "pt": ["AutoModelForSequenceClassification"],
        "type": "text",
    }
}
_IMPORT = re.compile(r"^(\s*)from (attentune(?:\.\w+)+) import ", re.MULTILINE)
# Without Attentune, `auto_map` and `custom_pipelines` take the place of the registration.
_REGISTERING = re.compile(r"^(?:Auto\w+\.register\(|PIPELINE_REGISTRY\.).*\n", re.MULTILINE)
_HEADER = f"# From Attentune {__version__}, Apache License 2.0. Written by `attentune export --format transformers`.\n"


def code_files() -> dict[str, str]:
    """Return the contents of the files by name, starting with those that `AUTO_MAP` and `PIPELINES` name."""
    texts: dict[str, str] = {}
    waiting = list(_ROOTS)
    while waiting:
        module = waiting.pop(0)
        if (name := f"{_flat(module)}.py") not in texts:
            path = PurePosixPath(*module.split(".")[1:]).with_suffix(".py")
            text = (resources.files("attentune") / str(path)).read_text(encoding="utf-8")
            waiting += sorted({found[2] for found in _IMPORT.finditer(text)})
            text = _IMPORT.sub(lambda found: f"{found[1]}from .{_flat(found[2])} import ", text)
            texts[name] = _HEADER + _REGISTERING.sub("", text)
    return texts


def _flat(module: str) -> str:
    return _ROOTS.get(module, module.replace(".", "_"))


# Activations with f(z) - f(-z) = z.
_ODD_PART_IS_IDENTITY = ("relu", "gelu", "gelu_new", "silu", "swish")


@dataclass(frozen=True)
class _Head:
    """The head of a class of transformers."""

    dense: str  # the path of its first linear layer
    last: str  # the path of its last linear layer
    activation: str | None  # the name of the function in between; None if the encoder's configuration names it
    # Settings of the encoder's configuration for dropout in this head.
    dropouts: tuple[str, ...] = ("classifier_dropout",)


# One entry per `model_type`. ModernBERT is missing: a LayerNorm follows its activation.
_HEADS = {
    "bert": _Head("bert.pooler.dense", "classifier", "tanh"),
    "albert": _Head("albert.pooler", "classifier", "tanh", ("classifier_dropout_prob",)),
    "roberta": _Head("classifier.dense", "classifier.out_proj", "tanh"),
    "xlm-roberta": _Head("classifier.dense", "classifier.out_proj", "tanh"),
    "mpnet": _Head("classifier.dense", "classifier.out_proj", "tanh", ()),
    "electra": _Head("classifier.dense", "classifier.out_proj", "gelu"),
    "distilbert": _Head("pre_classifier", "classifier", "relu", ("seq_classif_dropout",)),
    "deberta-v2": _Head("pooler.dense", "classifier", None, ("cls_dropout",)),
}


def unavailable_reason(model: AttentuneForSequenceClassification) -> str | None:
    """Return why no class of transformers has the logits of a model, with a way out; None if one has."""
    return _differing_slot(model) or _differing_head(model.config)


def _differing_slot(model: AttentuneForSequenceClassification) -> str | None:
    """Return what the model does up to its head that no class of transformers does."""
    config = model.config
    gate, mix, head = config.token_gate, config.layer_mix["kind"], config.head["kind"]
    reasons = {
        "it encodes the texts of a pair separately": config.is_bi_encoder,
        "it reads long texts in windows": config.window is not None,
        "its weights contain adapters (export the finished run, not a checkpoint)": config.lora is not None,
        "it blurs attention": config.blur["where"] != "none",
        f"its head takes the layer mix {mix!r}, not the last layer": mix != "last",
        "it rescales the layers by squeeze-and-excitation": config.layer_mix["squeeze"],
        "its token gate changes the sentence vector": gate["kind"] != "none" and gate["beta"] < 1.0,
        f"its head is {head}, not cls": head != "cls",
        f"with the loss {config.loss} its logits are not linear in the sentence vector": not (
            model.outputs is None or isinstance(model.outputs, ScaledOutput)
        ),
    }
    return next((reason for reason, applies in reasons.items() if applies), None)


def _differing_head(ours: AttentuneConfig) -> str | None:
    """Return why the class of transformers cannot have the classifier of the model."""
    config, with_pooler, labels = ours.encoder_config, ours.head["with_pooler"], ours.num_labels
    kind = config.model_type
    head = _HEADS.get(kind)
    if kind == "modernbert":
        return "ModernBertForSequenceClassification has a LayerNorm between its two linear layers, ours has none"
    if head is None:
        return f"for {kind} encoders no exact class of transformers is known here"
    function = head.activation or str(config.pooler_hidden_act)
    if with_pooler and function != "tanh":
        return (
            f"the class of transformers for {kind} applies {function} where this run's pooler applies tanh"
            " (without a pooler it fits: train with --set model.head.pooler=none)"
        )
    if with_pooler or (function in _ODD_PART_IS_IDENTITY and 2 * labels <= config.hidden_size):
        return None
    if function == "tanh":
        return (
            f"the class of transformers for {kind} has a dense layer with tanh before the last one, and this run has"
            " none (train with --set model.head.pooler=fresh to have it)"
        )
    return f"the class of transformers for {kind} has a dense layer with {function} that cannot be made the identity"


def differing_predictions(model: AttentuneForSequenceClassification) -> str | None:
    """Return what Attentune does besides computing logits, which a class of transformers leaves out; None if nothing.

    Several labels per text without thresholds are as in transformers: each label of at least 0.5 is predicted.
    """
    config = model.config
    if config.thresholds is not None:
        return "the run predicts by its thresholds, and transformers by the highest probability"
    if config.ordinal_prediction == "expected-value":
        return "the run predicts the class nearest to the mean of class numbers, and transformers the most probable one"
    if config.token_gate["kind"] != "none":
        return "the token gate, which scores each token, is left out"
    return None


@torch.no_grad()
def stock_model(model: AttentuneForSequenceClassification) -> PreTrainedModel:
    """Return a model of the class of transformers with the same logits, in evaluation mode and float32 on the CPU.

    Only for models without an `unavailable_reason`.
    """
    config = classification_config(model)
    made = AutoModelForSequenceClassification.from_config(config)
    weights = {name: weight.detach().float().cpu() for name, weight in model.encoder.state_dict().items()}
    found = made.base_model.load_state_dict(weights, strict=False)  # one of the two may lack a pooler
    broken = [*found.unexpected_keys, *(name for name in found.missing_keys if not is_pooler_weight(name))]
    if broken:
        raise ValueError(f"weights of {type(made).__name__} and of the encoder differ: {', '.join(broken[:3])}")
    head = _HEADS[config.model_type]
    _fill(made.get_submodule(head.dense), made.get_submodule(head.last), model)
    return made.eval()


def classification_config(model: AttentuneForSequenceClassification) -> PreTrainedConfig:
    """Return the encoder's configuration with labels and type of the task, as in classes of transformers."""
    ours = model.config
    config = copy.deepcopy(ours.encoder_config)
    config.num_labels = ours.num_labels
    config.id2label, config.label2id = dict(ours.id2label), dict(ours.label2id)
    config.problem_type = ours.problem_type
    head = _HEADS.get(config.model_type)
    for name in () if head is None else head.dropouts:
        setattr(config, name, ours.head["dropout"])
    name = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.get(config.model_type)
    config.architectures = None if name is None else [name]
    return config


def _fill(dense: nn.Module, last: nn.Module, model: Any) -> None:
    """Set the two linear layers of the class of transformers."""
    weight_CD, bias_C = last_layer(model)
    if model.head.pooler is not None:
        dense.load_state_dict(model.head.pooler.dense.state_dict())
        last.load_state_dict({"weight": weight_CD, "bias": bias_C})
        return
    labels, width = weight_CD.shape
    zeros_DD, zeros_D = torch.zeros(width, width), torch.zeros(width)
    zeros_DD[: 2 * labels] = torch.cat([weight_CD, -weight_CD])
    zeros_D[: 2 * labels] = torch.cat([bias_C, -bias_C])
    dense.load_state_dict({"weight": zeros_DD, "bias": zeros_D})
    eye_CC = torch.eye(labels)
    rest = torch.zeros(labels, width - 2 * labels)
    last.load_state_dict({"weight": torch.cat([eye_CC, -eye_CC, rest], dim=1), "bias": torch.zeros(labels)})


def last_layer(model: Any) -> tuple[Tensor, Tensor]:
    """Return weight (C, D) and bias (C,) of the classifier, with the output's scale and the temperature in them."""
    weight_CD, bias_C = (tensor.detach().float().cpu() for tensor in (model.classifier.weight, model.classifier.bias))
    if model.outputs is not None:
        scale, offset = model.outputs.scale.cpu(), model.outputs.offset.cpu()
        weight_CD, bias_C = scale * weight_CD, scale * bias_C + offset
    temperature, mean, std = model.config.calibration_temperature, model.config.score_mean, model.config.score_std
    return std * (weight_CD / temperature), std * (bias_C / temperature) + mean
