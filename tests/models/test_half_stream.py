"""Kept in bf16 between the layers, an encoder says the same up to rounding, in every family."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from attentune.models.half_stream import HalfStream
from attentune.models.on_cpu import suit_cpu
from tiny import FAMILIES
from tiny_models import FIRST, SECOND, build, encoded

Tiny = Callable[..., Path]
every_family = pytest.mark.parametrize("family", FAMILIES)


def hidden_and_gradient(model: Any, inputs: dict[str, torch.Tensor], *, autocast: bool) -> tuple[Any, torch.Tensor]:
    model.zero_grad()
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        out = model(**inputs, output_hidden_states=True)
    out.logits.float().square().sum().backward()
    gradients = [part.grad.flatten() for part in model.encoder.parameters() if part.grad is not None]
    assert {gradient.dtype for gradient in gradients} == {torch.float32}
    return out.hidden_states, torch.cat(gradients)


def likeness(one: torch.Tensor, other: torch.Tensor) -> float:
    return float(torch.cosine_similarity(one.flatten(), other.flatten(), dim=0))


@every_family
def test_states_and_gradients_stay_what_they_are_up_to_bf16(tiny: Tiny, family: str) -> None:
    model, tokenizer = build(tiny(family))
    inputs = encoded(tokenizer, FIRST, SECOND)
    exact, exact_gradient = hidden_and_gradient(model, inputs, autocast=False)
    stream = HalfStream(model.encoder)
    half, gradient = hidden_and_gradient(model, inputs, autocast=True)
    assert {part.dtype for part in half} == {torch.float32}
    for ours, theirs in zip(half, exact, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0.05, atol=0.08)
    assert likeness(gradient, exact_gradient) > 0.98
    stream.remove()


@every_family
def test_layers_are_given_bf16_under_autocast_alone(tiny: Tiny, family: str) -> None:
    model, tokenizer = build(tiny(family))
    inputs, seen = encoded(tokenizer, FIRST, SECOND), []
    for name, part in model.encoder.named_modules():
        if isinstance(part, torch.nn.LayerNorm) and not name.startswith(("embeddings", "encoder.LayerNorm")):
            part.register_forward_pre_hook(lambda module, args: seen.append(args[0].dtype))
    stream = HalfStream(model.encoder)
    before, _ = hidden_and_gradient(model, inputs, autocast=False)
    assert set(seen) == {torch.float32}
    seen.clear()
    hidden_and_gradient(model, inputs, autocast=True)
    assert set(seen) == {torch.bfloat16}
    stream.remove()
    after, _ = hidden_and_gradient(model, inputs, autocast=False)
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(before, after, strict=True))
    assert not model.encoder._forward_hooks
    assert not model.encoder.embeddings._forward_hooks


def test_shared_encoders_are_narrowed_once(tiny: Tiny) -> None:
    (first, _), (second, _) = build(tiny("bert")), build(tiny("bert"))
    suit_cpu(first)
    suit_cpu(second)
    second.share_encoder_of(first)
    suit_cpu(second)
    assert second.half_stream is first.half_stream
    assert len(second.encoder._forward_hooks) == 1
