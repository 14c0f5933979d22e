"""The tables of docs/statistics.md, from the record of `stat_rates.py`."""

from __future__ import annotations

from typing import Any

from attentune.stats.power import minimum_detectable_effect
from stat_worlds import WORLDS

SEEDS = (3, 5, 10)


def tables(record: dict[str, Any]) -> dict[str, str]:
    """The tables of docs/statistics.md, in Markdown, by title."""
    found = {key: _procedures(by_seeds) for key, by_seeds in record["worlds"].items()}
    found["worlds"] = _worlds(record)
    found["seeds"] = _seeds_needed()
    rows = {}
    for key, by_seeds in record["worlds"].items():
        stated = [by_seeds[str(seeds)]["detectable"] for seeds in SEEDS]
        rows[key] = [f"{100 * one['difference']:.1f} points, found in {_percent(one['power'])}" for one in stated]
    found["detectable"] = _table(["world", *(f"{seeds} seeds" for seeds in SEEDS)], rows)
    rows = {
        "one or more of 8, without Holm": [_percent(record["family"][str(seeds)]["without_holm"]) for seeds in SEEDS],
        "one or more of 8, after Holm": [_percent(record["family"][str(seeds)]["with_holm"]) for seeds in SEEDS],
        "Matthews' correlation": [_percent(record["matthews"][str(seeds)]["false_alarms"]) for seeds in SEEDS],
    }
    found["family and Matthews"] = _table(["false alarms", *(f"{seeds} seeds" for seeds in SEEDS)], rows)
    rows = {key: [_percent(one["friedman"]), _percent(one["any_pair"])] for key, one in record["ranking"].items()}
    found["ranking"] = _table(["false alarms", "Friedman's test", "any two methods told apart"], rows)
    return found


def _procedures(by_seeds: dict[str, Any]) -> str:
    kinds = {"alarms": "false_alarms", "coverage": "coverage"}
    head = ["procedure", *(f"{kind}, {seeds} seeds" for kind in kinds for seeds in SEEDS)]
    rows = {
        name: [
            _percent(by_seeds[str(seeds)]["procedures"][name].get(kind)) for kind in kinds.values() for seeds in SEEDS
        ]
        for name in by_seeds["5"]["procedures"]
    }
    return _table(head, rows)


def _worlds(record: dict[str, Any]) -> str:
    head = ["world", "accuracy", "score over seeds", "difference over seeds", "correlation of the two"]
    rows = {}
    for key, by_seeds in record["worlds"].items():
        seen = by_seeds["5"]["spread"]
        rows[key] = [
            f"{100 * WORLDS[key].accuracy:.0f} %",
            f"{100 * seen['score_sd']:.1f} points",
            f"{100 * seen['difference_sd']:.1f} points",
            f"{seen['correlation_of_seeds']:.2f}",
            _percent(seen["disagreement_of_methods"]),
        ]
    return _table([*head, "methods disagree on"], rows)


def _seeds_needed() -> str:
    rows = {
        str(seeds): [f"{minimum_detectable_effect(seeds, 1.0, alpha=alpha):.1f}" for alpha in (0.05, 0.005)]
        for seeds in (3, 4, 5, 6, 8, 10, 20)
    }
    return _table(["seeds", "one comparison", "one of ten"], rows)


def _table(head: list[str], rows: dict[str, list[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join(lines + [f"| {' | '.join([title, *cells])} |" for title, cells in rows.items()])


def _percent(rate: float | None) -> str:
    return "" if rate is None else f"{100 * rate:.1f} %"
