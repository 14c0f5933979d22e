"""Compare trained models on the same rows: their scores, paired tests over rows, and the rows that changed.

The tests are about these trained models. They say nothing about other seeds: `report.analysis` compares methods.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import wilcoxon

from attentune.config.parse import did_you_mean
from attentune.data.dataset import SEPARATOR
from attentune.errors import CheckpointError, ConfigError
from attentune.metrics.intervals import example_values
from attentune.metrics.metrics import METRICS
from attentune.results import RESULT_FILE, RunResult
from attentune.runs.records import Predictions, read_predictions
from attentune.seeding import numpy_generator
from attentune.stats.compare import holm
from attentune.stats.paired_tests import McNemarResult, mcnemar_test, paired_bootstrap_test

TASK_TYPES = ("classification", "regression", "multi_label")
# Whole numbers with at most this many values are taken for class ids.
_MOST_CLASS_IDS = 20
_DEFAULT_METRICS = {
    "two classes": ("accuracy", "f1", "matthews_correlation"),
    "classes": ("accuracy", "f1_macro"),
    "sets": ("f1_micro", "subset_accuracy"),
    "scores": ("pearson", "spearmanr", "mean_squared_error"),
}


@dataclass(frozen=True)
class ScoredRun:
    name: str  # the name in tables
    file: Path  # the file of predictions
    predictions: Predictions  # the labels and predictions
    metrics: tuple[str, ...] = ()  # the metrics of its record, most important first; empty for a file alone


@dataclass(frozen=True)
class PairTest:
    """The comparison of a model with the first one, on one metric."""

    first: str  # the models' names
    second: str
    metric: str
    first_score: float  # on the common rows; NaN if undefined
    second_score: float
    difference: float  # the advantage of the second model, positive where it is better, also where smaller is better
    low: float  # the 95 % percentile interval over resampled rows
    high: float
    p: float  # of the paired bootstrap over rows, two-sided; NaN if a score is undefined
    p_holm: float  # after Holm's correction over all comparisons of the call
    mcnemar: McNemarResult | None  # for accuracy, McNemar's test
    p_wilcoxon: float  # for errors, Wilcoxon's signed-rank test over rows; else NaN

    @property
    def marks(self) -> str:
        """Return "**" for p after Holm below 0.01, "*" below 0.05, else nothing, as in the SSA paper's table 2."""
        return "**" if self.p_holm < 0.01 else "*" if self.p_holm < 0.05 else ""


@dataclass(frozen=True)
class ChangedRows:
    """Rows of which the second model predicts something else than the first."""

    first: str
    second: str
    better: np.ndarray  # the indices of the rows that only the second model gets right
    worse: np.ndarray  # the rows that only the first model gets right; for scores, that it is nearer to
    both_wrong: np.ndarray  # rows with different wrong predictions; none for scores


@dataclass(frozen=True)
class RunPairs:
    runs: tuple[ScoredRun, ...]  # the models, with their predictions on the common rows, in one order
    tests: tuple[PairTest, ...]  # one for each metric and model but the first
    changed: tuple[ChangedRows, ...]  # one for each model but the first
    notes: tuple[str, ...]  # what was left out, in sentences

    @property
    def ids(self) -> tuple[str, ...]:
        return self.runs[0].predictions.ids

    def text_of(self, run: int, row: int) -> str:
        return _text(self.runs[run].predictions.predictions_N[row], self.runs[run].predictions.names)

    def label_of(self, row: int) -> str:
        return _text(self.runs[0].predictions.labels_N[row], self.runs[0].predictions.names)

    def to_dict(self) -> dict[str, Any]:
        return {
            "rows": len(self.ids),
            "runs": {run.name: str(run.file) for run in self.runs},
            "comparisons": [{**asdict(one), "marks": one.marks} for one in self.tests],
            "changed": [
                {"first": one.first, "second": one.second}
                | {kind: [self.ids[row] for row in getattr(one, kind)] for kind in ("better", "worse", "both_wrong")}
                for one in self.changed
            ],
            "notes": list(self.notes),
        }


