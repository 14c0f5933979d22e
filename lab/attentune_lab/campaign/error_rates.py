"""Error rates of the intervals and tests of `attentune.stats`, by simulation.

    python -m attentune_lab.campaign.error_rates [--plays 4000] [--folds]

Simulates many experiments whose true difference is known (`Scenario`): two methods, a few seeds, right or wrong answers
to the same examples. Counts false alarms (a difference is found where there is none), coverage (the 95 % interval
contains the true difference) and power (a true difference of two points is found). Writes results/stats/rates.json and
prints the tables of results/stats/README.md. With --folds it prints the false alarms of tests over the folds of
cross-validation as JSON instead.
"""

import argparse
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from scipy.special import ndtri
from scipy.stats import rankdata

from attentune.data.splits import stratified_folds
from attentune.results import versions
from attentune.seeding import numpy_generator
from attentune.stats.compare import holm, rank_methods
from attentune.stats.estimate import Estimate, mean_over_seeds, mean_over_seeds_and_examples
from attentune.stats.paired_tests import mcnemar_p, paired_bootstrap_test, sign_flip_p
from attentune.stats.power import minimum_detectable_effect
from attentune_lab.campaign.campaign import processor, table

# Answers drawn at a time.
_AT_ONCE = 4_000_000


@dataclass(frozen=True)
class Scenario:
    """The model that experiments are drawn from; standard deviations are in units of the noise of one answer.

    An answer is right where the sum of normal parts is above a threshold: how easy the example is, how the method takes
    to that example, the seed's luck that both methods share, the method's own luck with the seed, and luck in that one
    answer. So the expected accuracy is known exactly. A run may also collapse to the majority guess.
    """

    examples: int  # the number of examples
    accuracy: float  # the baseline's expected accuracy over seeds and examples
    example_sd: float = 3.0  # standard deviation of the examples' difficulty
    interaction_sd: float = 0.7  # standard deviation of the interaction of method and example, the same for all seeds
    shared_seed_sd: float = 0.12  # standard deviation of the seed effect that both methods share
    own_seed_sd: float = 0.12  # standard deviation of each method's own seed effect
    collapse: float = 0.0  # the share of runs that predict the majority class only
    guess: float = 0.5  # the accuracy of such a run

    def threshold(self, accuracy: float) -> float:
        spreads = (self.example_sd, self.interaction_sd, self.shared_seed_sd, self.own_seed_sd, 1.0)
        return float(ndtri(accuracy)) * math.sqrt(sum(spread**2 for spread in spreads))


SCENARIOS = {
    "277 examples": Scenario(examples=277, accuracy=0.62),
    "872 examples": Scenario(examples=872, accuracy=0.82, shared_seed_sd=0.13, own_seed_sd=0.13),
    "872 examples, same tastes": Scenario(
        examples=872, accuracy=0.82, interaction_sd=0.0, shared_seed_sd=0.13, own_seed_sd=0.13
    ),
    "277 examples, 1 run in 10 collapses": Scenario(examples=277, accuracy=0.62, collapse=0.1),
}


def answers(
    scenario: Scenario, gaps: tuple[float, ...], seeds: int, plays: int, generator: np.random.Generator
) -> np.ndarray:
    """(methods, plays, S, N) right or wrong; each method's expected accuracy is the scenario's plus its gap.

    With collapses the true gap is (1 - collapse) of that.
    """

    def normal(sd: float, *shape: int) -> np.ndarray:
        return np.float32(sd) * generator.standard_normal(shape, dtype=np.float32)

    methods, examples = len(gaps), scenario.examples
    bars = np.array([scenario.threshold(scenario.accuracy + gap) for gap in gaps], dtype=np.float32)
    found = normal(1.0, methods, plays, seeds, examples)
    found += normal(scenario.example_sd, 1, plays, 1, examples) + normal(
        scenario.interaction_sd, methods, plays, 1, examples
    )
    found += normal(scenario.shared_seed_sd, 1, plays, seeds, 1) + normal(
        scenario.own_seed_sd, methods, plays, seeds, 1
    )
    right = found + bars[:, None, None, None] > 0
    if scenario.collapse:
        collapsed = generator.random((methods, plays, seeds, 1)) < scenario.collapse
        guessed = generator.random((1, plays, 1, examples)) < scenario.guess
        right = np.where(collapsed, guessed, right)
    return right


