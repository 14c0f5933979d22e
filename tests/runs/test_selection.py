"""The best trial by its score, and by the rule of three parts against a plain reference."""

from __future__ import annotations

import csv
import math
import random
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from sklearn.metrics import f1_score

from attentune.data.splits import stratified_folds
from attentune.runs.records import Predictions, read_predictions
from attentune.runs.search_plan import part_scores, prediction_loss
from attentune.runs.search_settings import SelectionCriterion
from attentune.runs.study import TrialOutcome, ranked


def predictions(folder: Path, labels: list[str], predicted: list[str], names: list[str] | None = None) -> Predictions:
    """Read back what is written as `predictions_csv` writes it."""
    file = folder / "predictions.csv"
    with file.open("w", newline="") as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(["id", "label", "prediction", *(f"p_{name}" for name in names or [])])
        for number, (label, guess) in enumerate(zip(labels, predicted, strict=True)):
            writer.writerow([f"r{number}", label, guess, *(["0.5"] * len(names or []))])
    return read_predictions(file)


@pytest.mark.parametrize(("rows", "classes"), [(3, 2), (10, 2), (100, 3), (31, 5)])
def test_parts_are_even_and_stratified_and_hold_each_row_once(rows, classes):
    labels = np.random.default_rng(rows).integers(0, classes, rows)
    parts = stratified_folds(labels, 3, 42)
    assert sorted(np.concatenate(parts).tolist()) == list(range(rows))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    for label in range(classes):
        counts = [int((labels[part] == label).sum()) for part in parts]
        assert max(counts) - min(counts) <= 1
    again, other = stratified_folds(labels, 3, 42), stratified_folds(labels, 3, 43)
    assert all((one == two).all() for one, two in zip(parts, again, strict=True))
    if rows > 10:
        assert any(len(one) != len(two) or (one != two).any() for one, two in zip(parts, other, strict=True))


def test_the_rule_of_three_parts_against_a_plain_reference(tmp_path):
    draw, names = random.Random(3), ["good", "bad"]  # as ids: not in the order of the alphabet
    labels = [draw.choice(names) for _ in range(61)]
    guesses = [label if draw.random() < 0.7 else draw.choice(names) for label in labels]
    ids = np.array([names.index(label) for label in labels])
    found = part_scores(predictions(tmp_path, labels, guesses, names), "f1", 42)
    expected = [
        f1_score([labels[place] == "bad" for place in part], [guesses[place] == "bad" for place in part])
        for part in stratified_folds(ids, 3, 42)
    ]
    assert found == pytest.approx(expected)
    mean = sum(expected) / 3
    std = math.sqrt(sum((score - mean) ** 2 for score in expected) / 2)
    assert SelectionCriterion("three-parts", 1.0, "f1").value(found) == pytest.approx(mean - std)
    assert SelectionCriterion("three-parts", 2.5, "f1").value(found) == pytest.approx(mean - 2.5 * std)
    assert SelectionCriterion("score", 1.0, "f1").value(found) == pytest.approx(mean)
    # Lower errors are better, so the spread is added.
    assert SelectionCriterion("three-parts", 1.0, "mean_squared_error").value(found) == pytest.approx(mean + std)


def test_scores_of_regressions_are_read_as_numbers(tmp_path):
    rng = np.random.default_rng(5)
    labels = rng.uniform(0, 5, 40).round(2)
    guesses = (labels + rng.normal(0, 1, 40)).round(3)
    found = part_scores(predictions(tmp_path, [*map(str, labels)], [*map(str, guesses)]), "pearson", 1)
    parts = stratified_folds(labels, 3, 1)
    assert found == pytest.approx([stats.pearsonr(labels[part], guesses[part]).statistic for part in parts])
    constant = part_scores(predictions(tmp_path, [*map(str, labels)], ["1"] * 40), "pearson", 1)
    assert SelectionCriterion("three-parts", 1.0, "pearson").value(constant) is None


def test_steadier_goes_before_higher():
    shaky, steady = (0.9, 0.6, 0.75), (0.72, 0.73, 0.74)
    by_score, by_parts = SelectionCriterion(), SelectionCriterion("three-parts")
    assert by_score.value(shaky) > by_score.value(steady)  # type: ignore[operator]
    assert by_parts.value(shaky) < by_parts.value(steady)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "id,label,prediction,p_good,p_bad\na,good,good,0.9,0.1\nb,bad,good,0.7,0.3\nc,bad,bad,0.0,1.0\n",
            -(math.log(0.9) + math.log(0.3) + math.log(1 - 1e-6)) / 3,
        ),
        # Wrong and sure: large, but finite.
        ('"id","label","prediction","p_good","p_bad"\n"a","bad","good","1.0","0.0"\n', -math.log(1e-6)),
        (
            "id,labels,predictions,p_red,p_blue\na,red,red|blue,0.9,0.6\nb,,,0.2,0.1\n",
            -(math.log(0.9) + math.log(0.4) + math.log(0.8) + math.log(0.9)) / 4,
        ),
        ("id,label,prediction\na,1.5,1.25\n", None),
    ],
)
def test_the_loss_of_predictions_against_a_plain_reference(tmp_path, text, expected):
    (tmp_path / "predictions.csv").write_text(text)
    assert prediction_loss(tmp_path / "predictions.csv") == (None if expected is None else pytest.approx(expected))


def test_ranking_by_value_then_loss_then_status():
    def trial(number: int, value: float | None, status: str = "done") -> TrialOutcome:
        return TrialOutcome(f"trial-{number}", {}, {}, status, value=value)

    trials = [trial(0, 0.8), trial(1, 0.855), trial(2, None, "failed"), trial(3, 0.855), trial(4, 0.9), trial(5, 0.855),
              trial(6, None, "pruned")]  # fmt: skip
    losses, asked = {"trial-1": 0.6, "trial-3": 0.5}, []

    def loss(one: TrialOutcome) -> float | None:
        asked.append(one.name)
        return losses.get(one.name)

    def order(criterion: SelectionCriterion, **options: object) -> list[int]:
        return [int(one.name[-1]) for one in ranked(trials, criterion, **options)]

    assert order(SelectionCriterion(), loss=loss) == [4, 3, 1, 5, 0, 6, 2]
    assert asked == ["trial-1", "trial-3", "trial-5"]  # predictions are read only where scores are equal
    assert order(SelectionCriterion()) == [4, 1, 3, 5, 0, 6, 2]
    assert order(SelectionCriterion(metric="mean_absolute_error")) == [0, 1, 3, 5, 4, 6, 2]
