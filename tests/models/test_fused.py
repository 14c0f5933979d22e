"""Which encoders take the written-out layer, when, and that their weights, scores and files are what they were."""

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from attentune.config.schema import BlurConfig, TrainingConfig
from attentune.models import cpu_layers as fused
from attentune.models.cpu_layers import (
    attention_by,
    find_parts,
    frozen_weights,
    fused_layers,
    keep_bf16_weights,
    use_fused_layers,
    use_own_attention,
)
from attentune.training.optimizer import build_optimizer
from helpers.native import needs_native
from helpers.tiny import FAMILIES
from helpers.tiny_models import FIRST, SECOND, build, encoded

pytestmark = needs_native

Tiny = Callable[..., Path]
ABLE = ("bert", "roberta", "xlm-roberta", "electra", "distilbert", "albert", "mpnet", "deberta-v2", "modernbert")
KEY_BIASES = ("key.bias", "k_lin.bias", "attn.k.bias", "key_proj.bias")


def built(tiny: Tiny, family: str = "bert", **settings: Any) -> tuple[Any, dict[str, torch.Tensor]]:
    """A model whose heads are 16 wide (ModernBERT's 32), with our own attention, and texts of unlike lengths."""
    made = model, _ = build(tiny(family, hidden=128 if family == "modernbert" else 64), **settings)
    use_own_attention(model)
    return model, encoded(made[1], FIRST, SECOND, "so fine")