def read_run(path: str, *, split: str = "validation", task_type: str | None = None) -> ScoredRun:
    """Read the predictions of a run folder on a split, or a file of predictions.

    A file has the columns id, label and prediction, and optionally p_<class>; without these, numbers with a fraction
    or many values are scores, and everything else is a class.
    """
    place = Path(path)
    if not place.is_dir():
        if not place.is_file():
            raise CheckpointError(
                f"{path}: there is no such file or folder. Expected a run folder or a predictions file."
            )
        return ScoredRun(place.stem, place, read_predictions(place, partial(_find_classes, task_type)))
    file = place / f"predictions_{split}.csv"
    if not file.is_file():
        there = sorted(one.stem.removeprefix("predictions_") for one in place.glob("predictions_*.csv"))
        hint = f" It has those of {', '.join(there)}: name one with --split." if there else ""
        raise CheckpointError(
            f"{path}: has no predictions of the {split} rows ({file.name}).{hint} attentune predict {path} --input_file"
            " ROWS.csv --output_file FILE.csv writes others."
        )
    metrics: tuple[str, ...] = ()
    if (place / RESULT_FILE).is_file():
        scores = RunResult.load(place / RESULT_FILE).scores.get(split, {})
        metrics = tuple(name for name in scores if name in METRICS)
    return ScoredRun(place.resolve().name, file, read_predictions(file), metrics)


def compare_trained_runs(
    runs: Sequence[ScoredRun], *, metrics: Sequence[str] = (), resamples: int = 10_000, seed: int = 0
) -> RunPairs:
    """Compare each model with the first one, on the rows that all of them predict.

    By the paired bootstrap over rows (on pseudo-values for metrics that are not means over rows), with Holm's
    correction over all models and metrics. McNemar's test (accuracy) and Wilcoxon's (errors) are checks.
    """
    if len(runs) < 2:
        raise ConfigError(f"compare: got {len(runs)} run, expected at least two: a baseline and another one.")
    names = [run.name for run in runs]
    # Models of one name are named by their paths.
    paths = [run.file.parent if run.file.stem.startswith("predictions_") else run.file for run in runs]
    clear = [str(path) if names.count(name) > 1 else name for name, path in zip(names, paths, strict=True)]
    aligned, notes = _aligned([replace(run, name=name) for run, name in zip(runs, clear, strict=True)])
    first = aligned[0]
    chosen = _metrics(metrics, first)
    tests = [_test(first, other, name, resamples, seed) for other in aligned[1:] for name in chosen]
    corrected = holm([one.p for one in tests])
    tests = [replace(one, p_holm=float(p)) for one, p in zip(tests, corrected, strict=True)]
    changed = tuple(_changed(first, other) for other in aligned[1:])
    return RunPairs(tuple(aligned), tuple(tests), changed, tuple(notes))


def _find_classes(
    task_type: str | None, labels: Sequence[str], predictions: Sequence[str], several: bool
) -> tuple[tuple[str, ...], bool]:
    several, texts = several or task_type == "multi_label", [*labels, *predictions]
    if not several and (task_type == "regression" or (task_type is None and _are_scores(texts))):
        return (), False
    if not all(labels):
        raise ValueError("some rows have no label")
    names = {name for text in texts for name in (text.split(SEPARATOR) if several else [text]) if name}
    return tuple(sorted(names)), several


def _are_scores(texts: Sequence[str]) -> bool:
    try:
        values = {float(text) for text in texts}
    except ValueError:
        return False
    return len(values) > _MOST_CLASS_IDS or any(math.isfinite(value) and value != round(value) for value in values)


def _aligned(runs: Sequence[ScoredRun]) -> tuple[list[ScoredRun], list[str]]:
    """Restrict all models to their common rows, in the order of the first, with one numbering of the classes."""
    for run in runs:
        if len(set(run.predictions.ids)) < len(run.predictions.ids):
            raise CheckpointError(f"{run.file}: has ids that occur twice, so rows cannot be paired. Make them unique.")
    common = set.intersection(*(set(run.predictions.ids) for run in runs))
    ids = tuple(row for row in runs[0].predictions.ids if row in common)
    if len(ids) < 2:
        raise CheckpointError(
            f"{runs[0].file} and {runs[1].file}: have {len(ids)} row in common by id, expected at least 2. Predict the"
            " same rows with each run."
        )
    if len({(bool(run.predictions.names), run.predictions.labels_N.ndim) for run in runs}) > 1:
        raise CheckpointError(
            f"{', '.join(str(run.file) for run in runs)}: some have classes, some have scores. Expected one kind of"
            " task; --task_type names it for files without probabilities."
        )
    names = tuple(dict.fromkeys(name for run in runs for name in run.predictions.names))
    aligned = [replace(run, predictions=_taken(run.predictions, ids, names)) for run in runs]
    labels_N = aligned[0].predictions.labels_N
    for run in aligned[1:]:
        other_N = run.predictions.labels_N
        same = np.isclose(labels_N, other_N) if not names else labels_N == other_N
        if not same.all():
            row = int(np.flatnonzero(~(same if same.ndim == 1 else same.all(axis=1)))[0])
            raise CheckpointError(
                f"{runs[0].file} and {run.file}: row {ids[row]!r} has the label {_text(labels_N[row], names)!r} in one"
                f" and {_text(other_N[row], names)!r} in the other. Predict the same labelled rows with each run."
            )
    notes = [
        f"{run.file}: {len(run.predictions.ids) - len(ids):,} of {len(run.predictions.ids):,} rows are left out, since"
        " not all runs predict them."
        for run in runs
        if len(run.predictions.ids) > len(ids)
    ]
    return aligned, notes


