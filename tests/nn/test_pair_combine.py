"""Two vectors to scores of the pair: plain loops, and the losses that they are for."""

import math
from typing import Any

import pytest
import torch

from attentune.nn.classifiers import COMBINATIONS, SIMILARITIES, CosineSimilarity, build_classifier
from helpers.references import linear_of, shaken

Vector = list[float]


def texts(rows: int = 3, size: int = 5) -> torch.Tensor:
    return torch.randn(2 * rows, size, generator=torch.Generator().manual_seed(3))


def dot_of(u: Vector, v: Vector) -> float:
    return math.fsum(a * b for a, b in zip(u, v, strict=True))


def unit(u: Vector) -> Vector:
    return [a / math.sqrt(dot_of(u, u)) for a in u]


def features_of(combine: str, combined: Any, u: Vector, v: Vector) -> Vector:
    """What the scores of a pair are linear in, written out."""
    if combine == "cosine":
        return [dot_of(unit(u), unit(v))]
    if combine in SIMILARITIES:
        z = dot_of(linear_of(combined.projection, u), linear_of(combined.projection, v))
        return [z / math.sqrt(7) if combine == "scaled-dot" else z]
    u, v = (unit(u), unit(v)) if combine == "concat-cosine" else (u, v)
    pairs = list(zip(u, v, strict=True))
    parts = [*u, *v, *(abs(a - b) for a, b in pairs), *(a * b for a, b in pairs)]
    return [*parts, dot_of(u, v)] if combine == "concat-cosine" else parts


@pytest.mark.parametrize(
    ("combine", "outputs"), [(one, n) for one in COMBINATIONS for n in (1, 2, 4) if n < 3 or one not in SIMILARITIES]
)
def test_the_scores_of_a_pair_are_those_of_the_plain_loop(combine: str, outputs: int) -> None:
    """One number is the score, or after a zero the logits of two classes."""
    combined = shaken(build_classifier(hidden_size=5, projection=7, outputs=outputs, combine=combine))
    logits_BC = combined(texts())
    assert logits_BC.shape == (3, outputs)
    vectors = texts().double().tolist()
    for row in range(3):
        features = features_of(combine, combined, vectors[row], vectors[row + 3])
        if combine != "dot":
            assert combined.features(texts())[row].tolist() == pytest.approx(features, abs=1e-5)
        if combine in SIMILARITIES:
            scale, offset = (1.0, 0.0) if combine == "dot" else (combined.scale.item(), combined.offset.item())
            expected = [0.0] * (outputs - 1) + [scale * features[0] + offset]
        else:
            expected = linear_of(combined.linear, features)
        assert logits_BC[row].tolist() == pytest.approx(expected, abs=1e-5)


def test_an_empty_vector_has_cosine_zero_and_finite_gradients() -> None:
    combined = CosineSimilarity(outputs=1)
    inputs_ND = texts().clone()
    inputs_ND[0] = 0.0
    inputs_ND.requires_grad_()
    z_B1 = combined(inputs_ND)
    assert float(z_B1[0]) == 0.0
    z_B1.sum().backward()
    assert inputs_ND.grad.isfinite().all()


@pytest.mark.parametrize("combine", SIMILARITIES)
def test_one_number_cannot_tell_three_classes(combine: str) -> None:
    with pytest.raises(ValueError, match=r"outputs: got 3, expected 1 or 2 for a .*product"):
        build_classifier(hidden_size=5, outputs=3, combine=combine)
