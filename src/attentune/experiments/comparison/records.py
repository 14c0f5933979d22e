"""The records of a comparison: one JSON file for each run. Reading them needs no PyTorch."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attentune.errors import CheckpointError
from attentune.io.files import is_plain_name, parse_json, read_json, read_text
from attentune.results import LOG_FILE, ORIGINAL_TRAIN, RunResult, check_fields, to_json

_FORMAT = 1
STATUSES = ("done", "failed", "pruned")
_CURVE = ("step", "epoch", "seconds", "tokens", "loss", "learning_rate")


@dataclass(frozen=True, order=True)
class Run:
    """One run of a comparison.

    Attributes:
        task: a built-in task's name; "own" for custom data.
        train_size: number of training rows; None for all.
        method: the name of a preset or method.
        seed: of subsampling, new weights, row order and masks.
    """

    task: str
    train_size: int | None
    method: str
    seed: int

    @property
    def size(self) -> str:
        """The training size as text."""
        return "all" if self.train_size is None else str(self.train_size)

    @property
    def name(self) -> str:
        """A relative path that is unique in the comparison."""
        return f"{self.task}/{self.size}/{self.method}/seed-{self.seed}"


@dataclass(frozen=True, kw_only=True)
class RunRecord(RunResult):
    """The record of a run in a comparison: a run's own result, and what the comparison adds.

    Attributes:
        run: task, training size, method and seed.
        status: "done", "failed", or in a search "pruned".
        metric: the metric to compare by: `metric_for_best_model`, or the task's first; None if the run failed.
        score: its value on the first validation split; None if it is undefined or missing.
        predictions: by split, the file of ids, labels, predictions and probabilities, next to the record.
        labels_by_epoch: counts of each epoch's token labels, from the log.
        curve: step, epoch, seconds of training steps, tokens and mean loss since the line before, from the log.
        scored: the validation scores during training: step, epoch, and metrics by split.
        wall_seconds: wall time since the run was last started or resumed, with loading, evaluation and saving.
        host: the machine's name.
        error: kind, message and traceback of a failed run; None otherwise.
    """

    run: Run
    status: str
    metric: str | None
    score: float | None
    predictions: dict[str, str] = field(default_factory=dict)
    labels_by_epoch: list[dict[str, Any]] = field(default_factory=list)
    curve: list[dict[str, Any]] = field(default_factory=list)
    scored: list[dict[str, Any]] = field(default_factory=list)
    wall_seconds: float = 0.0
    host: str = ""
    error: dict[str, Any] | None = None

    @property
    def is_done(self) -> bool:
        """Whether it has scores."""
        return self.status == "done"

    def to_json(self) -> str:
        """Return the record as JSON; NaN becomes null."""
        return to_json({"format": _FORMAT, **dataclasses.asdict(self)})

    @classmethod
    def load(cls, file: str | Path) -> RunRecord:
        """Read a record.

        Raises:
            CheckpointError: it is missing or invalid.
        """
        try:
            content = read_json(file)
            if content.pop("format") != _FORMAT:
                raise ValueError("of another format")
            check_fields(cls, content)
            check_fields(Run, content["run"])
            if content["status"] not in STATUSES:
                raise ValueError(f"its status is {str(content['status'])[:40]!r}")
            elsewhere = [name for name in content.get("predictions", {}).values() if not is_plain_name(name)]
            if elsewhere:
                raise ValueError(f"it names {elsewhere[0][:80]!r}, expected a file beside it")
            return cls(**{**content, "run": Run(**content["run"])})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{file}: is no record of a run ({error}). Delete it; the same command makes it again."
            ) from error


def score_to_compare_by(
    scores: dict[str, dict[str, float | None]], wanted: str | None
) -> tuple[str | None, float | None]:
    """Return the metric to compare by and its value on the first validation split, None if missing or undefined.

    Args:
        scores: by split and metric.
        wanted: `metric_for_best_model`; None for the task's first metric.
    """
    validation = next((part for split, part in scores.items() if split.startswith("validation")), {})
    metric = next(iter(validation), None) if wanted is None else wanted.removeprefix("eval_")
    return metric, None if metric is None else validation.get(metric)


def log_facts(folder: Path) -> dict[str, Any]:
    """Return the content of a run's log by kind of line; nothing if there is no log. Stops at an incomplete line."""
    lines: list[dict[str, Any]] = []
    try:
        for text in read_text(folder / LOG_FILE).removesuffix("\n").split("\n"):
            line = parse_json(text)
            if not isinstance(line, dict) or not isinstance(line.get("labels", {}), dict):
                raise ValueError("not a line of the log")
            lines.append(line)
    except (OSError, ValueError):
        pass
    return {
        "labels_by_epoch": [{"epoch": line.get("epoch"), **line["labels"]} for line in lines if "labels" in line],
        "curve": [{name: line[name] for name in _CURVE if name in line} for line in lines if "loss" in line],
        "scored": [
            {name: value for name, value in line.items() if name != "is_best"} for line in lines if "is_best" in line
        ],
    }


def record_file(folder: Path, run: Run) -> Path:
    """Return the path of a run's record in a comparison's folder."""
    return folder / "records" / f"{run.name}.json"


def read_records(folder: Path) -> list[tuple[RunRecord, Path]]:
    """Read all records of a comparison's folder, each with its file, sorted by task, size, method and seed.

    Raises:
        CheckpointError: one of them cannot be read.
    """
    files = (folder / "records").glob("*/*/*/seed-*.json")
    return sorted(((RunRecord.load(file), file) for file in files), key=lambda found: _order(found[0]))


def _order(record: RunRecord) -> tuple[Any, ...]:
    run = record.run
    return (run.task, run.train_size is None, run.train_size or 0, run.method, run.seed)


def unpaired(records: Iterable[RunRecord]) -> list[str]:
    """Return a text for each task, size and seed whose methods were not trained and scored on the same rows.

    Rows of extra files belong to the method, and are ignored.
    """
    seen: dict[tuple[str, str, int], dict[str, list[str]]] = {}
    for record in records:
        if record.is_done:
            prints = dict(record.data_fingerprint)
            prints |= {"train": own} if (own := prints.pop(ORIGINAL_TRAIN, None)) is not None else {}
            rows = json.dumps(prints, sort_keys=True)
            key = (record.run.task, record.run.size, record.run.seed)
            seen.setdefault(key, {}).setdefault(rows, []).append(record.run.method)
    return [
        f"{task}, {size} rows, seed {seed}: {' | '.join(', '.join(methods) for methods in by_rows.values())}"
        for (task, size, seed), by_rows in seen.items()
        if len(by_rows) > 1
    ]
