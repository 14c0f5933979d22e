"""Chooses the best trained run in the folder of a comparison or search, and says how sure the choice is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune.config import load_config, to_flat
from attentune.config.parse import did_you_mean
from attentune.data.builtin import load_spec
from attentune.errors import CheckpointError, ConfigError
from attentune.io.files import read_json
from attentune.metrics.metrics import METRICS
from attentune.report.analysis import compare_methods
from attentune.report.load import recorded_runs, with_task_names
from attentune.results import BEST_FOLDER, RESULT_FILE, SEARCH_FILE, TASKS_FILE, TRIALS_FILE, WINNER_FILE
from attentune.runs.records import RunRecord, is_packed, read_records
from attentune.stats.verdict import Comparison


@dataclass(frozen=True)
class BestRun:
    """The run that was chosen."""

    folder: Path  # its run folder
    sentence: str  # which run was chosen and how sure the choice is, in one line


def tasks_of(folder: str | Path) -> tuple[str, ...]:
    """Return the tasks of a comparison or search in the order of their names."""
    return tuple(dict.fromkeys(record.run.task for record, _ in _read(Path(folder))))


def best_run(folder: str | Path, task: str | None = None) -> BestRun:
    """Choose the best run of a comparison or search.

    The method with the best mean of the task's first metric on the first validation split is chosen, at the largest
    training size; of its runs that were kept, the one with the best score. A search keeps one model, that of its best
    trial.
    """
    folder = Path(folder)
    records = [record for record, _ in _read(folder)]
    task = _task(folder, records, task)
    records = [record for record in records if record.run.task == task]
    if (folder / SEARCH_FILE).is_file():
        return _of_search(folder, task, records)
    sizes = {_rows(record) for record in records}
    records = [record for record in records if _rows(record) == max(sizes)]
    means = _means(folder, records)
    method = next(iter(means))
    kept = _kept_run(folder, method, records)
    seeds = sum(_has_score(record) for record in records if record.run.method == method)
    size = f", at {kept.run.size} training rows" if len(sizes) > 1 else ""
    chosen = (
        f"{method}, the best of {len(means)} by its mean {kept.metric} of {means[method]:.4f} over {seeds}"
        f" run{'s' * (seeds > 1)}{size}; this one has {kept.score:.4f}"
    )
    return _best(folder, folder / "runs" / kept.run.name, method, means, records, chosen)


def _read(folder: Path) -> list[tuple[RunRecord, Path]]:
    """Read the records."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such folder. --best expects that of a comparison or search.")
    if is_packed(folder):
        raise CheckpointError(f"{folder}: holds a packed comparison, which has no models. Name the original folder.")
    if any((folder / name).is_file() for name in (RESULT_FILE, "config.json", TASKS_FILE)):
        raise CheckpointError(f"{folder}: is a run folder, which is used as it is. Leave out --best.")
    records = read_records(folder) if (folder / "records").is_dir() else []
    if not records:
        raise CheckpointError(
            f"{folder}: holds no finished run of a comparison or search, so there is no best one. Name the folder of"
            " attentune compare or attentune search."
        )
    return records


def _task(folder: Path, records: Sequence[RunRecord], task: str | None) -> str:
    tasks = tuple(dict.fromkeys(record.run.task for record in records))
    if len(tasks) == 1:
        return tasks[0]
    if task is None:
        raise ConfigError(f"--best: {folder} has the tasks {', '.join(tasks)}; name one with --task {tasks[0]}.")
    name = load_spec(task).name
    if name not in tasks:
        raise ConfigError(
            f"--task: got {task!r}, expected one of {folder}: {', '.join(tasks)}.{did_you_mean(name, tasks)}"
        )
    return name


def _rows(record: RunRecord) -> float:
    """Return the number of training rows; infinity for all."""
    return math.inf if record.run.train_size is None else record.run.train_size


def _has_score(record: RunRecord) -> bool:
    return record.is_done and record.score is not None


def _means(folder: Path, records: Sequence[RunRecord]) -> dict[str, float]:
    """Return the mean score of each method that has one, best first."""
    scores: dict[str, list[float]] = {}
    for record in records:
        if _has_score(record) and record.score is not None:
            scores.setdefault(record.run.method, []).append(record.score)
    if not scores:
        raise CheckpointError(f"{folder}: no run has a validation score, so none is the best. Its records say why.")
    sign = -1.0 if _greater_is_better(records) else 1.0
    means = {method: statistics.fmean(values) for method, values in scores.items()}
    return dict(sorted(means.items(), key=lambda item: sign * item[1]))


