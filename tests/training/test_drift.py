"""What changed between two commands - rows, tokenizer, encoder, order of labels - is refused or makes no difference."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

import attentune
from attentune.config import load_config
from attentune.errors import CheckpointError
from attentune.inference.predictor import Predictor
from attentune.runs.progress import ComparisonProgress
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from attentune.training.tasks import train_tasks
from helpers.glue_samples import write_cs224n
from helpers.interrupted import assert_same, die_after_step, outcome, train_in
from helpers.samples import settings, write_reviews

pytestmark = pytest.mark.integration

STARS = ("awful", "poor", "fine", "good", "lovely")


@pytest.fixture
def encoder(tiny: Callable[..., Path], tmp_path: Path) -> Path:
    """An encoder of one's own, to be changed."""
    return Path(shutil.copytree(tiny("bert", layers=2, hidden=16), tmp_path / "encoder"))


# The order of labels


def write_stars(path: Path, rows: list[tuple[str, str]]) -> Path:
    path.write_text("\n".join(["text,label", *map(",".join, rows)]) + "\n")
    return path


def star_rows(count: int, seed: int) -> list[tuple[str, str]]:
    draw = random.Random(seed)
    words = ("the", "film", "was", "very", "story", "music", "town")
    names = [*STARS, *(draw.choice(STARS) for _ in range(count - len(STARS)))]
    return [(" ".join([*draw.choices(words, k=4), f"{name} {draw.choice(STARS)}"]), name) for name in names]


def test_labels_in_another_order_in_a_new_file_give_the_same_score(encoder: Path, tmp_path: Path) -> None:
    """100 of the 120 orders in which five classes can come; in half of the files some class does not come at all."""
    train_file = write_stars(tmp_path / "train.csv", star_rows(60, 1))
    values = settings(tmp_path, encoder, data__train_file=str(train_file), data__validation_file=str(train_file))
    train(load_config(overrides={**values, "training.num_train_epochs": 3}), display=ProgressDisplay(quiet=True))
    saved, rows = Predictor.load(tmp_path / "run"), star_rows(40, 2)
    found: dict[int, set[str]] = {0: set(), 1: set()}
    for number, order in enumerate(random.Random(0).sample(list(permutations(STARS)), 100)):
        kept = [row for row in rows if number % 2 == 0 or row[1] != "fine"]
        mine = sorted(kept, key=lambda row, order=order: order.index(row[1]))
        file = write_stars(tmp_path / "new.csv", mine)
        config = load_config(overrides={"data.test_file": str(file)}).data
        evaluator = saved.evaluator(saved.data(config, ["test"]))
        scores = evaluator.score(["test"])["test"]
        found[number % 2].add(json.dumps(scores))
        predicted = [saved.label_space.names[place] for place in evaluator.logits["test"].argmax(axis=1)]
        right = np.mean([name == row[1] for name, row in zip(predicted, mine, strict=True)])
        assert scores["accuracy"] == pytest.approx(right)
    assert [len(scores) for scores in found.values()] == [1, 1]


# A run that is resumed


def killed_run(folder: Path, encoder: Path, step: int = 5) -> None:
    die_after_step(step, lambda: train_in(folder, encoder))


def swap_words(encoder: Path, *pairs: tuple[str, str]) -> None:
    """Give words each other's numbers in a tokenizer."""
    file = encoder / "tokenizer.json"
    content = json.loads(file.read_text())
    vocab = content["model"]["vocab"]
    for first, second in pairs:
        vocab[first], vocab[second] = vocab[second], vocab[first]
    file.write_text(json.dumps(content))


def change_config(encoder: Path, **values: Any) -> None:
    file = encoder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def test_another_tokenizer_is_refused(encoder: Path, tmp_path: Path) -> None:
    """As many words, other numbers: nothing else would tell."""
    killed_run(tmp_path, encoder)
    swap_words(encoder, ("film", "movie"))
    message = r"run: cannot be resumed: the tokens that the tokenizer makes of them \(train, validation\) changed since"
    with pytest.raises(CheckpointError, match=message):
        train_in(tmp_path, encoder, resume=True)
    swap_words(encoder, ("film", "movie"))
    train_in(tmp_path, encoder, resume=True)


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("hidden_act", "relu", "was 'gelu', now 'relu'"),
        ("num_attention_heads", 2, "was 4, now 2"),
        ("hidden_dropout_prob", 0.4, "was 0.1, now 0.4"),
        ("num_hidden_layers", 1, "was 2, now 1"),
    ],
)
def test_other_settings_of_the_encoder_are_refused(encoder, tmp_path, name, value, told):
    """The weights fit all of these, or what is left of them."""
    killed_run(tmp_path, encoder)
    change_config(encoder, **{name: value})
    with pytest.raises(CheckpointError, match=rf"the encoder \(.*{name}: {re.escape(told)}"):
        train_in(tmp_path, encoder, resume=True)


