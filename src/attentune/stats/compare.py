"""Compare methods: from the runs of several methods to comparisons, corrected for multiple testing, and to ranks."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import permutation_test, rankdata, studentized_range

from attentune.stats.estimate import Estimate, bounded_interval, mean_over_seeds, mean_over_seeds_and_examples
from attentune.stats.paired_tests import sign_flip_test, smallest_p
from attentune.stats.power import minimum_detectable_effect
from attentune.stats.verdict import Comparison


@dataclass(frozen=True)
class Runs:
    """The runs of one method on one task, one per seed.

    Two methods are compared seed by seed, so a seed must mean the same for both: the same training rows in the same
    order, the same examples, and the same initial weights of the parts that they share.
    """

    method: str  # the name of the method
    task: str  # the name of the task
    metric: str  # the name of the metric
    scores: Mapping[int, float | None]  # the score by seed
    # By seed, (N,) values whose mean is the score, in the same order in all runs of the task: correctness for accuracy,
    # errors for a mean error, `jackknife_values` for any other metric. Without them a comparison treats the examples as
    # fixed.
    examples: Mapping[int, np.ndarray] | None = None
    greater_is_better: bool = True  # the direction of the metric
    majority_score: float | None = None  # the score of always predicting the majority class, if known
    overlap: float = 0.0  # for cross-validation
    constant: frozenset[int] = frozenset()  # the seeds whose run gives one answer for all rows
    bounds: tuple[float, float] = (-math.inf, math.inf)  # the range of the metric

    def score(self, seed: int) -> float:
        """Return the score of a seed, the majority score if it is undefined, or NaN if that is unknown too."""
        score = self.scores.get(seed)
        if score is None or not math.isfinite(score):
            return math.nan if self.majority_score is None else self.majority_score
        return score

    def seeds(self) -> list[int]:
        """List the seeds with a score, ascending."""
        return [seed for seed in sorted(self.scores) if math.isfinite(self.score(seed))]

    def collapsed(self) -> list[int]:
        """List the seeds whose run scores no better than a constant answer, or has no defined score."""
        sign, majority = 1.0 if self.greater_is_better else -1.0, self.majority_score
        collapsed = []
        for seed in sorted(self.scores):
            score = self.scores[seed]
            undefined = score is None or not math.isfinite(score)
            at_floor = majority is not None and sign * (self.score(seed) - majority) <= 1e-12
            if undefined or at_floor or seed in self.constant:
                collapsed.append(seed)
        return collapsed

    @property
    def learnt_nothing(self) -> bool:
        """Whether all runs have collapsed."""
        return bool(self.scores) and len(self.collapsed()) == len(self.scores)

    def example_values(self, seeds: list[int]) -> np.ndarray | None:
        """Return the (S, N) values per example of the given seeds; None unless all have values."""
        if self.examples is None or not seeds or any(seed not in self.examples for seed in seeds):
            return None
        rows = [np.asarray(self.examples[seed], dtype=np.float64) for seed in seeds]
        if not all(np.isfinite(row).all() for row in rows):
            return None
        shapes = {row.shape for row in rows}
        if len(shapes) > 1 or len(rows[0].shape) != 1 or rows[0].size < 2:
            raise ValueError(
                f"{self._name()}: example values have shapes {sorted(shapes)}; expected the same (N,) for all seeds"
            )
        for seed, row in zip(seeds, rows, strict=True):
            if not math.isclose(row.mean(), self.score(seed), rel_tol=1e-5, abs_tol=1e-6):
                raise ValueError(
                    f"{self._name()}, seed {seed}: the example values have the mean {row.mean():g}, but the score is "
                    f"{self.score(seed):g}; for a metric that is not a mean over examples pass its jackknife_values"
                )
        return np.stack(rows)

    def _name(self) -> str:
        return f"{self.method} on {self.task} ({self.metric})"


@dataclass(frozen=True)
class Summary:
    """Mean and spread of one method's scores on one task, in the unit of the metric."""

    method: str  # the name of the method
    task: str  # the name of the task
    metric: str  # the name of the metric
    mean: float  # the mean over seeds; NaN without a score
    sd: float  # the sample standard deviation over seeds; NaN for fewer than two
    low: float  # the lower bound of the interval of the mean; NaN for fewer than two seeds
    high: float  # the upper bound
    over: str  # what the interval treats as random: "seeds", "seeds and examples", or "folds"
    seeds: int  # the number of seeds with a score
    examples: int | None  # the number of examples; None if they are treated as fixed
    collapsed: tuple[int, ...]  # the seeds whose run scores no better than a constant answer, or has no defined score


