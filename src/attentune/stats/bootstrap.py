"""Intervals by resampling rows, seeds, or both."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy import stats


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
    """The percentile interval of a statistic of some rows, over resamples of the rows.

    Two statistics that are asked with generators of the same key see the same resamples.

    Args:
        statistic: from row numbers (one may stand there more than once) to a number; NaN where it is undefined.
        rows: how many rows there are.
        generator: draws the resamples.
        resamples: how many.
        confidence: the share of resamples within.

    Returns:
        Low and high; NaN where fewer than two rows are there or too many resamples are undefined.
    """
    if rows < 2:
        return float("nan"), float("nan")
    with warnings.catch_warnings():
        # Undefined resamples are counted below.
        warnings.simplefilter("ignore", stats.DegenerateDataWarning)
        found = stats.bootstrap(
            (np.arange(rows),),
            statistic,
            vectorized=False,
            n_resamples=resamples,
            method="percentile",
            confidence_level=confidence,
            rng=generator,
        )
    values = found.bootstrap_distribution
    known = values[np.isfinite(values)]
    if len(known) < 0.9 * resamples:
        return float("nan"), float("nan")
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(known, (tail, 1.0 - tail))
    return float(low), float(high)


def bootstrap_mean(
    values_SN: np.ndarray,
    *,
    over: Literal["seeds", "examples", "both"],
    generator: np.random.Generator,
    resamples: int = 1000,
    confidence: float = 0.95,
) -> tuple[float, float]:
    """The percentile interval of a mean over seeds and examples.

    `seeds` draws seeds with replacement and keeps the examples, `examples` the other way round (all seeds see the same
    drawn examples), `both` draws the two independently of each other (the pigeonhole bootstrap: Owen, Annals of Applied
    Statistics 1, 2007). Such intervals are not for verdicts on few seeds. The first is far too narrow: a sample of S
    varies by (S - 1) / S of what it should, and no quantile of t makes up for it. The second knows of no other seeds.
    The third is careless with 3 seeds. `estimate` has the intervals that verdicts rest on, docs/statistics.md the
    measured coverage of all.

    Args:
        values_SN: (S, N), one value a seed and example: correctness, or a paired difference of it. (S, 1) for scores.
        over: what is drawn.
        generator: draws the resamples.
        resamples: how many.
        confidence: the share of resamples within.

    Returns:
        Low and high; NaN where fewer than two of what is drawn are there.
    """
    values_SN = np.asarray(values_SN, dtype=np.float64)
    seeds, examples = values_SN.shape
    drawn = {"seeds": (seeds,), "examples": (examples,), "both": (seeds, examples)}[over]
    if min(drawn) < 2:
        return float("nan"), float("nan")
    by_seed_RS = values_SN.mean(axis=1) if over == "seeds" else _resampled_examples(values_SN, resamples, generator)
    weights_RS = np.ones((resamples, seeds)) if over == "examples" else _counts(resamples, seeds, generator)
    means_R = (weights_RS * by_seed_RS).sum(axis=1) / seeds
    tail = (1.0 - confidence) / 2.0
    low, high = np.quantile(means_R, (tail, 1.0 - tail))
    return float(low), float(high)


def _resampled_examples(values_SN: np.ndarray, resamples: int, generator: np.random.Generator) -> np.ndarray:
    """(resamples, S) each seed's mean over the drawn examples, the same ones for all seeds."""
    examples = values_SN.shape[1]
    chunk = max(1, 4_000_000 // examples)  # a few million counts at a time
    parts = [
        _counts(min(chunk, resamples - done), examples, generator) @ values_SN.T for done in range(0, resamples, chunk)
    ]
    return np.concatenate(parts) / examples


def _counts(resamples: int, size: int, generator: np.random.Generator) -> np.ndarray:
    """(resamples, size) how often each of `size` things is among as many draws with replacement."""
    places = generator.integers(size, size=(resamples, size)) + size * np.arange(resamples)[:, None]
    return np.bincount(places.ravel(), minlength=resamples * size).reshape(resamples, size).astype(np.float64)