def batches(scenario: Scenario, gaps: tuple[float, ...], seeds: int, plays: int, key: str) -> Iterator[np.ndarray]:
    """The answers of that many plays, a few million at a time."""
    size = max(1, _AT_ONCE // (len(gaps) * seeds * scenario.examples))
    for start in range(0, plays, size):
        generator = numpy_generator("stat-rates", key, seeds, repr(gaps), start)
        yield answers(scenario, gaps, seeds, min(size, plays - start), generator)


def differences(scenario: Scenario, gap: float, seeds: int, plays: int, key: str) -> Iterator[np.ndarray]:
    """(plays, S, N) +1, 0 or -1: the second method's answers less the first's."""
    for right in batches(scenario, (0.0, gap), seeds, plays, key):
        yield right[1].astype(np.float64) - right[0]


def matthews_values(labels_PN: np.ndarray, right_PSN: np.ndarray) -> np.ndarray:
    """(plays, S, N) jackknife values of Matthews' correlation: only four different ones a run, one a table cell."""
    guesses_PSN = labels_PN[:, None] == right_PSN
    cells_PSN = 2 * labels_PN[:, None].astype(np.int64) + guesses_PSN
    counts_PSC = np.stack([(cells_PSN == cell).sum(axis=-1) for cell in range(4)], axis=-1).astype(np.float64)
    whole_PS = _matthews(counts_PSC)
    without_PSC = np.stack([_matthews(counts_PSC - np.eye(4)[cell]) for cell in range(4)], axis=-1)
    examples = right_PSN.shape[-1]
    mean_PS1 = (without_PSC * counts_PSC).sum(axis=-1, keepdims=True) / examples
    values_PSC = whole_PS[..., None] + (examples - 1) * (mean_PS1 - without_PSC)
    return np.take_along_axis(values_PSC, cells_PSN, axis=-1)


def _matthews(counts: np.ndarray) -> np.ndarray:
    """From (..., 4) counts: label 0 guessed 0, guessed 1, label 1 guessed 0, guessed 1; 0 where it is undefined."""
    tn, fp, fn, tp = np.moveaxis(counts, -1, 0)
    size = (tp + fp) * (tp + fn) * (tn + fp) * (tn + fn)
    return np.where(size > 0, (tp * tn - fp * fn) / np.sqrt(np.maximum(size, 1.0)), 0.0)


RECORD = Path("results/stats/rates.json")
SEEDS = (3, 5, 10)
GAP = 0.02
LEVEL = 0.05
FEATURES, SHIFT = 8, 0.35
RESAMPLES = 400
PRIMARY = "seeds and examples (primary)"


# Each procedure: for (plays, S, N) differences the p values, or the ends of the intervals.


def resampled(over: Literal["seeds", "examples", "both"]) -> Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]]:
    """Percentile intervals of resampled means; "both" is the pigeonhole bootstrap (Owen 2007)."""

    def ends(values_PSN: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = []
        for number, values_SN in enumerate(values_PSN):
            generator, (seeds, examples) = numpy_generator("stat-rates", over, number), values_SN.shape
            # Resampling weights each seed and example by how often it was drawn.
            draw_RN = generator.multinomial(examples, np.full(examples, 1 / examples), RESAMPLES) / examples
            draw_RS = generator.multinomial(seeds, np.full(seeds, 1 / seeds), RESAMPLES) / seeds
            weight_RN = draw_RN if over != "seeds" else np.full_like(draw_RN, 1 / examples)
            weight_RS = draw_RS if over != "examples" else np.full_like(draw_RS, 1 / seeds)
            means_R = ((weight_RS @ values_SN) * weight_RN).sum(axis=1)
            found.append(np.quantile(means_R, (0.025, 0.975)))
        low_P, high_P = np.array(found).T
        return low_P, high_P

    return ends


def _ends(found: Estimate) -> tuple[Any, Any]:
    return found.low, found.high


def signed_ranks(differences_S: np.ndarray) -> np.ndarray:
    """Rank the absolute values of (..., S) differences and give the ranks their signs; zeros get 0 and no rank.

    The sign-flip test of them is Wilcoxon's signed-rank test, exact with ties too, as `scipy.stats.wilcoxon` is not.

    Source: Wilcoxon, Biometrics Bulletin 1, 1945.
    """
    differences_S = np.asarray(differences_S, dtype=np.float64)
    sizes_S = np.where(differences_S == 0, np.nan, np.abs(differences_S))
    # After subtraction, equal scores may differ in their last bits: round, so that they are ties.
    ranks_S = rankdata(np.round(sizes_S, 12), axis=-1, nan_policy="omit")
    return np.where(differences_S == 0, 0.0, np.sign(differences_S) * ranks_S)


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
    PRIMARY: lambda values_PSN: _ends(mean_over_seeds_and_examples(values_PSN)),
    "t over seeds": lambda values_PSN: _ends(mean_over_seeds(values_PSN.mean(axis=-1))),
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
# Asked about the first plays only: each play costs them some milliseconds.
SLOW = {name for name in (*INTERVALS, *TESTS) if "bootstrap" in name or "McNemar" in name}
_SLOW_SHARE = 8


def decide(name: str, values_PSN: np.ndarray, truth: float) -> dict[str, np.ndarray]:
    """(plays,) whether the procedure finds a difference at the level; of an interval, whether it holds the truth."""
    if name in TESTS:
        return {"found": TESTS[name](values_PSN) <= LEVEL}
    low, high = INTERVALS[name](values_PSN)
    return {"found": (low > 0) | (high < 0), "held": (low <= truth) & (truth <= high)}


def decide_all(
    names: tuple[str, ...], scenario: Scenario, gap: float, seeds: int, plays: int, key: str
) -> dict[str, dict[str, float]]:
    """By procedure the share of plays in which it finds a difference, and of those in which its interval contains the
    true one; all procedures see the same plays."""
    truth = (1.0 - scenario.collapse) * gap
    verdicts: dict[str, list[dict[str, np.ndarray]]] = {name: [] for name in names}
    done = 0
    for part in differences(scenario, gap, seeds, plays, key):
        for name in names:
            wanted = max(0, plays // _SLOW_SHARE - done) if name in SLOW else len(part)
            if wanted:
                verdicts[name].append(decide(name, part[:wanted], truth))
        done += len(part)
    return {
        name: {kind: float(np.mean(np.concatenate([one[kind] for one in own]))) for kind in own[0]}
        for name, own in verdicts.items()
    }


def rates(names: tuple[str, ...], scenario: Scenario, seeds: int, plays: int, key: str) -> dict[str, dict[str, float]]:
    """By procedure: false alarms without a difference; power, and of an interval the coverage, at two points."""
    without, with_gap = (decide_all(names, scenario, gap, seeds, plays, key) for gap in (0.0, GAP))
    found = {}
    for name in names:
        found[name] = {"false_alarms": without[name]["found"], "power": with_gap[name]["found"]}
        if "held" in with_gap[name]:
            found[name]["coverage"] = with_gap[name]["held"]
        found[name]["plays"] = plays // _SLOW_SHARE if name in SLOW else plays
    return found


def spread(scenario: Scenario, seeds: int, plays: int, key: str) -> dict[str, float]:
    """Return the spreads that can be compared with those of real runs."""
    parts = [right.astype(np.float64) for right in batches(scenario, (0.0, 0.0), seeds, plays, key)]
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


def detectable(scenario: Scenario, seeds: int, plays: int, key: str) -> dict[str, float]:
    """Return the smallest difference with a stated power of 0.8, and its power in the simulation."""
    seen = [mean_over_seeds_and_examples(part) for part in differences(scenario, 0.0, seeds, plays, key)]
    seed_variance, example_variance = (
        float(np.mean(np.concatenate([getattr(one, part) for one in seen])))
        for part in ("seed_variance", "example_variance")
    )
    gap = minimum_detectable_effect(
        seeds,
        math.sqrt(seed_variance * seeds),
        examples=scenario.examples,
        example_sd=math.sqrt(example_variance * scenario.examples),
    )
    power = decide_all((PRIMARY,), scenario, gap / (1.0 - scenario.collapse), seeds, plays, key)[PRIMARY]["found"]
    return {"difference": gap, "power": power, "plays": plays}


def family(scenario: Scenario, methods: int, seeds: int, plays: int, key: str) -> dict[str, float]:
    """Family-wise false alarms of several equal methods against one baseline, with and without Holm's correction."""
    plain, corrected = [], []
    for right in batches(scenario, (0.0,) * (methods + 1), seeds, plays, key):
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
    """False alarms of Friedman's test on equal methods over tasks, and of the groups for any two of them."""
    names = [str(number) for number in range(methods)]
    overall, pairs = [], []
    for play in range(plays):
        generator = numpy_generator("stat-rates", "ranking", tasks, methods, play)
        found = rank_methods(generator.standard_normal((tasks, methods)), names, generator=generator, permutations=999)
        overall.append(found.p <= LEVEL)
        span = found.mean_ranks[-1] - found.mean_ranks[0]
        pairs.append(found.p <= LEVEL and span >= found.critical_difference)
    return {"friedman": float(np.mean(overall)), "any_pair": float(np.mean(pairs)), "plays": plays}


def matthews(scenario: Scenario, seeds: int, plays: int, key: str) -> dict[str, float]:
    """False alarms of the primary interval on Matthews' correlation; seven labels in ten are 1, as in CoLA."""
    alarms = []
    for number, right in enumerate(batches(scenario, (0.0, 0.0), seeds, plays, key)):
        labels_PN = numpy_generator("stat-rates", "labels", number).random((right.shape[1], right.shape[3])) < 0.7
        values = [matthews_values(labels_PN, one) for one in right]
        alarms.append(decide(PRIMARY, values[1] - values[0], 0.0)["found"])
    return {"false_alarms": float(np.mean(np.concatenate(alarms))), "plays": plays}


def measure(plays: int) -> dict[str, Any]:
    record: dict[str, Any] = {"scenarios": {}}
    for key, scenario in SCENARIOS.items():
        by_seeds = {}
        for seeds in SEEDS:
            by_seeds[str(seeds)] = {
                "spread": spread(scenario, seeds, plays // 10, key),
                "procedures": rates((*INTERVALS, *TESTS), scenario, seeds, plays, key),
                "detectable": detectable(scenario, seeds, plays, key),
            }
        record["scenarios"][key] = by_seeds
    small = SCENARIOS["277 examples"]
    record["family"] = {str(seeds): family(small, 8, seeds, plays // 4, "family") for seeds in SEEDS}
    record["matthews"] = {str(seeds): matthews(small, seeds, plays, "matthews") for seeds in SEEDS}
    record["ranking"] = {
        f"{tasks} tasks, {methods} methods": ranking(tasks, methods, plays // 4)
        for tasks in (3, 6, 10)
        for methods in (3, 9)
    }
    return record


# Folds of cross-validation: two learners that are equally good by construction, nearest class mean on one half of the
# features or on the other, are cross-validated on made-up rows, again and again.


def accuracy_gap(x_NF: np.ndarray, labels_N: np.ndarray, scored: np.ndarray) -> float:
    """How much more accurate the first learner is on the rows scored, trained on the others."""
    kept = np.setdiff1d(np.arange(len(labels_N)), scored)
    right = []
    for half in (slice(0, FEATURES), slice(FEATURES, 2 * FEATURES)):
        means = [x_NF[kept][labels_N[kept] == label, half].mean(axis=0) for label in (0, 1)]
        gaps = [((x_NF[scored][:, half] - mean) ** 2).sum(axis=1) for mean in means]
        right.append(np.mean((gaps[1] < gaps[0]) == labels_N[scored]))
    return float(right[0] - right[1])


def fold_rates(folds: int, repeats: int, rows: int, plays: int, seed: int = 1) -> dict[str, float]:
    """The shares of plays in which the plain and the corrected test reject at 5 %."""
    differences = []
    for number in range(plays):
        draw = np.random.default_rng([seed, folds, repeats, rows, number])
        labels_N = np.arange(rows) % 2
        x_NF = draw.standard_normal((rows, 2 * FEATURES)) + SHIFT * labels_N[:, None]
        parts = [part for again in range(repeats) for part in stratified_folds(labels_N, folds, number, again)]
        differences.append([accuracy_gap(x_NF, labels_N, part) for part in parts])
    values_PS = np.array(differences)
    rates = {}
    for name, overlap in (("plain", 0.0), ("corrected", 1 / (folds - 1))):
        p_P = np.asarray(mean_over_seeds(values_PS, overlap=overlap).p)
        rates[name] = float(np.mean(p_P <= LEVEL))
    return rates


def measure_folds(plays: int) -> dict[str, Any]:
    return {
        f"{rows} rows, {folds} folds, cut {repeats} x": fold_rates(folds, repeats, rows, plays)
        for rows in (100, 500)
        for folds, repeats in ((5, 1), (10, 1), (5, 2), (10, 5))
    }


def tables(record: dict[str, Any]) -> dict[str, str]:
    """The tables of results/stats/README.md and docs/statistics.md, in Markdown, by title."""
    scenarios, keys = record["scenarios"], [str(seeds) for seeds in SEEDS]
    by_seeds = [f"{seeds} seeds" for seeds in SEEDS]
    found = {kind: _procedures(scenarios, kind) for kind in ("false_alarms", "coverage")}
    head = ["scenario", "accuracy", "score over seeds", "difference over seeds", "correlation of the two"]
    found["scenarios"] = _table(
        [*head, "methods disagree on"],
        {
            key: [
                f"{100 * SCENARIOS[key].accuracy:.0f} %",
                f"{100 * seen['score_sd']:.1f} points",
                f"{100 * seen['difference_sd']:.1f} points",
                f"{seen['correlation_of_seeds']:.2f}",
                _percent(seen["disagreement_of_methods"]),
            ]
            for key, seen in ((key, own["5"]["spread"]) for key, own in scenarios.items())
        },
    )
    counts = (3, 4, 5, 6, 8, 10, 20)
    effects = {n: [minimum_detectable_effect(n, 1.0, alpha=alpha) for alpha in (0.05, 0.005)] for n in counts}
    found["seeds"] = _table(
        ["seeds", "one comparison", "one of ten"], {str(n): [f"{one:.1f}" for one in own] for n, own in effects.items()}
    )
    rows = {}
    for key, own in scenarios.items():
        stated = [own[seeds]["detectable"] for seeds in keys]
        rows[key] = [f"{100 * one['difference']:.1f} points, found in {_percent(one['power'])}" for one in stated]
    found["detectable"] = _table(["scenario", *by_seeds], rows)
    rows = {
        title: [_percent(record[part][seeds][name]) for seeds in keys]
        for title, part, name in (
            ("one or more of 8, without Holm", "family", "without_holm"),
            ("one or more of 8, after Holm", "family", "with_holm"),
            ("Matthews' correlation", "matthews", "false_alarms"),
        )
    }
    found["family and Matthews"] = _table(["false alarms", *by_seeds], rows)
    rows = {key: [_percent(one["friedman"]), _percent(one["any_pair"])] for key, one in record["ranking"].items()}
    found["ranking"] = _table(["false alarms", "Friedman's test", "any two methods differ"], rows)
    return found


def _procedures(scenarios: dict[str, Any], kind: str) -> str:
    """A procedure a row, a scenario a column; a cell has the rates by number of seeds, in percent."""
    names = next(iter(scenarios.values()))["5"]["procedures"]
    rows = {
        name: [
            " / ".join(f"{100 * by_seeds[str(seeds)]['procedures'][name][kind]:.1f}" for seeds in SEEDS)
            for by_seeds in scenarios.values()
        ]
        for name in names
        if kind in names[name]
    }
    return _table([f"% with {', '.join(map(str, SEEDS))} seeds", *scenarios], rows)


def _table(head: list[str], rows: dict[str, list[str]]) -> str:
    return "\n".join(table(head, [[title, *cells] for title, cells in rows.items()]))


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f} %"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plays", type=int, default=4000, help="experiments a rate; slow ones: an eighth")
    parser.add_argument("--folds", action="store_true", help="only the tests over folds of cross-validation")
    given = parser.parse_args()
    if given.folds:
        print(json.dumps({"plays": given.plays, "rates": measure_folds(given.plays)}, indent=2))
        return
    command = f"python -m attentune_lab.campaign.error_rates --plays {given.plays}"
    record = {"command": command} | measure(given.plays) | {"processor": processor(), "versions": versions()}
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    RECORD.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    for title, lines in tables(record).items():
        print(f"\n{title}\n\n{lines}")


if __name__ == "__main__":
    main()
