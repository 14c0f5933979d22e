"""From the records of a comparison to verdicts, by method and task, and to the best run."""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from attentune.config import load_config, to_flat
from attentune.config.parse import did_you_mean
from attentune.data.builtin import load_spec
from attentune.errors import CheckpointError, ConfigError
from attentune.io.files import read_json
from attentune.metrics.intervals import baseline_score, example_values
from attentune.metrics.metrics import METRICS
from attentune.report.load import RecordedRun, recorded_runs, with_task_names
from attentune.results import BEST_FOLDER, RESULT_FILE, SEARCH_FILE, TRIALS_FILE, WINNER_FILE
from attentune.runs.records import Predictions, RunRecord, read_records
from attentune.stats.compare import Runs, Summary, compare_all, compare_pairs, summarise
from attentune.stats.verdict import Comparison

_TOLERANCE = 1e-4
_SAVED_DIGITS = 5e-6  # predicted scores are saved with six digits: half of the last one of 1.00000


@dataclass(frozen=True)
class Cell:
    """One method on one task and training set size."""

    task: str  # the task's name
    size: str  # the number of training rows, or "all"
    method: str  # the method's name
    recorded: tuple[RecordedRun, ...]  # its runs by seed, including failed ones
    runs: Runs | None  # the scores that statistics use; None without a score

    @property
    def done(self) -> list[RunRecord]:
        return [run.record for run in self.recorded if run.record.is_done]

    @property
    def is_constant(self) -> bool:
        """Whether the method is the baseline that gives one answer for all rows."""
        return any(run.record.config.get("baseline") == "majority" for run in self.recorded)

    @property
    def size_text(self) -> str:
        return self.size if self.size == "all" else f"{int(self.size):,}"

    @property
    def scored(self) -> Runs:
        """The scores of a cell that has some."""
        assert self.runs is not None
        return self.runs

    @cached_property
    def summary(self) -> Summary:
        """The mean and spread of a cell that has scores; without an interval if all runs learnt nothing."""
        summary = summarise(self.scored)
        return replace(summary, low=math.nan, high=math.nan) if self.scored.learnt_nothing else summary


@dataclass(frozen=True)
class Lead:
    """The best model on one task and training set size, by its mean score."""

    best: Runs  # its scores
    others: tuple[Comparison, ...]  # the other models that learnt something compared with it, best mean first

    @property
    def is_shown(self) -> bool:
        """Whether all other models are shown to be worse."""
        return bool(self.others) and all(one.shown and one.difference < 0 for one in self.others)


