"""Verdicts from records, with the numbers computed by hand, and notes about records that do not match."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from attentune.errors import CheckpointError, ConfigError
from attentune.metrics.intervals import baseline_score, example_values
from attentune.metrics.metrics import METRICS
from attentune.report.analysis import Verdicts, _example_values, compare_methods
from attentune.report.load import recorded_runs
from attentune.report.tables import further_table
from attentune.runs.records import Predictions, RecordStore, Run, read_predictions
from attentune.seeding import numpy_generator
from attentune.stats.compare import Runs, compare_all
from attentune.stats.paired_tests import jackknife_values
from helpers.made_records import predictions, write_comparison, write_record

CHANCES = {"bert": 0.6, "good": 0.85, "same": 0.6}


def verdicts_of(folder: Path, baseline: str | None = None) -> Verdicts:
    return compare_methods(recorded_runs(folder, RecordStore(folder).records()), baseline)


@pytest.mark.parametrize("metric", METRICS)
def test_example_values_have_the_metric_as_their_mean_and_are_those_of_leaving_each_out(metric: str) -> None:
    draw = numpy_generator("by-example", metric)
    if METRICS[metric].needs == "an order":
        labels, given = draw.random(40), draw.random(40).round(1)
    elif METRICS[metric].needs == "sets":
        labels, given = draw.integers(2, size=(40, 3)), draw.integers(2, size=(40, 3))
    else:
        labels, given = draw.integers(2, size=40), draw.integers(2, size=40)
    found = example_values(metric, labels, given)
    score = METRICS[metric].score
    assert found.mean() == pytest.approx(score(labels, given), abs=1e-12)
    if metric not in ("accuracy", "mean_absolute_error", "mean_squared_error", "subset_accuracy", "hamming_loss"):
        plain = jackknife_values(lambda rows: score(labels[rows], given[rows]), 40)
        assert found == pytest.approx(plain, abs=1e-9)


@pytest.mark.parametrize(
    ("metric", "labels", "regression", "expected"),
    [
        ("accuracy", [0, 1, 1, 1], False, 0.75),
        ("f1", [0, 1, 1, 1], False, 6 / 7),
        ("f1", [0, 0, 0, 1], False, 0.0),
        ("matthews_correlation", [0, 1, 1, 1], False, 0.0),
        ("pearson", [0.0, 1.0, 3.0], True, 0.0),
        ("mean_absolute_error", [0.0, 1.0, 5.0], True, 5 / 3),
        ("mean_squared_error", [0.0, 2.0, 4.0], True, 8 / 3),
    ],
)
def test_baseline_scores(metric, labels, regression, expected):
    assert baseline_score(metric, np.array(labels), is_regression=regression) == pytest.approx(expected)


@pytest.mark.integration
def test_verdicts_are_those_of_the_statistics_on_the_same_numbers(tmp_path):
    write_comparison(tmp_path, CHANCES, tasks=("rte", "sst2"))
    found = verdicts_of(tmp_path)
    assert found.baseline == "bert"
    assert [(one.task, one.method) for one in found.comparisons] == [
        (task, method) for task in ("rte", "sst2") for method in ("good", "same")
    ]
    runs = []
    for task in ("rte", "sst2"):
        for method in CHANCES:
            scores, examples = {}, {}
            for seed in (1, 2, 3):
                read = read_predictions(tmp_path / f"records/{task}/all/{method}/seed-{seed}.validation.csv")
                examples[seed] = read.labels_N == read.predictions_N
                scores[seed] = float(examples[seed].mean())
            guess = max(np.bincount(read.labels_N)) / len(read.labels_N)
            runs.append(Runs(method, task, "accuracy", scores, examples, majority_score=guess))
    expected = compare_all(runs, "bert")
    assert [one.sentence for one in found.comparisons] == [one.sentence for one in expected]
    assert found.comparisons[0].p_holm == pytest.approx(expected[0].p_holm)
    assert "good beats bert on rte by" in found.text()
    assert "no difference shown between same and bert on rte" in found.text()
    cell = next(cell for cell in found.cells if (cell.task, cell.method) == ("sst2", "good"))
    assert found.comparison(cell) is found.comparisons[2]
    assert verdicts_of(tmp_path, "good").comparisons[0].sentence.startswith("bert is worse than good on rte")


def test_each_size_is_compared_separately_and_a_task_without_the_baseline_is_left_out(tmp_path):
    write_comparison(tmp_path, CHANCES, sizes=(1000, None, 250))
    found = verdicts_of(tmp_path)
    assert [cell.size for cell in found.cells[::3]] == ["250", "1000", "all"]
    assert [one.task for one in found.comparisons[::2]] == ["rte (250 rows)", "rte (1,000 rows)", "rte (all rows)"]
    assert {one.family for one in found.comparisons} == {6}
    # A task without the baseline is noted and left out.
    tmp_path = tmp_path.parent / f"{tmp_path.name}-2"
    tmp_path.mkdir()
    write_comparison(tmp_path, CHANCES)
    write_comparison(tmp_path, {"good": 0.8}, tasks=("sst2",))
    found = verdicts_of(tmp_path, "bert")
    assert {one.task for one in found.comparisons} == {"rte"}
    assert found.notes == ("sst2: bert has no score on this task, so no method is compared with it.",)


def test_notes_name_failed_and_collapsed_runs_and_missing_scores(tmp_path):
    write_comparison(tmp_path, CHANCES)
    failed = write_record(tmp_path, Run("rte", None, "same", 3), None, score=None)
    failed = dataclasses.replace(failed, status="failed", metric=None, scores={}, error={"kind": "E", "message": "m"})
    (tmp_path / "records/rte/all/same/seed-3.json").write_text(failed.to_json())
    file = tmp_path / "records/rte/all/good/seed-1.validation.csv"
    labels = [line.split(",")[1] for line in file.read_text().splitlines()[1:]]
    common = max(("no", "yes"), key=labels.count)
    rows = predictions(labels, [common] * len(labels), ("no", "yes"))
    write_record(tmp_path, Run("rte", None, "good", 1), rows, score=labels.count(common) / len(labels))
    text = verdicts_of(tmp_path).text()
    assert "1 of 3 runs of good score no better than a constant answer" in text
    assert "Left out, because only one of the two methods has a score: seed 3." in text


def test_without_predictions_or_with_other_examples_the_verdict_is_over_seeds(tmp_path):
    write_comparison(tmp_path / "a", CHANCES)
    for file in (tmp_path / "a/records/rte/all").rglob("*.csv"):
        file.unlink()
    found = verdicts_of(tmp_path / "a")
    assert {one.over for one in found.comparisons} == {"seeds"}
    write_comparison(tmp_path / "b", CHANCES)
    file = tmp_path / "b/records/rte/all/good/seed-2.validation.csv"
    file.write_text(file.read_text().replace("r17,", "x17,"))
    found = verdicts_of(tmp_path / "b")
    assert {one.over for one in found.comparisons} == {"seeds"}
    assert found.notes == (
        "rte: the runs were not all scored on the same examples, so the verdict covers the variation over seeds only.",
    )


def test_an_undefined_score_counts_as_the_guess(tmp_path):
    draw = numpy_generator("undefined")
    labels = [f"{value:.3f}" for value in draw.random(30)]
    for method in ("bert", "flat"):
        for seed in (1, 2, 3):
            given = [f"{float(x) + 0.2 * draw.random():.4g}" for x in labels] if method == "bert" else ["1"] * 30
            rows = predictions(labels, given, ())
            values = np.array([[float(row[1]), float(row[2])] for row in rows[1:]])
            score = METRICS["pearson"].score(values[:, 0], values[:, 1])
            write_record(
                tmp_path,
                Run("stsb", None, method, seed),
                rows,
                metric="pearson",
                score=None if method == "flat" else score,
            )
    verdicts = verdicts_of(tmp_path)
    (found,) = verdicts.comparisons
    flat = verdicts.to_dict()["cells"][1]
    assert (flat["mean"], flat["std"], flat["n"], flat["scores"]["1"]) == (0.0, 0.0, 3, None)
    assert (found.method_mean, found.over) == (0.0, "seeds")


def write_two_metrics(folder: Path, *, sizes=(None,), splits=("validation",)) -> None:
    """Write runs with accuracy and F1 on each split; "good" is better on the first split, "same" nowhere."""
    for method, chance in {"bert": 0.6, "good": 0.85, "same": 0.6}.items():
        for size in sizes:
            for seed in range(1, 6):
                scores, files = {}, {}
                for place, split in enumerate(splits):
                    draw = numpy_generator("two-metrics", method, size or 0, seed, split)
                    labels = numpy_generator("labels", split).integers(2, size=200)
                    right = draw.random(200) < (chance if place == 0 else 0.7)
                    given = np.where(right, labels, 1 - labels)
                    values = {name: METRICS[name].score(labels, given) for name in ("accuracy", "f1")}
                    scores[split] = values
                    files[split] = f"seed-{seed}.{split}.csv"
                    names = np.array(["no", "yes"])
                    rows = predictions(list(names[labels]), list(names[given]), ("no", "yes"))
                    file = folder / f"records/mrpc/{size or 'all'}/{method}/{files[split]}"
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_text("".join(",".join(row) + "\n" for row in rows))
                run, first = Run("mrpc", size, method, seed), scores[splits[0]]["accuracy"]
                write_record(folder, run, None, score=first, scores=scores, predictions=files)


def test_further_metrics_and_splits_are_means_over_seeds(tmp_path):
    write_two_metrics(tmp_path, sizes=(250, None), splits=("validation_matched", "validation_mismatched"))
    found = verdicts_of(tmp_path)
    table = further_table(found)
    assert table is not None
    assert table.header == ("task", "split", "metric", "bert", "good", "same")
    expected = []
    for size, title in (("250", "mrpc, 250 rows"), ("all", "mrpc, all rows")):
        for split, metric, name in (
            ("validation_matched", "f1", "F1"),
            ("validation_mismatched", "accuracy", "accuracy"),
            ("validation_mismatched", "f1", "F1"),
        ):
            means = []
            for method in CHANCES:
                scores = []
                for seed in range(1, 6):
                    record = json.loads((tmp_path / f"records/mrpc/{size}/{method}/seed-{seed}.json").read_text())
                    scores.append(record["scores"][split][metric])
                means.append(f"{100 * sum(scores) / len(scores):.1f}")
            expected.append((title, split, name, *means))
    assert list(table.rows) == expected


def test_invalid_baselines_and_predictions_are_refused(tmp_path):
    write_comparison(tmp_path, CHANCES)
    with pytest.raises(ConfigError, match=r"--baseline: got 'godo', expected one of bert, good, same\. Did you mean"):
        verdicts_of(tmp_path, "godo")
    file = tmp_path / "records/rte/all/good/seed-2.validation.csv"
    whole = file.read_text()
    for text in (whole.replace("yes", "maybe", 2), whole.replace("label", "labels", 1), "", "id,label,prediction\n"):
        file.write_text(text)
        with pytest.raises(CheckpointError, match=r"seed-2\.validation\.csv: holds no predictions with labels"):
            verdicts_of(tmp_path)


@pytest.mark.parametrize(
    ("metric", "level", "spread"), [("spearmanr", 2.38, 3e-5), ("pearson", 2.38, 3e-5), ("pearson", -9.1, 2e-4)]
)
def test_values_by_example_have_the_recorded_score_as_their_mean(metric, level, spread):
    """A model that predicts nearly the same for all rows: six saved digits tie ranks and move its correlation."""
    draw = np.random.default_rng(0)
    labels_N = draw.random(200)
    exact_N = level + spread * (0.1 * labels_N + draw.random(200))
    saved_N = np.array([float(f"{value:g}") for value in exact_N])
    score, from_file = (float(example_values(metric, labels_N, made).mean()) for made in (exact_N, saved_N))
    assert abs(score - from_file) > 1e-4
    read = Predictions(tuple(map(str, range(200))), (), labels_N, saved_N)
    values_N = _example_values(metric, read, score)
    assert values_N.mean() == pytest.approx(score)
