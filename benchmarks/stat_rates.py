"""How often the intervals and tests of `attentune.stats` are wrong, by simulation.

    python benchmarks/stat_rates.py [--plays 4000]

Plays many experiments in the made-up worlds of `stat_worlds.py`, where the truth is known: two methods, a few seeds,
right or wrong answers to the same examples. Counts false alarms (a difference is found where there is none), coverage
(the 95 % interval holds the true difference) and power (a true difference of two points is found). The record goes to
results/stats/, and the tables of docs/statistics.md to standard output.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from attentune.results import versions
from attentune.seeding import numpy_generator
from attentune.stats.bootstrap import bootstrap_mean
from attentune.stats.detectable import smallest_detectable_difference
from attentune.stats.estimate import Estimate, mean_over_seeds, mean_over_seeds_and_examples
from attentune.stats.example_tests import mcnemar_p, paired_bootstrap_test
from attentune.stats.family import holm
from attentune.stats.ranks import rank_methods
from attentune.stats.seed_tests import sign_flip_p, signed_ranks
from stat_worlds import WORLDS, World, batches, differences, matthews_values

RECORD = Path(__file__).resolve().parents[1] / "results" / "stats" / "rates.json"
SEEDS = (3, 5, 10)
GAP = 0.02
LEVEL = 0.05
RESAMPLES = 500


# What is asked of each procedure: for (plays, S, N) differences the p values, or the ends of the intervals.


def estimates(ask: Callable[[np.ndarray], Estimate]) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    def ends(values_PSN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = ask(values_PSN)
        return found.low, found.high

    return ends


def resampled(over: str) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    def ends(values_PSN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = [
            bootstrap_mean(
                values_SN, over=over, generator=numpy_generator("stat-rates", over, number), resamples=RESAMPLES
            )
            for number, values_SN in enumerate(values_PSN)
        ]
        return np.array([low for low, _ in found]), np.array([high for _, high in found])

    return ends


def mcnemar_of_first_seed(values_PSN: np.ndarray) -> np.ndarray:
    first_PN = values_PSN[:, 0]
    return np.array([mcnemar_p(int((row > 0).sum()), int((row < 0).sum())) for row in first_PN])


def paired_bootstrap_of_first_seed(values_PSN: np.ndarray) -> np.ndarray:
    return np.array(
        [
            paired_bootstrap_test(row, generator=numpy_generator("stat-rates", number), resamples=RESAMPLES).p
            for number, row in enumerate(values_PSN[:, 0])
        ]
    )


INTERVALS: dict[str, Callable] = {
    "seeds and examples (primary)": estimates(mean_over_seeds_and_examples),
    "t over seeds": estimates(lambda values_PSN: mean_over_seeds(values_PSN.mean(axis=-1))),
    "bootstrap over seeds": resampled("seeds"),
    "bootstrap over examples": resampled("examples"),
    "bootstrap over both": resampled("both"),
}
TESTS: dict[str, Callable] = {
    "sign-flip over seeds": lambda values_PSN: sign_flip_p(values_PSN.mean(axis=-1)),
    "Wilcoxon over seeds": lambda values_PSN: sign_flip_p(signed_ranks(values_PSN.mean(axis=-1))),
    "McNemar, first seed": mcnemar_of_first_seed,
    "paired bootstrap, first seed": paired_bootstrap_of_first_seed,
}
SLOW = {name for name in (*INTERVALS, *TESTS) if "bootstrap" in name}


def rejections(name: str, values_PSN: np.ndarray) -> np.ndarray:
    """(plays,) whether the procedure finds a difference at the level."""
    if name in TESTS:
        return TESTS[name](values_PSN) <= LEVEL
    low, high = INTERVALS[name](values_PSN)
    return (low > 0) | (high < 0)


def false_alarms(name: str, world: World, seeds: int, plays: int, key: str) -> float:
    """The share of plays of two equal methods in which a difference is found."""
    return float(
        np.mean(np.concatenate([rejections(name, part) for part in differences(world, 0.0, seeds, plays, key)]))
    )


def rates(name: str, world: World, seeds: int, plays: int, key: str) -> dict[str, float]:
    """False alarms without a difference; power, and of an interval the coverage, at a true gap of two points."""
    truth = (1.0 - world.collapse) * GAP
    found, held = [], []
    for part in differences(world, GAP, seeds, plays, key):
        found.append(rejections(name, part))
        if name in INTERVALS:
            low, high = INTERVALS[name](part)
            held.append((low <= truth) & (truth <= high))
    record = {
        "false_alarms": false_alarms(name, world, seeds, plays, key),
        "power": float(np.mean(np.concatenate(found))),
    }
    if held:
        record["coverage"] = float(np.mean(np.concatenate(held)))
    return {kind: round(rate, 4) for kind, rate in record.items()} | {"plays": plays}


def spread(world: World, seeds: int, plays: int, key: str) -> dict[str, float]:
    """What the world looks like from outside, to be held against real runs."""
    parts = [right.astype(np.float64) for right in batches(world, (0.0, 0.0), seeds, plays, key)]
    scores_MPS = np.concatenate([part.mean(axis=-1) for part in parts], axis=1)
    sd = math.sqrt(scores_MPS.var(axis=-1, ddof=1).mean())
    between = math.sqrt((scores_MPS[1] - scores_MPS[0]).var(axis=-1, ddof=1).mean())
    return {
        "score_sd": sd,
        "difference_sd": between,
        "correlation_of_seeds": 1.0 - between**2 / (2.0 * sd**2),
        "disagreement_of_methods": float(np.mean([np.abs(part[0] - part[1]).mean() for part in parts])),
        "disagreement_of_seeds": float(np.mean([np.abs(part[:, :, 0] - part[:, :, 1]).mean() for part in parts])),
    }


def detectable(world: World, seeds: int, plays: int, key: str) -> dict[str, float]:
    """The difference that should be found in four of five plays, and how often it is."""
    seen = [mean_over_seeds_and_examples(part) for part in differences(world, 0.0, seeds, plays, key)]
    seed_variance, example_variance = (
        float(np.mean(np.concatenate([getattr(one, part) for one in seen])))
        for part in ("seed_variance", "example_variance")
    )
    gap = smallest_detectable_difference(
        seeds,
        math.sqrt(seed_variance * seeds),
        examples=world.examples,
        example_sd=math.sqrt(example_variance * world.examples),
    )
    name = "seeds and examples (primary)"
    found = [rejections(name, part) for part in differences(world, gap / (1.0 - world.collapse), seeds, plays, key)]
    return {"difference": gap, "power": float(np.mean(np.concatenate(found))), "plays": plays}


def family(world: World, methods: int, seeds: int, plays: int, key: str) -> dict[str, float]:
    """How often one or more of several equal methods is told from a shared baseline, with and without Holm."""
    plain, corrected = [], []
    for right in batches(world, (0.0,) * (methods + 1), seeds, plays, key):
        values = right.astype(np.float64)
        p_MP = np.array([mean_over_seeds_and_examples(one - values[0]).p for one in values[1:]])
        plain.append((p_MP <= LEVEL).any(axis=0))
        corrected.append(np.array([(holm(p_M) <= LEVEL).any() for p_M in p_MP.T]))
    return {
        "methods": methods,
        "without_holm": float(np.mean(np.concatenate(plain))),
        "with_holm": float(np.mean(np.concatenate(corrected))),
        "plays": plays,
    }


def ranking(tasks: int, methods: int, plays: int) -> dict[str, float]:
    """How often equal methods are told apart over tasks, by Friedman's test, and any two of them by the groups."""
    names = [str(number) for number in range(methods)]
    overall, pairs = [], []
    for play in range(plays):
        generator = numpy_generator("stat-rates", "ranking", tasks, methods, play)
        found = rank_methods(generator.standard_normal((tasks, methods)), names, generator=generator, permutations=999)
        overall.append(found.p <= LEVEL)
        pairs.append(len(found.groups) != 1 or len(found.groups[0]) < methods)
    return {"friedman": float(np.mean(overall)), "any_pair": float(np.mean(pairs)), "plays": plays}