@dataclass(frozen=True)
class Verdicts:
    """The comparisons of all methods with the baseline."""

    baseline: str  # the method that the others are compared with
    methods: tuple[str, ...]  # all methods, in order
    models: tuple[str, ...]  # the methods without the constant answer
    cells: tuple[Cell, ...]  # by task, size and method
    # One per task, size and method other than the baseline, on the task's first metric and validation split, corrected
    # together for multiple testing.
    comparisons: tuple[Comparison, ...]
    leads: tuple[Lead, ...]  # the best model of each of `columns`, with its comparisons corrected together
    notes: tuple[str, ...]  # remarks that concern several comparisons

    @cached_property
    def columns(self) -> list[list[Cell]]:
        """The models' cells with scores by task and training set size."""
        return _columns(cell for cell in self.cells if cell.method in self.models)

    @cached_property
    def largest(self) -> dict[str, list[Cell]]:
        """Each task's cells of its largest training set size."""
        sizes = {cell.task: cell.size for cell in self.cells}
        return {task: [cell for cell in self.cells if (cell.task, cell.size) == (task, sizes[task])] for task in sizes}

    def has_collapsed(self, cell: Cell) -> bool:
        """Return whether runs of a model are no better than a constant answer."""
        return cell.method in self.models and cell.runs is not None and bool(cell.runs.collapsed())

    def comparison(self, cell: Cell) -> Comparison | None:
        """Return the cell's comparison with the baseline, if there is one."""
        if cell.runs is None:
            return None
        key = (cell.runs.task, cell.runs.metric, cell.method)
        return next((one for one in self.comparisons if (one.task, one.metric, one.method) == key), None)

    def title(self, cell: Cell) -> str:
        several_sizes = len({other.size for other in self.cells}) > 1
        return f"{cell.task}, {cell.size_text} rows" if several_sizes else cell.task

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers and sentences, ready for JSON."""
        comparisons = [{**asdict(one), "shown": one.shown, "sentence": one.sentence} for one in self.comparisons]
        return {"baseline": self.baseline, "comparisons": comparisons, "notes": list(self.notes)}

    def text(self) -> str:
        """Return the sentences with their notes, for standard output; empty without a comparison."""
        lines = []
        for comparison in self.comparisons:
            lines += [f"{comparison.sentence}.", *(f"  {note}" for note in comparison.notes)]
        return "".join(f"{line}\n" for line in (*lines, *self.notes))


def _columns(cells: Iterable[Cell]) -> list[list[Cell]]:
    columns: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        if cell.runs is not None and cell.runs.seeds():
            columns.setdefault((cell.task, cell.size), []).append(cell)
    return list(columns.values())


def same_rows(one: Predictions, other: Predictions) -> bool:
    """Return whether two runs predict the same rows."""
    return one.ids == other.ids and np.array_equal(one.labels_N, other.labels_N)


def compare_methods(recorded: Sequence[RecordedRun], baseline: str | None = None) -> Verdicts:
    """Compare every method with the baseline on every task and training set size."""
    methods = tuple(dict.fromkeys(run.record.run.method for run in recorded))
    if not methods:
        raise ConfigError("baseline: there are no runs to compare.")
    if baseline is not None and baseline not in methods:
        hint = did_you_mean(baseline, methods)
        raise ConfigError(f"--baseline: got {baseline!r}, expected one of {', '.join(methods)}.{hint}")
    name_sizes = len({run.record.run.size for run in recorded}) > 1
    cells: list[Cell] = []
    notes: list[str] = []
    for task in dict.fromkeys(run.record.run.task for run in recorded):
        cells += _cells([run for run in recorded if run.record.run.task == task], methods, name_sizes, notes)
    constants = {cell.method for cell in cells if cell.is_constant}
    models = tuple(method for method in methods if method not in constants) or methods
    learnt = {cell.method for cell in cells if cell.runs is not None and not cell.runs.learnt_nothing}
    baseline = baseline or next((method for method in models if method in learnt), models[0])
    compared = [cell for cell in cells if cell.method in (*models, baseline)]
    return Verdicts(
        baseline,
        methods,
        models,
        tuple(cells),
        tuple(compare_all(_comparable([cell.runs for cell in compared], baseline, notes), baseline)),
        _leads(cell for cell in cells if cell.method in models),
        tuple(notes),
    )


def _leads(cells: Iterable[Cell]) -> tuple[Lead, ...]:
    ranked = [
        sorted(
            [cell.scored for cell in column if not cell.scored.learnt_nothing] or [cell.scored for cell in column],
            key=lambda one: statistics.fmean(map(one.score, one.seeds())),
            reverse=column[0].scored.greater_is_better,
        )
        for column in _columns(cells)
    ]
    compared = iter(compare_pairs([(runs[0], other) for runs in ranked for other in runs[1:]]))
    return tuple(Lead(runs[0], tuple(itertools.islice(compared, len(runs) - 1))) for runs in ranked)


def _comparable(runs: Sequence[Runs | None], baseline: str, notes: list[str]) -> list[Runs]:
    """Return the runs on tasks and sizes for which the baseline has a score; note the others."""
    scored = [one for one in runs if one is not None and one.seeds()]
    baseline_tasks = {one.task for one in scored if one.method == baseline}
    notes += [
        f"{task}: {baseline} has no score on this task, so no method is compared with it."
        for task in dict.fromkeys(one.task for one in scored)
        if task not in baseline_tasks
    ]
    return [one for one in scored if one.task in baseline_tasks]


def _cells(recorded: Sequence[RecordedRun], methods: Sequence[str], name_sizes: bool, notes: list[str]) -> list[Cell]:
    task = recorded[0].record.run.task
    metric = next((run.record.metric for run in recorded if run.record.metric), None)
    groups: dict[tuple[bool, int, int], list[RecordedRun]] = {}
    for one in recorded:
        rows = one.record.run.train_size
        groups.setdefault((rows is None, rows or 0, methods.index(one.record.run.method)), []).append(one)
    cells = []
    for (is_all, rows, number), runs in sorted(groups.items()):
        runs.sort(key=lambda run: run.record.run.seed)
        cells.append(Cell(task, "all" if is_all else str(rows), methods[number], tuple(runs), None))
    named = [(f"{task} ({cell.size_text} rows)" if name_sizes else task, cell.method, cell.recorded) for cell in cells]
    scored = _scored(task, metric, named, notes)
    return [replace(cell, runs=runs) for cell, runs in zip(cells, scored, strict=True)]


def _scored(
    task: str,
    metric: str | None,
    groups: Sequence[tuple[str, str, Sequence[RecordedRun]]],
    notes: list[str],
) -> list[Runs | None]:
    """Return the scores of each group (name, method, runs), with values per example if all share their rows."""
    if metric is None or metric not in METRICS:
        return [None] * len(groups)
    found: list[Runs | None] = []
    first: Predictions | None = None
    examples_differ = False
    for name, method, recorded in groups:
        scores: dict[int, float | None] = {}
        examples: dict[int, np.ndarray] = {}
        guesses: list[float] = []
        constant: set[int] = set()
        overlap = 0.0
        for run in recorded:
            split = run.record.split
            if not run.record.is_done or split is None:
                continue
            seed, score = run.record.run.seed, run.record.scores[split].get(metric)
            scores[seed] = score
            folds = run.record.config.get("data", {}).get("folds")
            overlap = 1.0 / (folds - 1) if folds else 0.0
            predictions = run.predictions()
            if predictions is None or len(predictions.ids) < 2:
                continue
            if (predictions.predictions_N == predictions.predictions_N[0]).all():
                constant.add(seed)
            # The score of the majority class, or of the mean for regression.
            guess = baseline_score(metric, predictions.labels_N, is_regression=not predictions.names)
            # Each fold has its own examples, so methods cannot be paired by example.
            guesses = [*guesses, guess] if folds else [guess]
            if not folds:
                first = predictions if first is None else first
                examples_differ |= not same_rows(predictions, first)
                examples[seed] = _example_values(metric, run.source, predictions, score)
        better = METRICS[metric].greater_is_better
        floor = float(np.mean(guesses)) if guesses else None
        bounds = METRICS.bounds(metric)
        runs = Runs(method, name, metric, scores, examples or None, better, floor, overlap, frozenset(constant), bounds)
        found.append(runs if scores else None)
    if not examples_differ:
        return found
    notes.append(
        f"{task}: the runs were not all scored on the same examples, so the verdict covers the variation over seeds"
        " only."
    )
    return [one and replace(one, examples=None) for one in found]


def _example_values(metric: str, file: object, predictions: Predictions, score: float | None) -> np.ndarray:
    """Return values per example whose mean is the score; raise if the predictions are of another run."""
    values_N = example_values(metric, predictions.labels_N, predictions.predictions_N)
    if score is None or not np.isfinite(values_N).all():
        return np.full(len(values_N), math.nan)
    mean = float(values_N.mean())
    tolerance = _TOLERANCE
    # The saved digits change correlations of a model that predicts nearly the same for all rows: they tie ranks, and
    # half of the last one is not small beside the predictions' spread.
    saved_N = predictions.predictions_N
    if metric == "spearmanr":
        tolerance += 1 - len(np.unique(saved_N)) / len(values_N)
    elif metric == "pearson":
        tolerance += float(2 * _SAVED_DIGITS * np.abs(saved_N).max() / saved_N.std())
    if not math.isclose(mean, score, rel_tol=tolerance, abs_tol=tolerance):
        raise CheckpointError(
            f"{file}: its predictions score {metric} {mean:.4f}, but its record says {score:.4f}; they are not from"
            " the same run. Delete both and repeat the command to run it again."
        )
    return values_N + (score - mean)


# ---------------------------------------------------------------- the best run


@dataclass(frozen=True)
class BestRun:
    """The run that was chosen."""

    folder: Path  # its run folder
    sentence: str  # which run was chosen and how sure the choice is, in one line


def tasks_of(folder: str | Path) -> tuple[str, ...]:
    return tuple(dict.fromkeys(record.run.task for record in _records(Path(folder))))


def best_run(folder: str | Path, task: str | None = None) -> BestRun:
    """Choose the best run of a comparison or search.

    The method with the best mean of the task's first metric on the first validation split is chosen, at the largest
    training size; of its runs that were kept, the one with the best score. A search keeps one model, that of its best
    trial.
    """
    folder = Path(folder)
    records = _records(folder)
    task = _task(folder, tuple(dict.fromkeys(record.run.task for record in records)), task)
    records = [record for record in records if record.run.task == task]
    if (folder / SEARCH_FILE).is_file():
        return _best_trial(folder, records)
    sizes = {record.run.train_size for record in records}
    largest = None if None in sizes else max(size for size in sizes if size is not None)
    records = [record for record in records if record.run.train_size == largest]
    means = _means(folder, records)
    method = next(iter(means))
    kept = _kept_run(folder, method, records)
    seeds = sum(record.run.method == method for record in records if record.is_done and record.score is not None)
    size = f", at {kept.run.size} training rows" if len(sizes) > 1 else ""
    chosen = (
        f"{method}, the best of {len(means)} by its mean {kept.metric} of {means[method]:.4f} over {seeds}"
        f" run{'s' * (seeds > 1)}{size}; this one has {kept.score:.4f}"
    )
    return _best(folder, folder / "runs" / kept.run.name, records, means, chosen)


def _records(folder: Path) -> list[RunRecord]:
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such folder. --best expects that of a comparison or search.")
    if any((folder / name).is_file() for name in (RESULT_FILE, "config.json")):
        raise CheckpointError(f"{folder}: is a run folder, which is used as it is. Leave out --best.")
    records = read_records(folder)
    if not records:
        raise CheckpointError(
            f"{folder}: holds no finished run of a comparison or search, so there is no best one. Name the folder of"
            " attentune compare or attentune search."
        )
    return records


def _task(folder: Path, tasks: tuple[str, ...], task: str | None) -> str:
    if len(tasks) == 1:
        return tasks[0]
    if task is None:
        raise ConfigError(f"--best: {folder} has the tasks {', '.join(tasks)}; name one with --task {tasks[0]}.")
    name = load_spec(task).name
    if name not in tasks:
        hint = did_you_mean(name, tasks)
        raise ConfigError(f"--task: got {task!r}, expected one of {folder}: {', '.join(tasks)}.{hint}")
    return name


def _by_score(record: RunRecord) -> float:
    """Return a key by which the best run is the lowest."""
    assert record.score is not None
    assert record.metric is not None
    is_error = record.metric in METRICS and not METRICS[record.metric].greater_is_better
    return record.score if is_error else -record.score


def _means(folder: Path, records: Sequence[RunRecord]) -> dict[str, float]:
    scored: dict[str, list[RunRecord]] = {}
    for record in records:
        if record.is_done and record.score is not None:
            scored.setdefault(record.run.method, []).append(record)
    if not scored:
        raise CheckpointError(f"{folder}: no run has a validation score, so none is the best. Its records say why.")
    order = sorted(scored, key=lambda method: statistics.fmean(map(_by_score, scored[method])))
    return {method: statistics.fmean(record.score or 0.0 for record in scored[method]) for method in order}


def _kept_run(folder: Path, method: str, records: Sequence[RunRecord]) -> RunRecord:
    done = [one for one in records if one.run.method == method and one.is_done and one.score is not None]
    done.sort(key=lambda record: (_by_score(record), record.run.seed))
    for record in done:
        if (folder / "runs" / record.run.name / RESULT_FILE).is_file():
            return record
    raise CheckpointError(
        f"{folder}: {method} is the best, but its models were not kept. attentune compare --keep_best keeps the best"
        f" run of each preset. To have this one, delete {folder / 'records' / done[0].run.name}.json and repeat the"
        " comparison's command with --keep_best: only this run is trained again."
    )


def _best_trial(folder: Path, records: Sequence[RunRecord]) -> BestRun:
    file, run = folder / TRIALS_FILE, folder / BEST_FOLDER
    try:
        content = read_json(file)
        trial = next((one for one in content["trials"] if one["name"] == content["best"]), None)
        metric = str(content["choice"]["metric"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file}: cannot be read ({error}). Repeat the search's command to its end.") from error
    if trial is None:
        raise CheckpointError(f"{folder}: no trial of this search is finished, so none is the best.")
    if not (run / RESULT_FILE).is_file():
        raise CheckpointError(
            f"{folder}: has no trained model, only settings. Repeat the search's command without --settings_only, or"
            f" train: attentune train --config {folder / WINNER_FILE}"
        )
    settings = to_flat(load_config(run / "config.yaml", as_record=True))
    if any(settings.get(name, value) != value for name, value in trial["settings"].items()):
        raise CheckpointError(
            f"{run}: has other settings than {trial['name']}, the best trial. Repeat the search's command to its end."
        )
    means = {str(trial["name"]): float(trial["mean"]), **_means(folder, records)}
    rows = "held-out rows of train" if content["rows"]["score_on"] == "train" else "dev"
    chosen = (
        f"trained on all training rows with the settings of {trial['name']}, the best of {len(means)} trials by its"
        f" mean {metric} of {trial['mean']:.4f} on {rows}"
    )
    return _best(folder, run, records, means, chosen)


def _best(folder: Path, run: Path, records: Sequence[RunRecord], means: Mapping[str, float], chosen: str) -> BestRun:
    """Say how sure the choice is: compare the other methods, by their means, with the best one, the first."""
    method, *others = means
    scored = with_task_names(recorded_runs(folder, [record for record in records if record.run.method in means]))
    found = {one.method: one for one in compare_methods(scored, method).comparisons}
    # With one seed a method is worse beyond chance if the interval over rows says so.
    ties = [
        name
        for name in others
        if (one := found.get(name)) is not None
        and not (one.difference < 0 and (one.shown or (one.seeds == 1 and one.high < 0)))
    ]
    second = next((found[name] for name in others if name in found), None)
    if second is None:
        certainty = "There is no other to choose from."
    elif not ties:
        certainty = f"The choice is clear: {second.sentence}."
    else:
        named = ", ".join(ties[:3]) + (f" and {len(ties) - 3} more" if len(ties) > 3 else "")
        certainty = f"The choice is a tie with {len(ties)} of {len(others)} others ({named}): {second.sentence}."
    return BestRun(run, f"using {run} ({chosen}). {certainty}")
