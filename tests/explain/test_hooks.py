"""EmbeddingGradientHook gives the word embeddings and the gradient there, and leaves no hook behind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attentune.explain.gradient import EmbeddingGradientHook
from helpers.tiny import FAMILIES
from helpers.tiny_models import FIRST, SECOND, build, encoded

Tiny = Callable[..., Path]
MISSING = (
    "no gradient has reached the word embeddings, expected one from each backward pass: are the encoder's weights"
    " frozen?"
)


def loss_of(model: Any, inputs: dict[str, Tensor]) -> Tensor:
    return model(**inputs).logits.square().sum()


def hooks_of(model: Any) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


@pytest.fixture
def model_and_inputs(tiny: Tiny) -> tuple[Any, dict[str, Tensor]]:
    model, tokenizer = build(tiny("bert"))
    return model, encoded(tokenizer, FIRST, SECOND)


@pytest.mark.parametrize("family", FAMILIES)
def test_it_gives_each_tokens_embedding_and_gradient_in_every_family(tiny: Tiny, family: str) -> None:
    model, tokenizer = build(tiny(family))
    inputs = encoded(tokenizer, FIRST, SECOND)
    words = model.get_input_embeddings().weight
    with EmbeddingGradientHook(model) as hook:
        loss_of(model, inputs).backward()
        embedded_BTE, gradient_BTE = hook.take()
    assert torch.equal(embedded_BTE, words[inputs["input_ids"]])
    assert not embedded_BTE.requires_grad
    # A word's gradient in the table is the sum over the places where it stands; of padding some tables keep none.
    summed = torch.zeros_like(words).index_put((inputs["input_ids"],), gradient_BTE, accumulate=True)
    summed[tokenizer.pad_token_id] = words.grad[tokenizer.pad_token_id]
    assert words.grad.abs().max() > 1e-3
    assert torch.allclose(summed, words.grad, rtol=1e-4, atol=1e-6)
    assert hooks_of(model) == 0


def test_the_hook_is_there_only_within_the_block_and_may_be_used_again(
    model_and_inputs: tuple[Any, dict[str, Tensor]],
) -> None:
    model, inputs = model_and_inputs
    hook = EmbeddingGradientHook(model)
    taken = []
    for _ in range(2):
        assert hooks_of(model) == 0
        with hook:
            assert hooks_of(model) == 1
            loss_of(model, inputs).backward()
            taken.append(hook.take()[1])
            loss_of(model, inputs).backward()
        with pytest.raises(RuntimeError):  # what it held is let go
            hook.take()
    assert torch.equal(taken[0], taken[1])
    with pytest.raises(ZeroDivisionError), hook:
        model(**inputs)
        1 / 0  # noqa: B018
    assert hooks_of(model) == 0


def test_without_a_gradient_there_is_nothing_to_take(model_and_inputs: tuple[Any, dict[str, Tensor]]) -> None:
    model, inputs = model_and_inputs
    with EmbeddingGradientHook(model) as hook:
        with pytest.raises(RuntimeError) as raised:
            hook.take()
        assert str(raised.value) == MISSING
        loss_of(model, inputs)
        with pytest.raises(RuntimeError, match="no gradient has reached"):
            hook.take()
        loss_of(model, inputs).backward()
        hook.take()
        model.encoder.requires_grad_(False)
        loss_of(model, inputs).backward()
        with pytest.raises(RuntimeError, match="no gradient has reached"):  # once for each backward pass
            hook.take()


@pytest.mark.parametrize("silent", [torch.no_grad, torch.inference_mode])
def test_passes_without_gradients_do_not_disturb_it(
    model_and_inputs: tuple[Any, dict[str, Tensor]], silent: Callable[[], Any]
) -> None:
    model, inputs = model_and_inputs
    other = {name: tensor[:1, :4] for name, tensor in inputs.items()}
    with EmbeddingGradientHook(model) as hook:
        loss = loss_of(model, inputs)
        with silent():
            model(**other)
        loss.backward()
        with silent():
            model(**other)
        embedded_BTE, gradient_BTE = hook.take()
    assert embedded_BTE.shape == gradient_BTE.shape == (*inputs["input_ids"].shape, 32)


def test_the_newest_pass_counts(model_and_inputs: tuple[Any, dict[str, Tensor]]) -> None:
    model, inputs = model_and_inputs
    other = {name: tensor[:1] for name, tensor in inputs.items()}
    with EmbeddingGradientHook(model) as hook:
        loss_of(model, inputs).backward()
        loss_of(model, other).backward()
        embedded_BTE, gradient_BTE = hook.take()
        loss_of(model, inputs).backward()
        model(**other)  # a new pass that no backward pass has followed yet
        with pytest.raises(RuntimeError, match="no gradient has reached"):
            hook.take()
    assert torch.equal(embedded_BTE, model.get_input_embeddings()(other["input_ids"]))
    assert gradient_BTE.shape == embedded_BTE.shape