def summarise(runs: Runs) -> Summary:
    """Summarise the runs of a method; the interval has the variance of its comparisons, within the metric's range."""
    seeds = runs.seeds()
    scores_S = np.array([runs.score(seed) for seed in seeds])
    estimate, examples = estimate_mean(scores_S, runs.example_values(seeds), 0.95, runs.overlap)
    low, high = bounded_interval(estimate, runs.bounds)
    return Summary(
        method=runs.method,
        task=runs.task,
        metric=runs.metric,
        mean=float(estimate.value),
        sd=float(scores_S.std(ddof=1)) if len(seeds) > 1 else math.nan,
        low=low,
        high=high,
        over="folds" if runs.overlap else "seeds" if examples is None else "seeds and examples",
        seeds=len(seeds),
        examples=examples,
        collapsed=tuple(runs.collapsed()),
    )


def estimate_mean(
    scores_S: np.ndarray, values_SN: np.ndarray | None, confidence: float, overlap: float = 0.0
) -> tuple[Estimate, int | None]:
    """Estimate the mean over seeds and examples if there are values per example and two seeds, else over seeds."""
    if values_SN is None or len(scores_S) < 2:
        return mean_over_seeds(scores_S, confidence=confidence, overlap=overlap), None
    return mean_over_seeds_and_examples(values_SN, confidence=confidence), values_SN.shape[1]


@dataclasses.dataclass(frozen=True)
class _Paired:
    """Two methods' scores on their common seeds; advantages (positive is better) by seed, and by example if known."""

    seeds: list[int]
    baseline_S: np.ndarray
    method_S: np.ndarray
    advantage_S: np.ndarray
    advantage_SN: np.ndarray | None
    overlap: float = 0.0


def compare_runs(baseline: Runs, method: Runs, *, alpha: float = 0.05, family: int = 1) -> Comparison:
    """Compare a method with a baseline on one task, paired by seed.

    The primary test and interval come from `mean_over_seeds_and_examples` if both methods have values per example,
    and of `mean_over_seeds` (the paired t test) otherwise; docs/statistics.md gives the reasons. Null hypothesis: the
    two methods have the same mean score over all seeds (and examples) that could have been sampled.
    """
    paired = _pair(baseline, method)
    main, advantage_S = _primary(paired, alpha, family), paired.advantage_S
    # The sign-flip test assumes independent runs, which folds are not.
    independent = len(advantage_S) > 1 and not paired.overlap
    return Comparison(
        baseline=baseline.method,
        method=method.method,
        task=method.task,
        metric=method.metric,
        difference=_mean(advantage_S),
        **main,
        p_holm=min(1.0, family * main["p"]) if math.isfinite(main["p"]) else math.nan,
        family=family,
        seeds=len(paired.seeds),
        p_sign_flip=sign_flip_test(advantage_S) if independent else math.nan,
        baseline_mean=_mean(paired.baseline_S),
        method_mean=_mean(paired.method_S),
        alpha=alpha,
        greater_is_better=method.greater_is_better,
        notes=tuple(_notes(baseline, method, paired)),
    )


def compare_all(runs: Sequence[Runs], baseline: str, *, alpha: float = 0.05) -> list[Comparison]:
    """Compare every method with one baseline on every task and metric, with Holm's correction over all of them.

    The family is all comparisons that have a p, over all tasks: the family-wise error rate of the whole table is at
    most alpha. Choose what to compare before looking at the scores.
    """
    baselines = {(one.task, one.metric): one for one in runs if one.method == baseline}
    pairs = [(baselines[one.task, one.metric], one) for one in runs if one.method != baseline]
    return compare_pairs(pairs, alpha=alpha)