def _taken(predictions: Predictions, ids: Sequence[str], names: Sequence[str]) -> Predictions:
    position = {row: number for number, row in enumerate(predictions.ids)}
    rows, number = [position[row] for row in ids], np.array([names.index(name) for name in predictions.names])

    def renumbered(values_N: np.ndarray) -> np.ndarray:
        if not predictions.names:
            return values_N
        if values_N.ndim == 1:
            return number[values_N]
        wide_NC = np.zeros((len(values_N), len(names)), dtype=np.int64)
        wide_NC[:, number] = values_N
        return wide_NC

    columns = (renumbered(values_N[rows]) for values_N in (predictions.labels_N, predictions.predictions_N))
    return Predictions(tuple(ids), tuple(names), *columns)


def _metrics(wanted: Sequence[str], first: ScoredRun) -> tuple[str, ...]:
    predictions = first.predictions
    if predictions.labels_N.ndim == 2:
        kind, suits = "sets", {"sets", "classes or sets"}
    elif not predictions.names:
        kind, suits = "scores", {"an order"}
    else:
        kind, suits = "classes", {"classes", "classes or sets"}
        if len(predictions.names) == 2:
            kind, suits = "two classes", {*suits, "two classes"}
        if any(METRICS[name].needs == "an order" for name in first.metrics):
            suits = {*suits, "an order"}
    usable = [name for name, metric in METRICS.items() if metric.needs in suits]
    problems = [
        f"--metrics: got {name!r}, expected one of {', '.join(usable)}.{did_you_mean(name, usable)}"
        for name in wanted
        if name not in usable
    ]
    if problems:
        raise ConfigError(problems)
    of_record = tuple(name for name in first.metrics if name in usable)
    return tuple(wanted) or of_record or _DEFAULT_METRICS[kind]


def _test(first: ScoredRun, second: ScoredRun, metric: str, resamples: int, seed: int) -> PairTest:
    sign = 1.0 if METRICS[metric].greater_is_better else -1.0
    labels_N = first.predictions.labels_N
    given = [run.predictions.predictions_N for run in (first, second)]
    scores = [METRICS[metric].score(labels_N, values_N) for values_N in given]
    values = [example_values(metric, labels_N, values_N) for values_N in given]
    low = high = p = p_wilcoxon = math.nan
    if all(np.isfinite(values_N).all() for values_N in values):
        differences_N = sign * (values[1] - values[0])
        generator = numpy_generator("compare-runs", seed)  # the same resamples for all models and metrics
        result = paired_bootstrap_test(differences_N, generator=generator, resamples=resamples)
        low, high, p = result.low, result.high, result.p
        if metric in ("mean_absolute_error", "mean_squared_error") and np.any(differences_N):
            p_wilcoxon = float(wilcoxon(differences_N).pvalue)
    mcnemar = mcnemar_test(values[0], values[1]) if metric == "accuracy" else None
    return PairTest(
        first=first.name,
        second=second.name,
        metric=metric,
        first_score=scores[0],
        second_score=scores[1],
        difference=sign * (scores[1] - scores[0]),
        low=low,
        high=high,
        p=p,
        p_holm=p,
        mcnemar=mcnemar,
        p_wilcoxon=p_wilcoxon,
    )


def _changed(first: ScoredRun, second: ScoredRun) -> ChangedRows:
    labels_N = first.predictions.labels_N
    before, after = first.predictions.predictions_N, second.predictions.predictions_N
    if not first.predictions.names:
        gain_N = np.abs(before - labels_N) - np.abs(after - labels_N)
        order = np.argsort(-np.abs(gain_N), kind="stable")
        rows = order[gain_N[order] > 0], order[gain_N[order] < 0], np.empty(0, dtype=np.int64)
        return ChangedRows(first.name, second.name, *rows)
    was_right, is_right, differs = before == labels_N, after == labels_N, before != after
    if labels_N.ndim == 2:
        was_right, is_right, differs = was_right.all(axis=1), is_right.all(axis=1), differs.any(axis=1)
    masks = is_right & ~was_right, was_right & ~is_right, differs & ~was_right & ~is_right
    return ChangedRows(first.name, second.name, *map(np.flatnonzero, masks))


def _text(value: Any, names: Sequence[str]) -> str:
    if np.ndim(value) == 1:
        return SEPARATOR.join(name for name, is_set in zip(names, value, strict=True) if is_set)
    return names[int(value)] if names else f"{float(value):g}"
