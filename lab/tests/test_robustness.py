"""How far scores fall when texts are changed: numbers, intervals, command."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from attentune.config import load_config
from attentune.inference.predictor import Predictor
from attentune.training.progress import ProgressDisplay
from attentune.training.train import train
from attentune_lab.robustness import PERTURBATIONS, stress
from helpers.samples import settings

Tiny = Callable[..., Path]
Command = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def runs(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A trained run and one that has hardly been trained, on the same rows."""
    folder = tmp_path_factory.mktemp("stress")
    for name, epochs in (("good", 12), ("poor", 0.2)):
        overrides = settings(
            folder, tiny("bert"), training__num_train_epochs=epochs, training__output_dir=str(folder / name)
        )
        train(load_config(overrides=overrides), display=ProgressDisplay(quiet=True))
    return folder / "good", folder / "poor"


def test_scores_and_falls_are_those_of_evaluating_the_changed_rows(runs: tuple[Path, Path]) -> None:
    saved = Predictor.load(runs[0])
    data = saved.data(None, ("validation",))
    training = saved.data(None, ("train",)).splits["train"]
    report = stress([saved], data, training_rows=training, resamples=50)
    as_they_are = saved.evaluator(data).score(("validation",))["validation"]["accuracy"]
    assert report.original[0].value == pytest.approx(as_they_are)
    assert as_they_are > 0.6  # else there is nothing to fall
    singles = [kind for kind in PERTURBATIONS if not kind.needs_pairs]
    assert [line.name for line in report.changes] == [kind.name for kind in singles]
    for kind, line in zip(singles, report.changes, strict=True):
        rows = kind.change(data.splits["validation"], 42, frozenset(report.label_indicative_words))
        changed = type(data)(data.name, data.label_space, data.metrics, {"validation": rows})
        score = saved.evaluator(changed).score(("validation",))["validation"]["accuracy"]
        assert line.scores[0].value == pytest.approx(score)
        assert line.falls[0].value == pytest.approx(as_they_are - score)
        assert line.falls[0].low <= line.falls[0].value <= line.falls[0].high
        assert line.difference is None


def test_removing_the_label_indicative_words_lowers_the_score(runs: tuple[Path, Path]) -> None:
    saved = Predictor.load(runs[0])
    report = stress([saved], saved.data(None, ("train",)), resamples=200)  # rows that it has learnt
    assert {"good", "bad"} & set(report.label_indicative_words)
    line = next(line for line in report.changes if line.name == "label-indicative words removed")
    assert line.falls[0].low > 0


def test_parts_take_each_row_once(runs: tuple[Path, Path]) -> None:
    saved = Predictor.load(runs[0])
    report = stress([saved], saved.data(None, ("validation",)), resamples=20)
    assert sum(line.rows for line in report.parts) == 20
    assert all(line.name.startswith("length") for line in report.parts)
    assert sum(line.rows * line.scores[0].value for line in report.parts) == pytest.approx(
        20 * report.original[0].value
    )


def test_two_runs_stand_side_by_side(runs: tuple[Path, Path], attentune: Command) -> None:
    status, out, err = attentune("stress", *runs, "--format", "json")
    assert status == 0
    report = json.loads(out)
    assert "scoring the rows: typos" in err
    for line in report["changes"]:
        first, second = line["falls"]
        assert line["difference"]["value"] == pytest.approx(second["value"] - first["value"])
        assert line["difference"]["low"] <= line["difference"]["value"] <= line["difference"]["high"]
    status, out, _ = attentune("stress", *runs)
    assert status == 0
    for text in ("drop of run 1", "difference", "length low", "Label-indicative words that were excluded:"):
        assert text in out


def test_mistakes_are_told_in_one_line(runs: tuple[Path, Path], attentune: Command) -> None:
    status, out, err = attentune("stress", *runs, runs[0])
    assert (status, out) == (2, "")
    assert "expected one, or two" in err
    status, out, err = attentune("stress", runs[0], "--split", "nowhere")
    assert (status, out) == (2, "")
    assert "Traceback" not in err
