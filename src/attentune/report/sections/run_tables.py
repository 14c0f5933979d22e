"""The tables of what runs cost, how they were set, and which failed."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attentune.config import Config, flatten, to_flat
from attentune.report.analysis import Cell, Verdicts
from attentune.report.document import Table
from attentune.report.load import RecordedRun
from attentune.report.numbers import NOTHING, median_text, place

# They say where or how a run was made, or differ from run to run by design.
_OWN = {
    "preset", "training.output_dir", "training.overwrite_output_dir", "training.resume", "training.seed",
    "training.logging_steps", "training.save_total_limit", "training.report_to", "data.task", "data.tasks",
    "data.task_settings", "data.data_dir", "data.max_train_samples",
}  # fmt: skip
_GIB = 1 << 30


def settings_of(cell: Cell) -> dict[str, Any]:
    """Return the settings of a cell's runs by dotted name, without those that differ between runs of one method."""
    return {name: value for name, value in flatten(cell.kept[0].record.config).items() if name not in _OWN}


def cost_table(verdicts: Verdicts) -> Table | None:
    """Seconds, speed, memory and parameters by task and method; None without finished runs."""
    rows = []
    for cell in verdicts.cells:
        train = [one.record.train for one in cell.kept if one.record.is_done and one.record.train]
        if not train:
            continue
        base = next(
            (
                one
                for one in verdicts.cells
                if (one.task, one.size, one.method) == (cell.task, cell.size, verdicts.baseline)
            ),
            None,
        )
        rows.append(
            (
                place(cell, verdicts.cells),
                cell.method,
                median_text(_values(train, _all_seconds)),
                _times(cell, base),
                median_text(_values(train, lambda facts: facts.get("label_seconds"))),
                median_text(_values(train, lambda facts: facts.get("tokens_per_second")), 0),
                median_text(_values(train, lambda facts: _scaled(facts.get("peak_memory_bytes"), 1 / _GIB)), 2),
                _parameters(train, "parameters"),
                _parameters(train, "added_parameters"),
                ", ".join(dict.fromkeys(f"{facts.get('device', '?')} {facts.get('precision', '')}" for facts in train)),
            )
        )
    if not rows:
        return None
    header = (
        "task", "method", "training (s)", f"times {verdicts.baseline}", "of it labels (s)", "tokens/s",
        "peak memory (GiB)", "parameters", "outside the encoder", "device",
    )  # fmt: skip
    note = (
        "Median over runs, with the lowest and highest in brackets. Training: wall time in training steps and in making"
        " token labels, without loading, scoring and saving. Tokens are real ones, padding not counted. On a CPU the"
        " memory is the whole process's. Runs side by side on one machine slow each other down."
    )
    # Older records do not tell parameters.
    kept = [place for place in range(len(header)) if any(row[place] != NOTHING for row in rows)]
    shown = tuple(tuple(row[place] for place in kept) for row in rows)
    return Table("cost", "Time, memory and parameters", tuple(header[n] for n in kept), shown, left=2, notes=(note,))


def _values(train: Sequence[Mapping[str, Any]], pick: Callable[[Mapping[str, Any]], float | None]) -> list[float]:
    return [float(value) for value in map(pick, train) if value is not None]


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by


def _all_seconds(facts: Mapping[str, Any]) -> float | None:
    seconds = facts.get("seconds")
    return None if seconds is None else float(seconds) + float(facts.get("label_seconds") or 0.0)


def _times(cell: Cell, base: Cell | None) -> str:
    """How many times the baseline's time: the median over the seeds that both have."""
    if base is None or base is cell:
        return NOTHING
    ours, theirs = (
        {one.record.run.seed: _all_seconds(one.record.train) for one in own.kept if one.record.is_done}
        for own in (cell, base)
    )
    ratios = [own / their for seed, own in ours.items() if own and (their := theirs.get(seed))]
    return f"{statistics.median(ratios):.2f}" if ratios else NOTHING


def _parameters(train: Sequence[Mapping[str, Any]], name: str) -> str:
    found = dict.fromkeys(facts[name] for facts in train if facts.get(name) is not None)
    return " or ".join(f"{value:,}" for value in found) or NOTHING


def methods_table(verdicts: Verdicts) -> Table | None:
    """The settings in which methods differ; None where they do not."""
    by_method: dict[str, list[dict[str, Any]]] = {}
    for cell in verdicts.cells:
        by_method.setdefault(cell.method, []).append(settings_of(cell))
    names = dict.fromkeys(name for settings in by_method.values() for one in settings for name in one)
    rows = []
    for name in names:
        entries = [_one_or_several(settings, name) for settings in by_method.values()]
        if len(set(entries)) > 1:
            rows.append((name, *entries))
    if not rows:
        return None
    return Table("methods", "Settings in which methods differ", ("setting", *by_method), tuple(rows), left=99)


def _one_or_several(settings: Sequence[Mapping[str, Any]], name: str) -> str:
    found = dict.fromkeys(_text(one.get(name)) for one in settings)
    return next(iter(found)) if len(found) == 1 else f"by task: {', '.join(found)}"


def common_table(verdicts: Verdicts) -> Table | None:
    """The settings that all methods share and that are not the default, and those that matter most."""
    settings = [settings_of(cell) for cell in verdicts.cells]
    defaults = to_flat(Config())
    always = ("model.name_or_path", "training.learning_rate", "training.num_train_epochs", "data.max_length")
    rows = []
    for name in dict.fromkeys(name for one in settings for name in one):
        found = {_text(one.get(name)) for one in settings}
        if len(found) == 1 and (name in always or found != {_text(defaults.get(name))}):
            rows.append((name, found.pop()))
    return Table("common", "Settings of all", ("setting", "value"), tuple(rows), left=2) if rows else None


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def failed_table(kept: Sequence[RecordedRun]) -> Table | None:
    """The runs that failed and why."""
    rows = []
    for one in kept:
        if not one.record.is_done:
            run, error = one.record.run, one.record.error or {}
            told = f"{error.get('kind', 'error')}: {' '.join(str(error.get('message', '')).split())}"
            rows.append((run.task, run.size, run.method, str(run.seed), told[:400]))
    header = ("task", "rows", "method", "seed", "error")
    return Table("failed", "Runs that failed", header, tuple(rows), left=5) if rows else None


def versions_sentence(kept: Sequence[RecordedRun]) -> str:
    """With which versions the runs were made."""
    found: dict[str, dict[str, None]] = {}
    for one in kept:
        for name, version in one.record.versions.items():
            found.setdefault(name, {})[version] = None
    parts = ", ".join(f"{name} {' and '.join(versions)}" for name, versions in found.items() if name != "platform")
    return f"Versions: {parts}." if parts else ""
