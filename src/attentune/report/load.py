"""Read the runs that a report shows from the folders that a user names."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from attentune.automl.leaderboard import AutoResult
from attentune.errors import CheckpointError
from attentune.io.files import read_json
from attentune.results import RESULT_FILE, RunResult
from attentune.runs.records import (
    CUSTOM_TASK,
    MANIFEST_FILE,
    TEST,
    Predictions,
    RecordStore,
    Run,
    RunRecord,
    read_predictions,
    record_of,
    score_to_compare_by,
)


@dataclass(frozen=True)
class RecordedRun:
    record: RunRecord
    source: Path | Predictions = field(compare=False)  # its predictions, or the folder of their files

    def predictions(self) -> Predictions | None:
        """Return the predictions on the split of the score; None where there are none."""
        if isinstance(self.source, Predictions):
            return self.source
        file = self.source / self.record.predictions.get(self.record.split or "", "none")
        return read_predictions(file) if file.is_file() else None

    @functools.cached_property
    def auto(self) -> AutoResult | None:
        """What `auto` has delivered, if it has made the run."""
        if isinstance(self.source, Predictions) or "estimate" not in self.record.train:
            return None
        return AutoResult.load(self.source)

    def by_test_rows(self) -> RecordedRun:
        record, wanted = self.record, self.record.config.get("training", {}).get("metric_for_best_model")
        metric, score = score_to_compare_by(record.scores, wanted, TEST)
        return dataclasses.replace(self, record=dataclasses.replace(record, metric=metric, score=score))

    def renamed(self, **names: str) -> RecordedRun:
        run = dataclasses.replace(self.record.run, **names)  # type: ignore[arg-type]
        return dataclasses.replace(self, record=dataclasses.replace(self.record, run=run))


@dataclass(frozen=True)
class TaskTexts:
    # By row id, the text and the second text of a pair.
    texts: Mapping[str, tuple[str, str | None]] = field(default_factory=dict)
    problem: str = ""  # why there are no texts; empty if there are


@dataclass(frozen=True)
class ReportData:
    folders: tuple[str, ...]  # the folders' names as given
    runs: tuple[RecordedRun, ...]  # the runs, with methods in the order of their comparison
    texts: Mapping[str, TaskTexts] = field(default_factory=dict)  # by task the texts of the validation rows


def recorded_runs(folder: Path, records: Iterable[RunRecord]) -> list[RecordedRun]:
    """Attach the predictions in a comparison's folder to its records."""
    return [RecordedRun(one, RecordStore(folder).file(one.run).parent) for one in records]


def collect(folders: Sequence[str]) -> ReportData:
    by_folder = {folder: _recorded(Path(folder)) for folder in dict.fromkeys(folders)}
    for folder, runs in by_folder.items():
        if not runs:
            raise CheckpointError(
                f"{folder}: holds no finished run. Expected the folder of a comparison (attentune compare) or of a run"
                " (attentune train)."
            )
    recorded = [one for runs in by_folder.values() for one in runs]
    if not any(one.record.split for one in recorded):
        recorded = [one.by_test_rows() for one in recorded]
    named = iter(with_task_names(recorded))
    by_folder = {folder: [next(named) for _ in runs] for folder, runs in by_folder.items()}
    return ReportData(tuple(by_folder), tuple(_with_distinct_methods(by_folder)))


def _recorded(folder: Path) -> list[RecordedRun]:
    if not folder.is_dir():
        raise CheckpointError(f"{folder}: there is no such folder. Expected the folder of a comparison or a run.")
    if (folder / "records").is_dir():
        return _comparison(folder)
    return [_run(folder)] if (folder / RESULT_FILE).is_file() else []


def _comparison(folder: Path) -> list[RecordedRun]:
    runs = recorded_runs(folder, RecordStore(folder).records())
    try:
        methods = read_json(folder / MANIFEST_FILE)["methods"]
        names = dict.fromkeys([*methods, *(task for method in methods.values() for task in method["tasks"])])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return runs
    order = {name: index for index, name in enumerate(names)}

    def position(one: RecordedRun) -> list[int]:
        return [order.get(name, len(order)) for name in (one.record.run.task, one.record.run.method)]

    return sorted(runs, key=position)


def _run(folder: Path) -> RecordedRun:
    """Read a single run as a comparison would record it; its method is its preset."""
    result = RunResult.load(folder / RESULT_FILE)
    data, training = result.config.get("data", {}), result.config.get("training", {})
    run = Run(
        str(data.get("task") or CUSTOM_TASK),
        data.get("max_train_samples"),
        str(result.config.get("preset") or folder.resolve().name),
        result.seed,
    )
    record = record_of(run, training.get("metric_for_best_model"), result, folder, wall_seconds=0.0)
    files = {split: f"predictions_{split}.csv" for split in record.predictions}
    return RecordedRun(dataclasses.replace(record, host="", predictions=files), folder)


def with_task_names(runs: Sequence[RecordedRun]) -> list[RecordedRun]:
    """Name custom data by its file. Files of one name but with other rows are told apart by their folders."""
    prints: dict[str, set[str]] = {}
    for one in runs:
        prints.setdefault(_data_of(one.record), set()).update(one.record.data_fingerprint.values())
    first: dict[str, str] = {}
    for file in prints:
        alike = (other for other in first if Path(other).name == Path(file).name and prints[other] & prints[file])
        first[file] = next(alike, file)
    found = []
    for one in runs:
        task, file = one.record.task_name, first[_data_of(one.record)]
        others = {other for other in first.values() if Path(other).name == Path(file).name}
        if one.record.run.task == CUSTOM_TASK and len(others) > 1:
            task = _shortest_end(file, others)
        found.append(one.renamed(task=task))
    return found


def _data_of(record: RunRecord) -> str:
    data = record.config.get("data") or {}
    return str((record.run.task == CUSTOM_TASK and data.get("train_file")) or record.task_name)


def _shortest_end(path: str, others: set[str]) -> str:
    """Return as many last parts of a path as no other path ends in."""
    ends = ("/".join(Path(path).parts[-count:]) for count in range(1, len(Path(path).parts) + 1))
    return next((end for end in ends if sum(f"/{other}".endswith(f"/{end}") for other in others) == 1), path)


def _with_distinct_methods(by_folder: dict[str, list[RecordedRun]]) -> Iterator[RecordedRun]:
    """Yield the runs of all folders; if two folders have the same run, add the folder's name to all methods."""
    runs = [one.record.run for recorded in by_folder.values() for one in recorded]
    clash = len(set(runs)) < len(runs)
    names = [Path(folder).resolve().name for folder in by_folder]
    for number, (folder, recorded) in enumerate(by_folder.items()):
        name = names[number] if names.count(names[number]) == 1 else folder
        for one in recorded:
            yield one.renamed(method=f"{one.record.run.method} in {name}") if clash else one