def in_bf16(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits: torch.Tensor = model(**inputs).logits
    return logits.float()


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the programs that layers were computed by, if they were ours."""
    made: list[str] = []
    for name in ("fused_layer", "fused_prediction"):
        own = getattr(fused, name)

        def noted(*given: Any, own: Any = own, name: str = name) -> torch.Tensor:
            made.append(name)
            found: torch.Tensor = own(*given)
            return found

        monkeypatch.setattr(fused, name, noted)
    return made


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with each layer whose weights are copied to bf16."""
    made: list[int] = []
    copy_from = fused.BFloat16Weights.copy_from
    monkeypatch.setattr(fused.BFloat16Weights, "copy_from", lambda *given: made.append(1) or copy_from(*given))
    return made


@pytest.mark.parametrize("family", FAMILIES)
def test_which_families_can(tiny: Tiny, family: str) -> None:
    model, _ = built(tiny, family)
    count = {"albert": 1}.get(family, 3) if family in ABLE else 0  # ALBERT's layers share their weights
    assert use_fused_layers(model) == fused_layers(model) == count
    assert use_fused_layers(model) == count  # and not twice over


def without_dropout(model: Any) -> Any:
    model.apply(lambda module: setattr(module, "p", 0.0) if isinstance(module, torch.nn.Dropout) else None)
    return model.train()


def far(found: torch.Tensor, wanted: torch.Tensor) -> float:
    return float((found - wanted).norm() / wanted.norm())


def gradients(model: Any, pass_over: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    torch.manual_seed(1)
    logits = pass_over()
    logits.square().sum().backward()
    return logits.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def check_training(model: Any, inputs: dict[str, torch.Tensor]) -> None:
    """By our layers logits and gradients are as near to float32 as autocast's, give or take its own noise."""
    right, wanted = gradients(model, lambda: model(**inputs).logits)
    by_autocast, theirs = gradients(model, lambda: in_bf16(model, inputs))
    use_fused_layers(model)
    logits, ours = gradients(model, lambda: in_bf16(model, inputs))
    assert ours.keys() == wanted.keys()
    assert far(logits, right) < 2 * far(by_autocast, right) + 0.01
    for name, gradient in wanted.items():
        if not name.endswith(KEY_BIASES):  # zero but for rounding
            assert far(ours[name], gradient) < 2 * far(theirs[name], gradient) + 0.01, name


@pytest.mark.parametrize("family", ABLE)
def test_training_is_what_it_was(tiny: Tiny, family: str, calls: list[str]) -> None:
    model, inputs = built(tiny, family, dropout=0.0)
    check_training(without_dropout(model), inputs)
    assert calls == ["fused_layer"] * 3


@pytest.mark.parametrize(
    ("family", "learnable"), [("bert", "layer"), ("bert", "head"), *((family, "no") for family in ("bert", *ABLE[4:]))]
)
def test_a_blur_of_what_attention_found_is_obeyed(tiny: Tiny, family: str, learnable: str, calls: list[str]) -> None:
    model, inputs = built(tiny, family, dropout=0.0, blur=BlurConfig("context", 0.8, learnable=learnable))
    with torch.no_grad():
        right = model(**inputs).logits
    check_training(without_dropout(model), inputs)
    assert calls == ["fused_layer"] * 3
    model.eval()
    with torch.no_grad():
        torch.testing.assert_close(in_bf16(model, inputs), right, rtol=0.05, atol=0.05)
        model.blur_hooks.remove()
        assert far(in_bf16(model, inputs), right) > 0.05
    assert calls[3:] == ["fused_prediction"] * 6


@pytest.mark.parametrize("where", ["value", "scores"])
def test_other_blurs_are_left_to_pytorch(tiny: Tiny, where: str, calls: list[str]) -> None:
    model, inputs = built(tiny, blur=BlurConfig(where, 0.8))
    use_fused_layers(model)
    in_bf16(model.train(), inputs)
    assert calls == []


@pytest.mark.parametrize("family", ABLE)
def test_prediction_is_what_it_was(tiny: Tiny, family: str, calls: list[str], copied: list[int]) -> None:
    model, inputs = built(tiny, family)
    with torch.no_grad():
        right = model(**inputs).logits
        use_fused_layers(model)
        assert torch.equal(model(**inputs).logits, right)  # all in float32: the layer's own
        assert calls == []
        found = in_bf16(model, inputs)
        assert calls == ["fused_prediction"] * 3
        copied.clear()
        with frozen_weights(model):
            assert torch.equal(in_bf16(model, inputs), found)
            assert torch.equal(in_bf16(model, inputs), found)
        assert len(copied) == (1 if family == "albert" else 3)  # once for each layer; ALBERT's is one
        assert calls == ["fused_prediction"] * 9
    torch.testing.assert_close(found, right, rtol=0.05, atol=0.05)


def test_other_weights_are_seen_after_the_block_in_which_they_stay(tiny: Tiny) -> None:
    model, inputs = built(tiny)
    use_fused_layers(model)
    with torch.no_grad():
        with frozen_weights(model):
            before = in_bf16(model, inputs)
            model.encoder.encoder.layer[0].output.dense.weight.data.mul_(-1)
            assert torch.equal(in_bf16(model, inputs), before)  # what the block is for
        assert not torch.equal(in_bf16(model, inputs), before)


def test_kept_copies_are_made_again_where_weights_changed(tiny: Tiny, copied: list[int]) -> None:
    model, inputs = built(tiny)
    use_fused_layers(model)
    weight = model.encoder.encoder.layer[0].output.dense.weight
    with torch.no_grad():
        for _ in range(2):
            with frozen_weights(model):
                in_bf16(model, inputs)
        assert len(copied) == 2 * 3  # layers
        keep_bf16_weights(model)
        for _ in range(3):
            with frozen_weights(model):
                found = in_bf16(model, inputs)
        assert len(copied) == 3 * 3
        assert torch.equal(in_bf16(copy.deepcopy(model), inputs), found)  # a copy does not keep them
        assert len(copied) == 4 * 3
        weight.mul_(-1)
        changed = in_bf16(model, inputs)
        assert len(copied) == 4 * 3 + 1
        assert not torch.equal(changed, found)
        weight.data = -weight.data
        torch.testing.assert_close(in_bf16(model, inputs), found)
    # Training overwrites the copies, and not all optimisers' steps are counted.
    in_bf16(model.train(), inputs).sum().backward()
    weight.data.mul_(-1)
    with torch.no_grad():
        assert torch.equal(in_bf16(model.eval(), inputs), changed)


@pytest.mark.parametrize("family", ABLE)
def test_the_optimiser_writes_the_copies_that_training_reads(tiny: Tiny, family: str, copied: list[int]) -> None:
    model, inputs = built(tiny, family)
    use_fused_layers(model)
    optimizer = build_optimizer(TrainingConfig(learning_rate=1e-3), model)
    weight = find_parts(fused._fused_modules(model)[0]).linears[-1].weight

    def one_step(*, is_last: bool = False) -> torch.Tensor:
        torch.manual_seed(0)
        logits = in_bf16(model.train(), inputs)
        if not is_last:
            optimizer.zero_grad()
            logits.square().sum().backward()
            optimizer.step()
        return logits.detach()

    one_step()
    before = len(copied)
    one_step()
    written = one_step(is_last=True)
    assert len(copied) == before  # not once since the first step
    torch.manual_seed(0)
    assert torch.equal(in_bf16(copy.deepcopy(model), inputs), written)  # its copies are new
    copied.clear()
    with torch.no_grad():
        weight.mul_(1.5)
    assert not torch.equal(one_step(is_last=True), written)
    uses = 3 if family == "albert" else 1
    assert len(copied) == uses
    weight.requires_grad_(False)
    one_step()
    one_step()
    assert len(copied) == 3 * uses  # a layer of which one matrix is frozen is copied as ever


def test_a_prediction_between_two_steps_of_training(tiny: Tiny) -> None:
    model, inputs = built(tiny)
    use_fused_layers(model)
    model.eval()
    with torch.inference_mode():
        in_bf16(model, inputs)
    model.train()
    in_bf16(model, inputs).sum().backward()
    assert model.encoder.encoder.layer[0].output.dense.weight.grad.abs().sum() > 0


@pytest.mark.parametrize("what", ["a hook", "a pre-hook", "eager attention", "float32", "no gradients in training"])
def test_when_the_layer_computes_as_ever(tiny: Tiny, what: str, calls: list[str]) -> None:
    model, inputs = built(tiny)
    use_fused_layers(model)
    model.train()
    seen: list[Any] = []
    inner = model.encoder.encoder.layer[0].attention.self.value
    if what == "a hook":
        inner.register_forward_hook(lambda module, given, out: seen.append(out))
    elif what == "a pre-hook":
        inner.register_forward_pre_hook(lambda module, given: seen.append(given))
    if what == "eager attention":
        with attention_by(model, "eager"):
            in_bf16(model, inputs)
    elif what == "float32":
        model(**inputs)
    elif what == "no gradients in training":
        with torch.no_grad():
            in_bf16(model, inputs)
    else:
        in_bf16(model, inputs)
    assert len(seen) == (1 if "hook" in what else 0)
    assert calls == (["fused_layer"] * 2 if "hook" in what else [])


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("hidden_act", "relu"),
        ("hidden_act", "gelu_fast"),
        ("hidden_act", "gelu_python"),
        ("is_decoder", True),
        ("num_attention_heads", 8),
    ],
)
def test_which_layers_cannot(tiny: Tiny, setting: str, value: Any) -> None:
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128}
    encoder = BertModel(BertConfig(**{**sizes, setting: value}))
    assert use_fused_layers(encoder) == 0


def test_modernbert_with_dropout_trains_by_its_own_layers(tiny: Tiny, calls: list[str]) -> None:
    model, inputs = built(tiny, "modernbert")
    use_fused_layers(model)
    model.encoder.layers[1].mlp.drop.p = 0.1
    in_bf16(model.train(), inputs)
    assert calls == ["fused_layer"] * 2
    with torch.no_grad():
        in_bf16(model.eval(), inputs)
    assert calls[2:] == ["fused_prediction"] * 3


def test_without_the_c_code_nothing_changes(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "unavailable_reason", lambda: "no C compiler found (cc, gcc, clang)")
    model, _ = built(tiny)
    assert use_fused_layers(model) == fused_layers(model) == 0


def test_gradient_checkpointing_gives_the_same_gradients(tiny: Tiny) -> None:
    model, inputs = built(tiny)
    use_fused_layers(model)
    model.train()
    found = []
    for turn in range(2):
        if turn:
            model.gradient_checkpointing_enable()
        model.zero_grad()
        torch.manual_seed(3)
        in_bf16(model, inputs).square().sum().backward()
        found.append(model.encoder.encoder.layer[1].intermediate.dense.weight.grad.clone())
    assert torch.equal(*found)
