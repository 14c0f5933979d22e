"""Two vectors to scores of the pair: plain loops, and the losses that they are for."""

from __future__ import annotations

import math

import pytest
import torch

from attentune.nn.classifiers import (
    COMBINATIONS,
    Concatenation,
    CosineSimilarity,
    DotProduct,
    ScaledDotProduct,
    build_classifier,
)
from helpers.references import linear_of


def texts(rows: int = 3, size: int = 5) -> torch.Tensor:
    return torch.randn(2 * rows, size, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("outputs", [1, 2])
def test_dot_is_the_dot_product_of_both_after_one_linear(outputs: int) -> None:
    combined = DotProduct(hidden_size=5, projection=7, outputs=outputs)
    logits_BC = combined(texts())
    assert logits_BC.shape == (3, outputs)
    vectors = [linear_of(combined.projection, vector) for vector in texts().double().tolist()]
    for row in range(3):
        z = math.fsum(a * b for a, b in zip(vectors[row], vectors[row + 3], strict=True))
        assert logits_BC[row].tolist() == pytest.approx([z] if outputs == 1 else [0.0, z], abs=1e-6)


@pytest.mark.parametrize("outputs", [1, 2])
def test_scaled_dot_is_scale_times_that_over_the_root_of_the_width_plus_offset(outputs: int) -> None:
    plain = DotProduct(hidden_size=5, projection=7, outputs=1)
    scaled = ScaledDotProduct(hidden_size=5, projection=7, outputs=outputs)
    scaled.projection.load_state_dict(plain.projection.state_dict())
    with torch.no_grad():
        scaled.scale.fill_(3.5)
        scaled.offset.fill_(-0.25)
    z_B = 3.5 * plain(texts())[:, 0] / math.sqrt(7) - 0.25
    expected_BC = z_B[:, None] if outputs == 1 else torch.stack([torch.zeros(3), z_B], dim=1)
    torch.testing.assert_close(scaled(texts()), expected_BC)


@pytest.mark.parametrize("product", [DotProduct, ScaledDotProduct])
def test_a_dot_product_cannot_tell_three_classes(product: type) -> None:
    with pytest.raises(ValueError, match=r"outputs: got 3, expected 1 or 2 for a .*dot product"):
        product(hidden_size=5, projection=7, outputs=3)


@pytest.mark.parametrize("outputs", [1, 2, 4])
def test_concat_is_a_linear_on_both_their_distance_and_their_product(outputs: int) -> None:
    combined = Concatenation(hidden_size=5, outputs=outputs)
    logits_BC = combined(texts())
    vectors = texts().double().tolist()
    for row in range(3):
        u, v = vectors[row], vectors[row + 3]
        pairs = list(zip(u, v, strict=True))
        parts = [*u, *v, *(abs(a - b) for a, b in pairs), *(a * b for a, b in pairs)]
        assert logits_BC[row].tolist() == pytest.approx(linear_of(combined.linear, parts), abs=1e-5)


def cosine_of(u: list[float], v: list[float]) -> float:
    norms = [math.sqrt(math.fsum(a * a for a in vector)) for vector in (u, v)]
    return math.fsum(a * b for a, b in zip(u, v, strict=True)) / (norms[0] * norms[1])


@pytest.mark.parametrize("outputs", [1, 2])
def test_cosine_is_the_scaled_cosine_of_both(outputs: int) -> None:
    combined = CosineSimilarity(outputs=outputs)
    with torch.no_grad():
        combined.scale.fill_(3.5)
        combined.offset.fill_(-0.25)
    logits_BC = combined(texts())
    vectors = texts().double().tolist()
    for row in range(3):
        z = 3.5 * cosine_of(vectors[row], vectors[row + 3]) - 0.25
        assert logits_BC[row].tolist() == pytest.approx([z] if outputs == 1 else [0.0, z], abs=1e-6)
    # The length of a vector does not matter.
    torch.testing.assert_close(combined(texts() * torch.tensor([7.0, 0.1, 2, 3, 1, 9])[:, None]), logits_BC)


def test_an_empty_vector_has_cosine_zero_and_finite_gradients() -> None:
    combined = CosineSimilarity(outputs=1)
    inputs_ND = texts().clone()
    inputs_ND[0] = 0.0
    inputs_ND.requires_grad_()
    z_B1 = combined(inputs_ND)
    assert float(z_B1[0]) == 0.0
    z_B1.sum().backward()
    assert inputs_ND.grad.isfinite().all()


def test_a_cosine_cannot_tell_three_classes() -> None:
    with pytest.raises(ValueError, match="outputs: got 3, expected 1 or 2 for a cosine"):
        CosineSimilarity(outputs=3)


@pytest.mark.parametrize("outputs", [1, 3])
def test_concat_cosine_is_a_linear_on_unit_vectors_and_their_cosine(outputs: int) -> None:
    combined = build_classifier(hidden_size=5, outputs=outputs, combine="concat-cosine")
    logits_BC = combined(texts())
    vectors = texts().double().tolist()
    for row in range(3):
        u, v = ([a / math.sqrt(math.fsum(b * b for b in vectors[r])) for a in vectors[r]] for r in (row, row + 3))
        pairs = list(zip(u, v, strict=True))
        parts = [*u, *v, *(abs(a - b) for a, b in pairs), *(a * b for a, b in pairs), cosine_of(u, v)]
        assert logits_BC[row].tolist() == pytest.approx(linear_of(combined.linear, parts), abs=1e-5)
        assert combined.features(texts())[row].tolist() == pytest.approx(parts, abs=1e-6)


@pytest.mark.parametrize("combine", COMBINATIONS)
def test_each_pair_is_scored_by_itself_and_both_texts_get_gradients(combine: str) -> None:
    combined = build_classifier(hidden_size=5, outputs=2, combine=combine)
    inputs_ND = texts().requires_grad_()
    logits_BC = combined(inputs_ND)
    alone = torch.cat([combined(inputs_ND[[row, row + 3]]) for row in range(3)])
    torch.testing.assert_close(alone, logits_BC, atol=1e-6, rtol=1e-6)
    logits_BC[1, 1].backward()
    assert inputs_ND.grad.abs().sum(dim=1).gt(0).tolist() == [False, True, False, False, True, False]
