"""Counts the parameters of a model by part."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from attentune.models.modeling import AttentuneForSequenceClassification
from attentune.nn.attention_block import attention_matrices, unused_matrices
from attentune.nn.classifiers import projection_weights

PARTS = ("encoder", "blur", "layer_mix", "token_gate", "head", "classifier")


@dataclass(frozen=True)
class Count:
    """A number of parameters."""

    parameters: int  # all of them; shared ones count once
    trainable: int  # those with gradients


@dataclass(frozen=True)
class ParameterCounts:
    """The parameters of a model.

    Source: matrices are what table 2 of task-specific attention (Jia 2024) counts.
    """

    parts: dict[str, Count]  # by encoder and slot
    total: Count  # of the whole model
    attention_matrices: int  # weights in the matrices of the head's attention blocks
    unused_matrices: int  # of these, what the poster counts but no model of ours has, as its program never applies it
    projection_matrix: int  # weights of the projection before a dot product, without its bias


def count_parameters(model: AttentuneForSequenceClassification) -> ParameterCounts:
    """Count a model's parameters; a frozen encoder's are not trainable."""
    by_part: dict[str, list[nn.Parameter]] = {part: [] for part in PARTS}
    for name, parameter in model.named_parameters():
        by_part[name.split(".")[0]].append(parameter)
    return ParameterCounts(
        parts={part: _count(parameters) for part, parameters in by_part.items()},
        total=_count([parameter for parameters in by_part.values() for parameter in parameters]),
        attention_matrices=attention_matrices(model.head),
        unused_matrices=unused_matrices(model.head),
        projection_matrix=projection_weights(model.classifier),
    )


def _count(parameters: list[nn.Parameter]) -> Count:
    trainable = (parameter.numel() for parameter in parameters if parameter.requires_grad)
    return Count(sum(parameter.numel() for parameter in parameters), sum(trainable))
