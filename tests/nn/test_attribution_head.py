"""The loss of the attribution head is FastSHAP's, as plain loops have it."""

import numpy as np
import pytest
import torch

from attentune.nn import attribution_head
from attentune.nn.attribution_head import AttributionHead, additive_loss
from helpers.native import needs_native


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


def test_a_new_head_says_nothing_and_has_gradients() -> None:
    head = AttributionHead(hidden_size=8, layers=(0, 2), width=4, outputs=3, longest=9)
    read = [torch.randn(2, 5, 8) for _ in head.layers]
    found = head(read)
    assert found.shape == (2, 5, 3)
    assert not found.any()
    found.sum().backward()
    assert head.output.bias.grad.any()
    assert np.isfinite(head.output.weight.grad.numpy()).all()


@needs_native
def test_folded_weights_give_the_same_scores_in_one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(3)
    head = AttributionHead(hidden_size=32, layers=(0, 2, 3), width=16, outputs=2, longest=9)
    for tensor in head.parameters():
        torch.nn.init.normal_(tensor, mean=0.3, std=0.5)
    read = [5 * torch.randn(4, 11, 32) + place for place in range(3)]
    exact = head(read)
    calls = []
    monkeypatch.setattr(
        attribution_head, "normalize", lambda *given, own=attribution_head.normalize: calls.append(1) or own(*given)
    )
    assert head.fold() is head
    assert torch.equal(head(read), exact)  # float32 stays float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        head(read)  # no inference mode: gradients are those of the weights
        with torch.inference_mode():
            assert calls == []
            found = head(read)
            assert calls == [1]
            head([part.bfloat16() for part in read])  # a model in bf16
            assert calls == [1]
    assert found.dtype == torch.float32
    limit = 0.02 * float(exact.detach().abs().max())
    assert float((found - exact).detach().abs().max()) < limit