def test_other_weights_in_the_encoder_s_layers_make_no_difference(encoder: Path, tmp_path: Path) -> None:
    """A resumed run has all weights from its checkpoint, but for rows of the word table that it does not train; another
    table is refused, see tests/cli/test_mistakes.py."""
    train_in(tmp_path / "whole", encoder)
    killed_run(tmp_path, encoder)
    weights = load_file(encoder / "model.safetensors")
    changed = {name: weight + 1 if "layer.1" in name else weight for name, weight in weights.items()}
    save_file(changed, encoder / "model.safetensors", metadata={"format": "pt"})
    train_in(tmp_path, encoder, resume=True)
    assert_same(outcome(tmp_path / "run"), outcome(tmp_path / "whole" / "run"))


def test_another_tokenizer_under_tasks_that_share_an_encoder_is_refused(encoder: Path, tmp_path: Path) -> None:
    values = settings(tmp_path, encoder, training__multi_task=True, training__save_steps=1)
    values = {name: value for name, value in values.items() if not name.endswith("_file")}
    values |= {"data.tasks": "sst5,sts", "data.data_dir": str(write_cs224n(tmp_path / "cs224n"))}
    config = load_config(overrides=values)
    die_after_step(3, lambda: train_tasks(config, display=ProgressDisplay(quiet=True)))
    swap_words(encoder, ("film", "movie"))
    resumed = load_config(overrides={**values, "training.resume": True})
    with pytest.raises(CheckpointError, match=r"sst5: the tokens .*; sts: the tokens .* changed since it was begun"):
        train_tasks(resumed, display=ProgressDisplay(quiet=True))


# Comparisons and searches


def small(folder: Path, encoder: Path) -> dict[str, Any]:
    given = settings(folder, encoder, training__num_train_epochs=1, training__max_steps=1)
    return {
        name: value for name, value in given.items() if name not in ("training.output_dir", "training.learning_rate")
    }


@pytest.mark.parametrize("kind", ["comparison", "search"])
def test_rows_and_encoders_that_changed_under_comparisons_and_searches_are_refused(encoder, tmp_path, kind):
    folder, options = tmp_path / kind, {"jobs": 1, "display": ComparisonProgress(quiet=True)}
    options["overrides"] = small(tmp_path, encoder)

    def begin(more: int = 0) -> Any:
        """The records of a comparison of so many more seeds, or the scores of a search."""
        if kind == "comparison":
            return attentune.compare(folder, presets=["bert"], seeds=tuple(range(1, 2 + more)), **options)
        space = {"training.learning_rate": [1e-3, 2e-3]}
        found = attentune.search(folder, space=space, trials=1, sampler="random", train_best=False, **options)
        return [trial.scores for trial in found.trials]

    def refused(told: dict[str, str]) -> None:
        with pytest.raises(CheckpointError, match=told[kind]):
            begin(1)

    before, train_file, tokenizer = begin(), tmp_path / "train.csv", encoder / "tokenizer.json"
    rows, words = train_file.read_text(), tokenizer.read_bytes()
    write_reviews(train_file, seed=9)
    rows_of_search = r"was begun as another search.*: train rows of train.csv: was '"
    refused({"comparison": "comparison: the train rows changed since it was begun", "search": rows_of_search})
    if kind == "comparison":
        assert begin() == before, "what is recorded is shown"
    train_file.write_text(rows)
    swap_words(encoder, ("film", "movie"))
    of_search = r"was begun as another search.*: encoder .*: was '"
    refused({"comparison": f"comparison: the encoder {encoder} changed since it was begun", "search": of_search})
    tokenizer.write_bytes(words)
    assert begin(1)[:1] == before[:1]