def compare_pairs(pairs: Sequence[tuple[Runs, Runs]], *, alpha: float = 0.05) -> list[Comparison]:
    """Compare each pair of a baseline and a method, with Holm's correction over all pairs."""
    family = sum(len(_pair(*pair).seeds) >= 2 for pair in pairs)
    comparisons = [compare_runs(*pair, alpha=alpha, family=max(family, 1)) for pair in pairs]
    corrected = holm([one.p for one in comparisons])
    return [dataclasses.replace(one, p_holm=float(p)) for one, p in zip(comparisons, corrected, strict=True)]


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Adjust p values by Holm's step-down method; what is not finite is not tested.

    Rejecting where the adjusted p is at most alpha keeps the family-wise error rate at alpha or below, under any
    dependence between the comparisons.

    Source: Holm, Scandinavian Journal of Statistics 6, 1979.
    """
    adjusted = np.array(p_values, dtype=np.float64)
    order = np.argsort(adjusted)[: np.isfinite(adjusted).sum()]
    adjusted[order] = np.minimum(np.maximum.accumulate(adjusted[order] * np.arange(len(order), 0, -1)), 1.0)
    return adjusted


def _pair(baseline: Runs, method: Runs) -> _Paired:
    ours, theirs = ((one.task, one.metric, one.greater_is_better) for one in (method, baseline))
    if ours != theirs:
        raise ValueError(f"runs are of {ours} and of {theirs}; expected the same task, metric and direction")
    if method.overlap != baseline.overlap:
        raise ValueError(
            f"runs have the overlaps {method.overlap:g} and {baseline.overlap:g}; expected the same number of "
            "folds, or none"
        )
    have = set(baseline.seeds())
    seeds = [seed for seed in method.seeds() if seed in have]
    sign = 1.0 if method.greater_is_better else -1.0
    baseline_S, method_S = (np.array([one.score(seed) for seed in seeds]) for one in (baseline, method))
    theirs_SN, ours_SN = baseline.example_values(seeds), method.example_values(seeds)
    advantage_SN = None
    if theirs_SN is not None and ours_SN is not None:
        if theirs_SN.shape != ours_SN.shape:
            raise ValueError(
                f"{method.method} has values for {ours_SN.shape[1]} examples of {method.task}, {baseline.method} for "
                f"{theirs_SN.shape[1]}; expected the same examples in the same order"
            )
        advantage_SN = sign * (ours_SN - theirs_SN)
    return _Paired(seeds, baseline_S, method_S, sign * (method_S - baseline_S), advantage_SN, method.overlap)


def _primary(paired: _Paired, alpha: float, family: int) -> dict[str, Any]:
    seeds, values_SN = len(paired.seeds), paired.advantage_SN
    if seeds == 1 and values_SN is not None:
        # The same formula over examples. Its p is left out, since it says nothing about the methods.
        estimate, examples = mean_over_seeds(values_SN[0], confidence=1.0 - alpha), values_SN.shape[1]
        over, p = "examples", math.nan
    else:
        estimate, examples = estimate_mean(paired.advantage_S, values_SN, 1.0 - alpha, paired.overlap)
        over = "folds" if paired.overlap else "seeds" if examples is None else "seeds and examples"
        p = float(estimate.p)
    effect = math.nan
    if seeds >= 2:
        if math.isnan(p) and not paired.overlap:
            p = sign_flip_test(paired.advantage_S)
        effect = minimum_detectable_effect(
            seeds,
            math.sqrt(float(estimate.seed_variance) * seeds),
            examples=examples or 2,
            example_sd=math.sqrt(float(estimate.example_variance) * (examples or 2)),
            alpha=alpha / family,
        )
    return {
        "low": float(estimate.low),
        "high": float(estimate.high),
        "p": p,
        "examples": examples,
        "over": over,
        "minimum_detectable_effect": effect,
    }


def _notes(baseline: Runs, method: Runs, paired: _Paired) -> list[str]:
    notes = []
    left_out = sorted((set(baseline.scores) | set(method.scores)) - set(paired.seeds))
    if left_out:
        notes.append(f"Left out, because only one of the two methods has a score: {_seeds(left_out)}.")
    if paired.advantage_SN is None and (baseline.examples or method.examples):
        notes.append("Not all runs have finite values per example, so the examples are treated as fixed.")
    for one in (baseline, method):
        collapsed = one.collapsed()
        if collapsed:
            notes.append(
                f"{len(collapsed)} of {len(one.scores)} runs of {one.method} score no better than a constant answer, "
                f"or have no defined score ({_seeds(collapsed)})."
            )
    if paired.overlap and len(paired.seeds) >= 2:
        notes.append(
            "Folds share most of their training rows; interval and p come from the corrected resampled t test"
            " (Nadeau and Bengio 2003)."
        )
    elif len(paired.seeds) >= 2:
        notes += _notes_on_p(paired)
    return notes


def _notes_on_p(paired: _Paired) -> list[str]:
    notes = []
    estimate, _ = estimate_mean(paired.advantage_S, paired.advantage_SN, 0.95)
    if math.isnan(float(estimate.p)):
        notes.append(
            "The difference is the same on all seeds, so there is no interval; p comes from the sign-flip test."
        )
    floor = smallest_p(len(paired.seeds))
    if floor > 0.05:
        notes.append(
            f"With {len(paired.seeds)} seeds the exact sign-flip test cannot give a p below {floor:.3g}, whatever the "
            "difference."
        )
    return notes


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))}"


def _mean(values_S: np.ndarray) -> float:
    return float(values_S.mean()) if len(values_S) else math.nan


@dataclass(frozen=True)
class Ranking:
    """Methods by their mean rank over tasks."""

    methods: tuple[str, ...]  # the names, best first
    mean_ranks: tuple[float, ...]  # the mean ranks of the methods, in that order; 1 is the best rank
    statistic: float  # Friedman's chi-square
    p: float  # the p of Friedman's test
    critical_difference: float  # methods whose mean ranks differ by less are not significantly different


def rank_methods(
    scores_TM: np.ndarray,
    methods: Sequence[str],
    *,
    generator: np.random.Generator,
    greater_is_better: bool | Sequence[bool] = True,
    alpha: float = 0.05,
    permutations: int = 10_000,
) -> Ranking:
    """Run Friedman's test and compute Nemenyi's critical difference.

    Null hypothesis of p: all methods are equivalent on every task, so every order of them is equally likely. p is from
    a permutation test within tasks, which is valid for few tasks too, where the chi-square approximation is not; if
    there are no more than `permutations` orders, p is exact. Null hypothesis for a pair: the two methods are
    equivalent; Nemenyi's critical difference keeps the family-wise error rate over all pairs near alpha. Tasks count as
    independent and have equal weight, and a rank says nothing about the size of a difference.

    Source: Demsar, JMLR 7, 2006.
    """
    scores_TM = np.asarray(scores_TM, dtype=np.float64)
    _check(scores_TM, len(methods))
    tasks, count = scores_TM.shape
    better_T1 = np.broadcast_to(greater_is_better, tasks)[:, None]
    # Scores that are equal up to rounding share their rank.
    ranks_TM = rankdata(np.round(np.where(better_T1, -scores_TM, scores_TM), 12), axis=1)
    statistic, p = _friedman(ranks_TM, generator, permutations)
    mean_ranks_M = ranks_TM.mean(axis=0)
    difference = critical_difference(count, tasks, alpha)
    order = np.argsort(mean_ranks_M, kind="stable")
    names = tuple(methods[place] for place in order)
    return Ranking(names, tuple(map(float, mean_ranks_M[order])), statistic, p, difference)


def critical_difference(methods: int, tasks: int, alpha: float = 0.05) -> float:
    """Compute Nemenyi's critical difference of mean ranks.

    It is q sqrt(M (M + 1) / (6 T)), where q is the quantile of the studentized range over sqrt(2) (Demsar, section
    3.2.2).
    """
    q = studentized_range.ppf(1.0 - alpha, methods, math.inf) / math.sqrt(2.0)
    return float(q) * math.sqrt(methods * (methods + 1) / (6.0 * tasks))


def _friedman(ranks_TM: np.ndarray, generator: np.random.Generator, permutations: int) -> tuple[float, float]:
    """Compute Friedman's chi-square with the correction for ties, and its p over permutations within tasks.

    `scipy.stats.friedmanchisquare` gives the same statistic, but needs three methods and has the chi-square p only.
    """
    methods = ranks_TM.shape[1]
    centered_TM = ranks_TM - (methods + 1) / 2
    # With ties the ranks of a task vary less than 1 .. M do; without ties this is (M^3 - M) / 12 per task.
    spread = float((centered_TM**2).sum())
    if spread == 0:
        return 0.0, 1.0

    def chi_square(*centered_M: np.ndarray, axis: int) -> np.ndarray:
        return (methods - 1) * (np.stack(centered_M).sum(axis=0) ** 2).sum(axis=axis) / spread

    result = permutation_test(
        tuple(centered_TM),
        chi_square,
        permutation_type="pairings",
        alternative="greater",
        vectorized=True,
        n_resamples=permutations,
        rng=generator,
    )
    return float(result.statistic), float(result.pvalue)


def _check(scores_TM: np.ndarray, methods: int) -> None:
    if scores_TM.ndim != 2 or min(scores_TM.shape) < 2 or scores_TM.shape[1] != methods:
        raise ValueError(
            f"scores have shape {scores_TM.shape} for {methods} methods; expected (tasks, methods), at least 2 of each"
        )
    if not np.isfinite(scores_TM).all():
        raise ValueError("a score is missing or not finite; leave out its task or its method")
