"""Percentile bootstrap intervals over rows, seeds, or both; all resampling is scipy's."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy import stats

# Resampled values that are held in memory at once.
_VALUES_PER_BATCH = 4_000_000


@dataclass(frozen=True)
class Interval:
    """A statistic of some rows with its 95 % bootstrap interval over the rows."""

    value: float
    low: float
    high: float


def bootstrap_interval(
    statistic: Callable[[np.ndarray], float],
    rows: int,
    *,
    generator: np.random.Generator,
    resamples: int = 1000,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """Compute the percentile bootstrap interval of a statistic of rows.

    Two statistics whose generators have the same key see the same resamples.
    """
    if rows < 2:
        return float("nan"), float("nan")
    with warnings.catch_warnings():
        # Undefined resamples are counted below.
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        result = _bootstrap((np.arange(rows),), statistic, generator, resamples, confidence, vectorized=False)
    values = result.bootstrap_distribution
    defined = values[np.isfinite(values)]
    if len(defined) < 0.9 * resamples:
        return float("nan"), float("nan")
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(defined, (tail, 1.0 - tail))
    return float(low), float(high)


def bootstrap_mean(
    values_SN: np.ndarray,
    *,
    over: Literal["seeds", "examples", "both"],
    generator: np.random.Generator,
    resamples: int = 1000,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """Compute the percentile bootstrap interval of a mean over seeds and examples.

    "seeds" resamples seeds and keeps the examples; "examples" resamples examples, the same ones for all seeds, and
    keeps the seeds; "both" resamples the two independently (the pigeonhole bootstrap). Do not base verdicts on these
    intervals when there are few seeds. "seeds" is far too narrow: the variance of a sample of S values is too small by
    the factor (S - 1) / S, and no quantile of t corrects for it. "examples" ignores the variation between seeds.
    "both" is too narrow for 3 seeds. Verdicts use the intervals of `stats.estimate`; docs/statistics.md has the
    measured coverage of all of them.

    Source:
        Pigeonhole bootstrap: Owen, Annals of Applied Statistics 1, 2007.
    """
    values_SN = np.asarray(values_SN, dtype=np.float64)
    seeds, examples = values_SN.shape
    if min({"seeds": (seeds,), "examples": (examples,), "both": (seeds, examples)}[over]) < 2:
        return float("nan"), float("nan")
    if over == "both":
        samples = (np.arange(examples), np.arange(seeds))
        result = _bootstrap(
            samples, lambda n, s: values_SN[np.ix_(s, n)].mean(), generator, resamples, confidence, vectorized=False
        )
    else:
        means = values_SN.mean(axis=1 if over == "seeds" else 0)
        result = bootstrap_of_mean(means, generator=generator, resamples=resamples, confidence=confidence)
    low, high = result.confidence_interval
    return float(low), float(high)


def bootstrap_of_mean(
    values_N: np.ndarray, *, generator: np.random.Generator, resamples: int, confidence: float
) -> Any:
    """Run `scipy.stats.bootstrap` for the mean of (N,) values, in batches of bounded size."""
    batch = max(1, _VALUES_PER_BATCH // len(values_N))
    return _bootstrap((values_N,), np.mean, generator, resamples, confidence, vectorized=True, batch=batch)


def _bootstrap(
    samples: tuple[np.ndarray, ...],
    statistic: Callable[..., Any],
    generator: np.random.Generator,
    resamples: int,
    confidence: float,
    **options: Any,
) -> Any:
    return stats.bootstrap(
        samples,
        statistic,
        n_resamples=resamples,
        method="percentile",
        confidence_level=confidence,
        rng=generator,
        **options,
    )