def matthews(world: World, seeds: int, plays: int, key: str) -> dict[str, float]:
    """False alarms of the primary interval on Matthews' correlation; seven labels in ten are 1, as in CoLA."""
    alarms = []
    for number, right in enumerate(batches(world, (0.0, 0.0), seeds, plays, key)):
        labels_PN = numpy_generator("stat-rates", "labels", number).random((right.shape[1], right.shape[3])) < 0.7
        values = [matthews_values(labels_PN, one) for one in right]
        alarms.append(rejections("seeds and examples (primary)", values[1] - values[0]))
    return {"false_alarms": float(np.mean(np.concatenate(alarms))), "plays": plays}


def measure(plays: int) -> dict[str, Any]:
    """All rates."""
    record: dict[str, Any] = {"worlds": {}}
    for key, world in WORLDS.items():
        by_seeds = {}
        for seeds in SEEDS:
            by_seeds[str(seeds)] = {
                "spread": spread(world, seeds, plays // 4, key),
                "procedures": {
                    name: rates(name, world, seeds, plays // 4 if name in SLOW else plays, key)
                    for name in (*INTERVALS, *TESTS)
                },
                "detectable": detectable(world, seeds, plays, key),
            }
        record["worlds"][key] = by_seeds
    small = WORLDS["277 examples"]
    record["family"] = {str(seeds): family(small, 8, seeds, plays // 2, "family") for seeds in SEEDS}
    record["matthews"] = {str(seeds): matthews(small, seeds, plays, "matthews") for seeds in SEEDS}
    record["ranking"] = {
        f"{tasks} tasks, {methods} methods": ranking(tasks, methods, plays // 2)
        for tasks in (3, 6, 10)
        for methods in (3, 9)
    }
    return record


def tables(record: dict[str, Any]) -> dict[str, str]:
    """The tables of docs/statistics.md, in Markdown, by title."""
    found = {key: _procedures(by_seeds) for key, by_seeds in record["worlds"].items()}
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
        for name in (*INTERVALS, *TESTS)
    }
    return _table(head, rows)


def _table(head: list[str], rows: dict[str, list[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return "\n".join(lines + [f"| {' | '.join([title, *cells])} |" for title, cells in rows.items()])


def _percent(rate: float | None) -> str:
    return "" if rate is None else f"{100 * rate:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plays", type=int, default=4000, help="experiments a rate; a quarter of it for bootstraps")
    given = parser.parse_args()
    record = {"command": f"python benchmarks/stat_rates.py --plays {given.plays}"} | measure(given.plays)
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record | {"versions": versions()}, indent=1) + "\n")
    for title, table in tables(record).items():
        print(f"\n{title}\n\n{table}")


if __name__ == "__main__":
    main()
