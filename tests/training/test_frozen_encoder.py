"""A frozen encoder stays as it is bit for bit, and encodes each row once where its output does not change."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel

import attentune.training.building as building
import attentune.training.linear_probe as frozen_module
import attentune.training.run as run_module
from attentune.config import load_config
from attentune.data.tokenization import encode_rows
from attentune.training.checkpoint import checkpoint_folders
from attentune.training.linear_probe import FrozenStates, evaluation_caches, states_bytes
from attentune.training.run import train
from helpers.interrupted import log_of, losses_of
from helpers.samples import settings
from helpers.tiny_models import FIRST, build, rows_of

Tiny = Callable[..., Path]
ROWS = 48
FROZEN = {
    "training__freeze_encoder": True,
    "training__learning_rate": 1e-2,
    "training__precision": "fp32",
    "training__num_train_epochs": 3,
}
EXACT = {**FROZEN, "model__head__dropout": 0}


class Calls:
    """What the encoder was asked while the model was training, and how many texts while it was evaluated."""

    def __init__(self) -> None:
        self.texts: list[int] = []
        self.evaluated = 0
        self.modes: set[bool] = set()
        self.graphs: set[bool] = set()
        self.parts: Any = None

    def watch(self, parts: Any) -> Any:
        self.parts = parts
        parts.model.encoder.register_forward_hook(self._note)
        return parts

    def _note(self, encoder: torch.nn.Module, inputs: Any, output: Any) -> None:
        if self.parts.model.training:
            self.texts.append(len(output.last_hidden_state))
            self.modes.add(encoder.training)
            self.graphs.add(output.last_hidden_state.requires_grad)
        else:
            self.evaluated += len(output.last_hidden_state)


@pytest.fixture
def run(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[Path, Calls]]:
    """`run("name", **settings)` trains; gives its folder and what the encoder was asked."""
    build = run_module.build

    def run_with(name: str, **changes: Any) -> tuple[Path, Calls]:
        calls, folder = Calls(), tmp_path / name
        monkeypatch.setattr(run_module, "build", lambda inputs: calls.watch(build(inputs)))
        encoder = tiny("bert", layers=4)
        train(load_config(overrides=settings(tmp_path, encoder, training__output_dir=str(folder), **changes)))
        return folder, calls

    return run_with


def assert_close(first: Path, second: Path, *, atol: float) -> None:
    """The same losses and weights."""
    assert losses_of(first) == pytest.approx(losses_of(second), abs=atol)
    weights, others = (load_file(folder / "model.safetensors") for folder in (first, second))
    for name, weight in weights.items():
        torch.testing.assert_close(weight, others[name], atol=atol, rtol=0, msg=lambda m, name=name: f"{name}: {m}")


# The encoder's weights


# With the reason why the encoder runs in each step, where its outputs cannot be kept.
METHODS = {
    "kept": ({}, None),
    "best": (
        {"training__load_best_model_at_end": True, "training__eval_strategy": "steps", "training__eval_steps": 4},
        None,
    ),
    "all layers": ({"model__layer_mix__kind": "mean-all"}, "model.layer_mix"),
    "sesame": ({"preset": "se-bert"}, "model.layer_mix"),
    "token labels": ({"preset": "ssa-hybrid"}, "labels.generator flip"),
    "masked rows": ({"preset": "bert-mask"}, "labels.generator masked-rows"),
    "learnt blur": (
        {"preset": "blur-bert", "model__blur__learnable": "layer", "model__blur__sigma": 0.5},
        "model.blur.learnable",
    ),
    "too large": ({}, "they would take 0.0 GiB"),
}


@pytest.mark.integration
@pytest.mark.parametrize("method", METHODS)
def test_the_saved_encoder_is_the_original_bit_for_bit_and_the_rest_has_learnt(run, tiny, monkeypatch, capfd, method):
    changes, reason = METHODS[method]
    if method == "too large":
        monkeypatch.setattr(frozen_module, "LIMIT_BYTES", 1000)
    folder, calls = run("run", **FROZEN, **changes)
    assert calls.modes == {False}, "no dropout"
    assert calls.graphs == {method == "learnt blur"}, "no gradients, but those of sigmas"
    assert not any(weight.requires_grad for weight in calls.parts.model.encoder.parameters())
    saved = load_file(folder / "model.safetensors")
    original = AutoModel.from_pretrained(tiny("bert", layers=4)).state_dict()
    kept = {name.removeprefix("encoder."): weight for name, weight in saved.items() if name.startswith("encoder.")}
    assert set(kept) == {name for name in original if not name.startswith("pooler.") and "position_ids" not in name}
    assert all(torch.equal(weight, original[name]) for name, weight in kept.items())
    assert len(kept) > 60
    first = load_file(folder / "checkpoint-4" / "model.safetensors") if method == "best" else None
    assert first is None or all(torch.equal(first[f"encoder.{name}"], weight) for name, weight in kept.items())
    own = {name for name in saved if not name.startswith("encoder.")}
    first, *_, last = checkpoint_folders(folder)
    assert {name.split(".", 1)[1] for name in load_file(last / "optimizer.safetensors")} == own
    before, after = (load_file(path / "model.safetensors") for path in (first, last))
    assert not [name for name in own if torch.equal(before[name], after[name])], "the rest has learnt"
    assert np.isfinite(losses_of(folder)).all()
    (line,) = [line for line in capfd.readouterr().err.splitlines() if "frozen encoder" in line]
    assert (calls.parts.frozen is None) == (reason is not None) == ("it runs in each step, since " in line)
    assert reason is None or (reason in line and sum(calls.texts) >= 3 * ROWS)


# The hidden states that are kept


PAIR = {"data__text_column": "text", "data__text_pair_column": "other", "data__label_column": "label"}


def write_pairs(folder: Path) -> None:
    """Reviews of two texts, the first and the second half of one, in training and validation files."""
    settings(folder, folder)
    for name in ("train", "validation"):
        lines = (folder / f"{name}.csv").read_text().splitlines()[1:]
        rows = [(words.split(), label) for _, words, label in (line.split(",") for line in lines)]
        halves = [f"{' '.join(words[:2])},{' '.join(words[2:])},{label}" for words, label in rows]
        (folder / f"{name}.csv").write_text("\n".join(["text,other,label", *halves]) + "\n")


@pytest.mark.integration
@pytest.mark.parametrize(
    ("method", "texts"),
    [
        pytest.param({}, 1, id="bert"),
        pytest.param({"model__head__kind": "cls-mean", "model__head__dropout": 0.1}, 1, id="cls-mean, dropout"),
        pytest.param({"preset": "ssa-hybrid", "labels__generator": "none"}, 1, id="gate"),
        pytest.param({"preset": "blur-bert", "model__blur__sigma": 0.5}, 1, id="blur"),
        pytest.param(
            {"training__gradient_accumulation_steps": 2, "training__per_device_train_batch_size": 5}, 1, id="uneven"
        ),
        pytest.param(PAIR | {"preset": "task-attention", "model__head__combine": "dot"}, 2, id="cross-attention"),
        pytest.param(PAIR | {"preset": "bi-encoder-mean", "objective__loss": "focal"}, 2, id="pairs"),
        pytest.param(PAIR | {"preset": "bert-mean"}, 1, id="pairs as one row"),
    ],
)
def test_losses_and_weights_are_those_without_it_and_each_text_is_encoded_once(
    run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: dict, texts: int
) -> None:
    if PAIR.items() <= method.items():
        write_pairs(tmp_path)
    # A large epsilon: else AdamW makes whole steps of what rounding leaves where a gradient is zero.
    options = EXACT | {"training__adam_epsilon": 1e-4} | method
    kept, calls = run("kept", **options)
    assert sum(calls.texts) == texts * ROWS
    monkeypatch.setattr(frozen_module, "LIMIT_BYTES", 0)
    anew, calls = run("anew", **options)
    assert sum(calls.texts) == texts * 3 * ROWS
    assert_close(kept, anew, atol=2e-5)
    assert len(set(losses_of(kept))) == len(losses_of(kept)) > 10, "something was learnt, so that this says something"


@pytest.mark.integration
@pytest.mark.parametrize(
    ("method", "is_cached"),
    [
        ({}, True),
        ({"training__precision": "bf16"}, True),
        ({"preset": "ssa-hybrid"}, True),
        ({"training__load_best_model_at_end": True}, True),
        ({"model__layer_mix__kind": "mean-all"}, False),
        ({"preset": "blur-bert", "model__blur__learnable": "layer", "model__blur__sigma": 0.5}, False),
    ],
    ids=["bert", "bf16", "token labels", "best", "layer mix", "learnt blur"],
)
def test_validation_rows_are_encoded_once_and_scored_as_before(run, monkeypatch, method, is_cached):
    options = FROZEN | {"training__eval_strategy": "epoch"} | method
    cached, calls = run("cached", **options)
    rows = len(calls.parts.evaluator.splits["validation"])
    # After each epoch; the best weights are scored once more.
    evaluations = FROZEN["training__num_train_epochs"] + ("training__load_best_model_at_end" in method)
    others = calls.evaluated - (rows if is_cached else evaluations * rows)
    monkeypatch.setattr(building, "evaluation_caches", lambda *_, **__: {})
    anew, calls = run("anew", **options)
    assert calls.evaluated == others + evaluations * rows
    first, second = ((folder / "predictions_validation.csv").read_text() for folder in (cached, anew))
    assert first == second
    assert [line.get("validation") for line in log_of(cached)] == [line.get("validation") for line in log_of(anew)]


def test_states_of_validation_rows_beyond_the_limit_are_not_kept(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    model, tokenizer = build(tiny("bert"))
    features = {
        name: encode_rows(rows_of([FIRST] * count), tokenizer, max_length=24)
        for name, count in (("train", 3), ("validation", 2), ("validation_other", 2))
    }
    sizes = {name: states_bytes(model, one) for name, one in features.items()}
    splits = ("validation", "validation_other")
    assert evaluation_caches(model, features, splits, frozen=None) == {}, "the encoder is not frozen"
    model.freeze_encoder()
    frozen = FrozenStates(model=model, features=features["train"], pad_token_id=0, accelerator=None)
    assert list(evaluation_caches(model, features, splits, frozen=frozen)) == list(splits)
    monkeypatch.setattr(frozen_module, "LIMIT_BYTES", sizes["train"] + sizes["validation"])
    assert list(evaluation_caches(model, features, splits, frozen=frozen)) == ["validation"]


@pytest.mark.integration
def test_in_bf16_they_are_what_bf16_gives(run, monkeypatch: pytest.MonkeyPatch) -> None:
    options = EXACT | {"training__precision": "bf16"}
    kept, calls = run("kept", **options)
    _, exact_calls = run("exact", **EXACT)
    half_SD, exact_SD = (found.parts.frozen.hidden_SD for found in (calls, exact_calls))
    assert 1e-3 < (half_SD.float() - exact_SD).abs().max() < 0.2
    monkeypatch.setattr(frozen_module, "LIMIT_BYTES", 0)
    anew, _ = run("anew", **options)
    assert losses_of(kept) == pytest.approx(losses_of(anew), abs=5e-3)


def test_hidden_states_of_one_layer_are_refused_by_a_mix_of_several(tiny: Tiny) -> None:
    settings = load_config(overrides={"model.layer_mix.kind": "mean-all"}).model
    model, tokenizer = build(tiny("bert"), settings=settings)
    inputs = tokenizer([FIRST], return_tensors="pt")
    with pytest.raises(ValueError, match="this model's layer mix needs all layers"):
        model(**inputs, encoded_BTD=torch.zeros(1, inputs["input_ids"].shape[1], 32))
