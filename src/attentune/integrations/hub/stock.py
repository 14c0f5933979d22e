"""Map a model onto the sequence classification class of transformers for its encoder, where that is exact.

Those classes classify the first token's vector h by dense -> activation -> linear: W2 f(W1 h + b1) + b2. Ours is
W2 tanh(W1 h + b1) + b2 with a pooler and W h + b without one. The first is theirs where f is tanh. The second is theirs
where f(z) - f(-z) = z, as ReLU, GELU and SiLU have it: the dense layer gets the rows W and -W, the last one subtracts.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES

from attentune.models.configuration import AttentuneConfig
from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.models.saving import is_pooler_weight
from attentune.nn.classifiers import ScaledOutput

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

    def function(self, config: PreTrainedConfig) -> str:
        """Return the name of the activation function."""
        return str(config.pooler_hidden_act) if self.activation is None else self.activation


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
    config = model.config
    parts = (
        _differing_slot(model),
        _differing_outputs(model),
        _differing_head(config.encoder_config, with_pooler=config.head["with_pooler"], labels=config.num_labels),
    )
    return next((reason for reason in parts if reason is not None), None)


def _differing_slot(model: AttentuneForSequenceClassification) -> str | None:
    config = model.config
    head = config.head["kind"]
    reasons = {"it encodes the texts of a pair separately": config.is_bi_encoder, **slot_reasons(config)}
    reasons[f"its head is {head}, not cls"] = head != "cls"
    return next((reason for reason, applies in reasons.items() if applies), None)


def slot_reasons(config: AttentuneConfig) -> dict[str, bool]:
    """Return what a model may do between its encoder and its head that other libraries do not, and whether it does."""
    gate, mix = config.token_gate, config.layer_mix["kind"]
    return {
        "it reads long texts in windows": config.window is not None,
        "its weights contain adapters (export the finished run, not a checkpoint)": config.lora is not None,
        "it blurs attention": config.blur["where"] != "none",
        f"its head takes the layer mix {mix!r}, not the last layer": mix != "last",
        "it rescales the layers by squeeze-and-excitation": config.layer_mix["squeeze"],
        "its token gate changes the sentence vector": gate["kind"] != "none" and gate["beta"] < 1.0,
    }


def _differing_outputs(model: AttentuneForSequenceClassification) -> str | None:
    if model.outputs is None or isinstance(model.outputs, ScaledOutput):
        return None
    return f"with the loss {model.config.loss} its logits are not linear in the sentence vector"


def _differing_head(config: Any, *, with_pooler: bool, labels: int) -> str | None:
    kind = config.model_type
    head = _HEADS.get(kind)
    if kind == "modernbert":
        return "ModernBertForSequenceClassification has a LayerNorm between its two linear layers, ours has none"
    if head is None:
        return f"for {kind} encoders no exact class of transformers is known here"
    function = head.function(config)
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
    """Return a model of the class of transformers with the same logits, in evaluation mode and float32 on the CPU."""
    reason = unavailable_reason(model)
    if reason is not None:
        raise ValueError(f"{reason}; expected a model without such a difference")
    config = classification_config(model)
    made = AutoModelForSequenceClassification.from_config(config)
    weights = {name: weight.detach().float().cpu() for name, weight in model.encoder.state_dict().items()}
    found = made.base_model.load_state_dict(weights, strict=False)
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
