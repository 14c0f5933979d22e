"""What changed between two commands - rows, tokenizer, encoder, order of labels - is refused or makes no difference."""

from __future__ import annotations

import csv
import json
import random
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
from attentune.runs.records import RecordStore
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from attentune.training.tasks import train_tasks
from helpers.interrupted import assert_same, at_steps, ending, forked, outcome, train_in
from helpers.samples import settings, write_reviews

pytestmark = pytest.mark.integration

STARS = ("awful", "poor", "fine", "good", "lovely")
KILL = 9


@pytest.fixture
def encoder(tiny: Callable[..., Path], tmp_path: Path) -> Path:
    """An encoder of one's own, to be changed."""
    return Path(shutil.copytree(tiny("bert", layers=2, hidden=16), tmp_path / "encoder"))


# The order of labels


def write_stars(path: Path, rows: list[tuple[str, str]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([("text", "label"), *rows])
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
    assert ending(forked(lambda: train_in(folder, encoder), at_steps({step: [KILL]}))) == -KILL


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
    ("changes", "told"),
    [
        ({"hidden_act": "relu"}, r"the encoder \(hidden_act: was 'gelu', now 'relu'\)"),
        ({"num_attention_heads": 2}, r"the encoder \(num_attention_heads: was 4, now 2\)"),
        ({"hidden_dropout_prob": 0.4}, r"the encoder \(hidden_dropout_prob: was 0\.1, now 0\.4\)"),
        ({"num_hidden_layers": 1}, r"the encoder \(.*num_hidden_layers: was 2, now 1"),
    ],
)
def test_other_settings_of_the_encoder_are_refused(
    encoder: Path, tmp_path: Path, changes: dict[str, Any], told: str
) -> None:
    """The weights fit all of these, or what is left of them."""
    killed_run(tmp_path, encoder)
    change_config(encoder, **changes)
    with pytest.raises(CheckpointError, match=told):
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
    from helpers.glue_samples import write_cs224n

    values = {
        "data.tasks": "sst5,sts",
        "data.data_dir": str(write_cs224n(tmp_path / "cs224n")),
        "model.name_or_path": str(encoder),
        "training.output_dir": str(tmp_path / "run"),
        "training.multi_task": True,
        "data.max_length": 32,
        "training.save_steps": 1,
        "training.use_cpu": True,
    }
    config = load_config(overrides=values)
    assert (
        ending(forked(lambda: train_tasks(config, display=ProgressDisplay(quiet=True)), at_steps({3: [KILL]}))) == -KILL
    )
    swap_words(encoder, ("film", "movie"))
    resumed = load_config(overrides={**values, "training.resume": True})
    with pytest.raises(CheckpointError, match=r"sst5: the tokens .*; sts: the tokens .* changed since it was begun"):
        train_tasks(resumed, display=ProgressDisplay(quiet=True))


# Comparisons and searches


def small(folder: Path, encoder: Path) -> dict[str, Any]:
    given = settings(folder, encoder, training__num_train_epochs=1, training__max_steps=1)
    return {name: value for name, value in given.items() if name != "training.output_dir"}


def test_rows_and_encoders_that_changed_under_a_comparison_are_refused(encoder: Path, tmp_path: Path) -> None:
    folder, given = tmp_path / "comparison", small(tmp_path, encoder)

    def compare(*seeds: int) -> list[Any]:
        quiet = ComparisonProgress(quiet=True)
        return attentune.compare(folder, presets=["bert"], seeds=seeds, jobs=1, overrides=given, display=quiet)

    before = compare(1)
    train_file, manifest = tmp_path / "train.csv", (folder / "compare.json").read_text()
    rows = train_file.read_text()
    write_reviews(train_file, seed=9)
    with pytest.raises(CheckpointError, match="comparison: the train rows changed since it was begun, so new"):
        compare(1, 2)
    assert compare(1) == before  # what is recorded is shown
    train_file.write_text(rows)
    tokenizer = (encoder / "tokenizer.json").read_bytes()
    swap_words(encoder, ("film", "movie"))
    with pytest.raises(CheckpointError, match=f"comparison: the encoder {encoder} changed since it was begun"):
        compare(1, 2)
    (encoder / "tokenizer.json").write_bytes(tokenizer)
    assert (folder / "compare.json").read_text() == manifest
    assert len(compare(1, 2)) == len(RecordStore(folder).records()) == 2


def test_rows_and_encoders_that_changed_under_a_search_are_refused(encoder: Path, tmp_path: Path) -> None:
    given = small(tmp_path, encoder)
    del given["training.learning_rate"]

    def search() -> Any:
        space, quiet = {"training.learning_rate": [1e-3, 2e-3]}, ComparisonProgress(quiet=True)
        return attentune.search(
            tmp_path / "search",
            space=space,
            trials=1,
            overrides=given,
            jobs=1,
            display=quiet,
            sampler="random",
            train_best=False,
        )

    first = search()
    rows = (tmp_path / "train.csv").read_text()
    write_reviews(tmp_path / "train.csv", seed=9)
    with pytest.raises(CheckpointError, match=r"was begun as another search.*: train rows of train.csv: was '"):
        search()
    (tmp_path / "train.csv").write_text(rows)
    config = (encoder / "config.json").read_bytes()
    change_config(encoder, hidden_act="relu")
    with pytest.raises(CheckpointError, match=r"was begun as another search.*: encoder .*: was '"):
        search()
    (encoder / "config.json").write_bytes(config)
    assert [trial.scores for trial in search().trials] == [trial.scores for trial in first.trials]
