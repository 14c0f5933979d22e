"""The tables of costs, settings and failed runs."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attentune.config import Config, flatten, to_flat
from attentune.report.analysis import Cell, Verdicts
from attentune.report.document import NOTHING, Table, format_median
from attentune.report.load import RecordedRun

# Settings that say where or how a run was made, or that differ between the runs of a method by design.
_RUN_SETTINGS = {
    "preset", "training.output_dir", "training.overwrite_output_dir", "training.resume", "training.seed",
    "training.logging_steps", "training.save_total_limit", "training.report_to", "data.task", "data.tasks",
    "data.task_settings", "data.data_dir", "data.max_train_samples",
}  # fmt: skip
_ALWAYS_LISTED = (
    "model.name_or_path", "training.learning_rate", "training.num_train_epochs", "data.max_length",
)  # fmt: skip
_GIB = 1 << 30
_MOST_ERROR_CHARACTERS = 400


def settings_of(cell: Cell) -> dict[str, Any]:
    """Return the settings of a cell's runs by dotted name, without those that differ between runs of one method."""
    settings = flatten(cell.recorded[0].record.config)
    return {name: value for name, value in settings.items() if name not in _RUN_SETTINGS}


def cost_table(verdicts: Verdicts) -> Table | None:
    """Make the table of time, speed, memory and parameters by task and method; None without finished runs."""
    baseline_cells = {(cell.task, cell.size): cell for cell in verdicts.cells if cell.method == verdicts.baseline}
    rows = []
    for cell in verdicts.cells:
        costs = [run.record.train for run in cell.recorded if run.record.is_done and run.record.train]
        if not costs:
            continue
        rows.append(
            (
                verdicts.title(cell),
                cell.method,
                format_median(_values(costs, total_seconds)),
                _relative_time(cell, baseline_cells.get((cell.task, cell.size))),
                format_median(_values(costs, lambda cost: cost.get("label_seconds"))),
                format_median(_values(costs, lambda cost: cost.get("tokens_per_second")), 0),
                format_median(_values(costs, _peak_memory_gib), 2),
                _parameters(costs, "parameters"),
                _parameters(costs, "added_parameters"),
                ", ".join(dict.fromkeys(f"{cost.get('device', '?')} {cost.get('precision', '')}" for cost in costs)),
            )
        )
    if not rows:
        return None
    header = (
        "task", "method", "training (s)", f"relative to {verdicts.baseline}", "token labels (s)", "tokens/s",
        "peak memory (GiB)", "parameters", "parameters outside the encoder", "device",
    )  # fmt: skip
    note = (
        "Median over runs with the minimum and maximum in brackets. Training: wall time of training steps and of"
        " generating token labels, without loading, evaluation and saving. Tokens are counted without padding. On a CPU"
        " the peak memory is that of the whole process. Parallel runs on one machine slow each other down."
    )
    # Columns that no record fills are left out.
    columns = [index for index in range(len(header)) if any(row[index] != NOTHING for row in rows)]
    shown_rows = tuple(tuple(row[index] for index in columns) for row in rows)
    shown_header = tuple(header[index] for index in columns)
    return Table("cost", "Time, memory and parameters", shown_header, shown_rows, left=2, notes=(note,))


def _values(costs: Sequence[Mapping[str, Any]], value_of: Callable[[Mapping[str, Any]], float | None]) -> list[float]:
    return [float(value) for value in map(value_of, costs) if value is not None]


def _peak_memory_gib(cost: Mapping[str, Any]) -> float | None:
    peak_bytes = cost.get("peak_memory_bytes")
    return None if peak_bytes is None else peak_bytes / _GIB


def total_seconds(cost: Mapping[str, Any]) -> float | None:
    """Return the training time of a run with that of its token labels."""
    seconds = cost.get("seconds")
    return None if seconds is None else float(seconds) + float(cost.get("label_seconds") or 0.0)


def _relative_time(cell: Cell, baseline: Cell | None) -> str:
    """Return the training time relative to the baseline's: the median over the seeds of both."""
    if baseline is None or baseline is cell:
        return NOTHING
    seconds, baseline_seconds = (
        {run.record.run.seed: total_seconds(run.record.train) for run in one.recorded if run.record.is_done}
        for one in (cell, baseline)
    )
    ratios = [
        time / baseline_time for seed, time in seconds.items() if time and (baseline_time := baseline_seconds.get(seed))
    ]
    return f"{statistics.median(ratios):.2f}" if ratios else NOTHING