def _greater_is_better(records: Sequence[RunRecord]) -> bool:
    metric = next(record.metric for record in records if record.metric is not None)
    return metric not in METRICS or METRICS[metric].greater_is_better


def _kept_run(folder: Path, method: str, records: Sequence[RunRecord]) -> RunRecord:
    """Return the best run of a method whose folder was kept."""
    done = [record for record in records if record.run.method == method and _has_score(record)]
    sign = 1.0 if _greater_is_better(records) else -1.0
    done.sort(key=lambda record: (-sign * (record.score or 0.0), record.run.seed))
    kept = [record for record in done if (folder / "runs" / record.run.name / RESULT_FILE).is_file()]
    if kept:
        return kept[0]
    raise CheckpointError(
        f"{folder}: {method} is the best, but its models were not kept. attentune compare --keep_best keeps the best"
        f" run of each preset. To have this one, delete {folder / 'records' / done[0].run.name}.json and repeat the"
        " comparison's command with --keep_best: only this run is trained again."
    )


def _of_search(folder: Path, task: str, records: Sequence[RunRecord]) -> BestRun:
    """Return the model of the best trial."""
    file = folder / TRIALS_FILE
    try:
        content = read_json(file)
        trial = next((one for one in content["trials"] if one["name"] == content["best"]), None)
        metric = str(content["choice"]["metric"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{file}: cannot be read ({error}). Repeat the search's command to its end.") from error
    if trial is None:
        raise CheckpointError(f"{folder}: no trial of this search is finished, so none is the best.")
    run = folder / BEST_FOLDER
    if not (run / RESULT_FILE).is_file():
        raise CheckpointError(
            f"{folder}: has no trained model, only settings. Repeat the search's command without --settings_only, or"
            f" train: attentune train --config {folder / WINNER_FILE}"
        )
    if not _is_of(run, trial["settings"]):
        raise CheckpointError(
            f"{run}: has other settings than {trial['name']}, the best trial. Repeat the search's command to its end."
        )
    means = {str(trial["name"]): float(trial["mean"]), **_means(folder, records)}
    rows = "held-out rows of train" if content["rows"]["score_on"] == "train" else "dev"
    chosen = (
        f"trained on all training rows with the settings of {trial['name']}, the best of {len(means)} trials by its"
        f" mean {metric} of {trial['mean']:.4f} on {rows}"
    )
    return _best(folder, run, str(trial["name"]), means, records, chosen)


def _is_of(run: Path, settings: Mapping[str, Any]) -> bool:
    """Return whether a run has these settings, by dotted name."""
    flat = to_flat(load_config(run / "config.yaml", as_record=True))
    return all(flat.get(name, value) == value for name, value in settings.items())


def _best(
    folder: Path,
    run: Path,
    method: str,
    means: Mapping[str, float],
    records: Sequence[RunRecord],
    chosen: str,
) -> BestRun:
    """Compare the other methods with the best one."""
    scored = [record for record in records if record.run.method in means]
    found = {
        one.method: one for one in compare_methods(with_task_names(recorded_runs(folder, scored)), method).comparisons
    }
    others = [name for name in means if name != method]
    second = next((found[name] for name in others if name in found), None)
    ties = tuple(name for name in others if name in found and not _is_worse(found[name]))
    return BestRun(run, f"using {run} ({chosen}). {_certainty(second, ties, len(others))}")


def _is_worse(one: Comparison) -> bool:
    """Return whether the method is worse than the best one beyond chance: by the test, or with one seed by rows."""
    return one.difference < 0 and (one.shown or (one.seeds == 1 and one.high < 0))


def _certainty(second: Comparison | None, ties: Sequence[str], others: int) -> str:
    if second is None:
        return "There is no other to choose from."
    if not ties:
        return f"The choice is clear: {second.sentence}."
    named = ", ".join(ties[:3]) + (f" and {len(ties) - 3} more" if len(ties) > 3 else "")
    return f"The choice is a tie with {len(ties)} of {others} others ({named}): {second.sentence}."
