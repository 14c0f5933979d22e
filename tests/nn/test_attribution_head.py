"""The loss of the attribution head is FastSHAP's, as plain loops have it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from attentune.nn.attribution_head import AttributionHead, additive_loss


def looped_loss(scores, ordinary, kept, rise, whole) -> float:
    """Compute the loss one text, copy and value at a time."""
    texts = []
    for text in range(len(scores)):
        places = [place for place in range(scores.shape[1]) if ordinary[text, place]]
        count, copies, outputs = max(len(places), 1), kept.shape[1], scores.shape[2]
        errors = []
        for output in range(outputs):
            gap = whole[text, output] - sum(scores[text, place, output] for place in places)
            for copy in range(copies):
                total = sum(scores[text, place, output] + gap / count for place in places if kept[text, copy, place])
                errors.append((total - rise[text, copy, output]) ** 2)
        texts.append(sum(errors) / len(errors) / count)
    return sum(texts) / len(texts)


def values(seed: int, texts: int = 3, tokens: int = 5, copies: int = 4, outputs: int = 2):
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(texts, tokens, outputs, generator=generator)
    ordinary = torch.rand(texts, tokens, generator=generator) < 0.7
    kept = (torch.rand(texts, copies, tokens, generator=generator) < 0.5) & ordinary.unsqueeze(1)
    rise, whole = torch.randn(texts, copies, outputs, generator=generator), torch.randn(texts, outputs)
    return scores, ordinary, kept, rise, whole


@pytest.mark.parametrize("seed", range(4))
def test_the_loss_is_that_of_loops(seed: int) -> None:
    given = values(seed)
    assert float(additive_loss(*given)) == pytest.approx(looped_loss(*(part.numpy() for part in given)), rel=1e-5)


def test_padding_and_special_tokens_do_not_count() -> None:
    scores, ordinary, kept, rise, whole = values(1)
    changed = torch.where(ordinary.unsqueeze(-1), scores, torch.full_like(scores, 1e3))
    assert torch.equal(
        additive_loss(scores, ordinary, kept, rise, whole), additive_loss(changed, ordinary, kept, rise, whole)
    )


def test_additive_values_are_predicted_without_error() -> None:
    scores, ordinary, kept, _, _ = values(2)
    counted = scores * ordinary.unsqueeze(-1)
    rise, whole = kept.float() @ counted, counted.sum(dim=1)
    assert float(additive_loss(scores, ordinary, kept, rise, whole)) == pytest.approx(0.0, abs=1e-10)


def test_a_new_head_says_nothing_and_has_gradients() -> None:
    head = AttributionHead(hidden_size=8, layers=(0, 2), width=4, outputs=3, longest=9)
    read = [torch.randn(2, 5, 8) for _ in head.layers]
    found = head(read)
    assert found.shape == (2, 5, 3)
    assert not found.any()
    found.sum().backward()
    assert head.output.bias.grad.any()
    assert np.isfinite(head.output.weight.grad.numpy()).all()
