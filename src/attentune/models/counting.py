"""How many parameters a model has, part by part."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.nn.attention_block import attention_matrices
from attentune.nn.classifiers import projection_weights

PARTS = ("encoder", "blur", "layer_mix", "token_gate", "head", "classifier")


@dataclass(frozen=True)
class Count:
    """Parameters.

    Attributes:
        parameters: all of them, each once however often it is used.
        trainable: those that training changes.
    """

    parameters: int
    trainable: int


@dataclass(frozen=True)
class ParameterCounts:
    """The parameters of a model.

    Attributes:
        parts: by the name of the slot; classifier is the last linear, or what combines the two texts of a pair.
        total: all of them.
        attention_matrices: weights in the matrices of the head's attention blocks, without biases, normalisations and
            feed-forward parts.
        projection_matrix: weights of the linear before a dot product, without its bias.

    Source: the last two are what table 2 of task-specific attention (Jia 2024) counts.
    """

    parts: dict[str, Count]
    total: Count
    attention_matrices: int
    projection_matrix: int


def count_parameters(model: AttentuneForSequenceClassification) -> ParameterCounts:
    """Count; a frozen encoder's parameters are not trainable."""
    by_part: dict[str, list[nn.Parameter]] = {part: [] for part in PARTS}
    for name, parameter in model.named_parameters():
        by_part[name.split(".")[0]].append(parameter)
    return ParameterCounts(
        parts={part: _count(own) for part, own in by_part.items()},
        total=_count([parameter for own in by_part.values() for parameter in own]),
        attention_matrices=attention_matrices(model.head),
        projection_matrix=projection_weights(model.classifier),
    )


def _count(parameters: list[nn.Parameter]) -> Count:
    trainable = (parameter.numel() for parameter in parameters if parameter.requires_grad)
    return Count(sum(parameter.numel() for parameter in parameters), sum(trainable))