def _parameters(costs: Sequence[Mapping[str, Any]], name: str) -> str:
    counts = dict.fromkeys(cost[name] for cost in costs if cost.get(name) is not None)
    return " or ".join(f"{count:,}" for count in counts) or NOTHING


def methods_table(verdicts: Verdicts) -> Table | None:
    """Make the table of the settings in which methods differ; None if they do not."""
    by_method: dict[str, list[dict[str, Any]]] = {}
    for cell in verdicts.cells:
        by_method.setdefault(cell.method, []).append(settings_of(cell))
    names = dict.fromkeys(name for cells in by_method.values() for settings in cells for name in settings)
    rows = []
    for name in names:
        entries = [_setting_entry(cells, name) for cells in by_method.values()]
        if len(set(entries)) > 1:
            rows.append((name, *entries))
    if not rows:
        return None
    header = ("setting", *by_method)
    return Table("methods", "Settings in which methods differ", header, tuple(rows), left=len(header))


def _setting_entry(cells: Sequence[Mapping[str, Any]], name: str) -> str:
    values = dict.fromkeys(_setting_text(settings.get(name)) for settings in cells)
    return next(iter(values)) if len(values) == 1 else f"by task: {', '.join(values)}"


def common_table(verdicts: Verdicts) -> Table | None:
    """Make the table of the settings that all methods share: those other than the default, and the most important."""
    cells = [settings_of(cell) for cell in verdicts.cells]
    defaults = to_flat(Config())
    rows = []
    for name in dict.fromkeys(name for settings in cells for name in settings):
        values = {_setting_text(settings.get(name)) for settings in cells}
        if len(values) == 1 and (name in _ALWAYS_LISTED or values != {_setting_text(defaults.get(name))}):
            rows.append((name, values.pop()))
    return Table("common", "Settings of all methods", ("setting", "value"), tuple(rows), left=2) if rows else None


def _setting_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def baselines_table(recorded: Sequence[RecordedRun]) -> Table | None:
    """Make the table of the runs that were compared with baselines on the same rows, and the warnings of all runs.

    None if there is neither.
    """
    rows, notes = [], []
    for one in recorded:
        run, made = one.record.run, one.record.baselines
        place = (run.task, run.method, str(run.seed))
        notes += [f"{', '.join(place)}: {sentence}" for sentence in one.record.warnings]
        for method in methods_of(made):
            low, high = method.get("low"), method.get("high")
            has_interval = isinstance(low, (int, float)) and isinstance(high, (int, float))
            rows.append(
                (
                    *place,
                    str(method.get("name", "")),
                    str((made or {}).get("metric", "")),
                    _decimals(method.get("score")),
                    f"{low:.4f} to {high:.4f}" if has_interval else NOTHING,
                    _decimals(method.get("seconds"), 1),
                )
            )
    header = ("task", "method", "seed", "compared", "metric", "score", "95 % interval", "seconds")
    if not rows and not notes:
        return None
    return Table("baselines", "Baselines on the same rows", header, tuple(rows), left=5, notes=tuple(notes))


def methods_of(made: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Return the entries of a record's comparison with baselines; entries of another kind are left out."""
    entries = (made or {}).get("methods")
    return [entry for entry in entries if isinstance(entry, Mapping)] if isinstance(entries, list) else []


def _decimals(value: Any, digits: int = 4) -> str:
    return f"{value:.{digits}f}" if isinstance(value, (int, float)) else NOTHING


def failed_table(recorded: Sequence[RecordedRun]) -> Table | None:
    """Make the table of failed runs with their errors; None if none failed."""
    rows = []
    for one in recorded:
        if not one.record.is_done:
            run, error = one.record.run, one.record.error or {}
            message = f"{error.get('kind', 'error')}: {' '.join(str(error.get('message', '')).split())}"
            rows.append((run.task, run.size, run.method, str(run.seed), message[:_MOST_ERROR_CHARACTERS]))
    header = ("task", "rows", "method", "seed", "error")
    return Table("failed", "Failed runs", header, tuple(rows), left=5) if rows else None


def versions_sentence(recorded: Sequence[RecordedRun]) -> str:
    """Return the versions of the software with which the runs were made."""
    by_name: dict[str, dict[str, None]] = {}
    for run in recorded:
        for name, version in run.record.versions.items():
            by_name.setdefault(name, {})[version] = None
    parts = [f"{name} {' and '.join(versions)}" for name, versions in by_name.items() if name != "platform"]
    return f"Versions: {', '.join(parts)}." if parts else ""
