"""Intervals by resampling rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from scipy import stats


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
