"""The interval of a share, such as an accuracy."""

from __future__ import annotations

from scipy.stats import binomtest


def wilson_interval(successes: int, rows: int, *, confidence: float = 0.95) -> tuple[float, float]:
    """Wilson's score interval of a share of rows; NaN where there are none.

    Source: Wilson 1927. Unlike mean +- 1.96 standard errors it keeps within 0 and 1, and has a width at both ends.
    """
    if rows == 0:
        return float("nan"), float("nan")
    found = binomtest(successes, rows).proportion_ci(confidence, method="wilson")
    return float(found.low), float(found.high)
