"""Starting from an earlier run: its encoder, and its slots and classifier where they fit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from attentune.config import ModelConfig, load_config
from attentune.data.dataset import LabelSpace
from attentune.models.saving import save_model
from helpers.tiny_models import FIRST, LONG, TWO, Built, build, logits_of

Tiny = Callable[..., Path]


def saved_run(tiny: Tiny, folder: Path, preset: str = "ssa-hybrid", **options: object) -> tuple[Built, Path]:
    """A model whose weights are all unlike fresh ones, and its folder."""
    model, tokenizer = build(tiny("bert"), settings=load_config(preset=preset).model, **options)
    with torch.no_grad():
        for weight in model.parameters():
            weight.add_(0.01)
    save_model(model, tokenizer, folder)
    return (model, tokenizer), folder


@pytest.mark.parametrize("preset", ["bert", "ssa-hybrid", "ssa-co"])
def test_the_same_method_goes_on_where_the_run_ended(tiny: Tiny, tmp_path: Path, preset: str) -> None:
    before, folder = saved_run(tiny, tmp_path, preset)
    again = build(folder, settings=load_config(preset=preset).model, seed=7)
    assert torch.equal(logits_of(again, FIRST, LONG), logits_of(before, FIRST, LONG))


def test_what_does_not_fit_is_fresh_and_the_encoder_is_kept(tiny: Tiny, tmp_path: Path) -> None:
    (before, _), folder = saved_run(tiny, tmp_path)
    three = LabelSpace("classification", ("a", "b", "c"))
    model, _ = build(folder, settings=load_config(preset="ssa-co").model, label_space=three, max_length=64)
    for name, weight in before.encoder.state_dict().items():
        assert torch.equal(model.encoder.state_dict()[name], weight)
    theirs, mine = before.token_gate.state_dict(), model.token_gate.state_dict()
    assert theirs
    assert all(torch.equal(mine[name], weight) for name, weight in theirs.items())
    assert model.classifier.weight.shape == (3, before.classifier.weight.shape[1])


def test_a_classifier_of_other_labels_is_not_taken(tiny: Tiny, tmp_path: Path) -> None:
    (before, _), folder = saved_run(tiny, tmp_path)
    settings = load_config(preset="ssa-hybrid").model
    turned, _ = build(folder, settings=settings, label_space=LabelSpace("classification", ("good", "bad")))
    same, _ = build(folder, settings=settings, label_space=TWO)
    assert not torch.equal(turned.classifier.weight, before.classifier.weight)
    assert torch.equal(same.classifier.weight, before.classifier.weight)


def test_what_the_outputs_were_scaled_by_goes_into_a_classifier_without(tiny: Tiny, tmp_path: Path) -> None:
    """A run trained for Pearson's correlation goes on with the squared error from the same predictions."""
    space = LabelSpace("regression", ())
    model, tokenizer = build(tiny("bert"), label_space=space, loss="pearson")
    with torch.no_grad():
        model.outputs.scale.fill_(3.0)
        model.outputs.offset.fill_(2.5)
    save_model(model, tokenizer, tmp_path)
    again = build(tmp_path, label_space=space, loss="mse", seed=7)
    torch.testing.assert_close(logits_of(again, FIRST, LONG), logits_of((model, tokenizer), FIRST, LONG))


def test_dropout_can_be_set_anew(tiny: Tiny, tmp_path: Path) -> None:
    _, folder = saved_run(tiny, tmp_path)
    settings: ModelConfig = replace(load_config(preset="ssa-hybrid").model, dropout=0.3)
    model, _ = build(folder, settings=settings)
    assert model.encoder.embeddings.dropout.p == 0.3
