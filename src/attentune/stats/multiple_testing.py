"""Many comparisons at once: p values that still mean what they say."""

from __future__ import annotations

import numpy as np


def holm(p_values: np.ndarray) -> np.ndarray:
    """Holm's step-down correction (Scandinavian Journal of Statistics 6, 1979).

    Null hypothesis of each: its own. Rejecting where the corrected p is at most alpha keeps the chance of one or more
    false alarms in the whole family at alpha or below, however the comparisons depend on each other.

    Args:
        p_values: (M,), one a comparison; NaN where one could not be made, which counts for no comparison.

    Returns:
        (M,) corrected, at most 1, in the same order; NaN stays NaN.
    """
    p_values = np.asarray(p_values, dtype=np.float64)
    found = np.full_like(p_values, np.nan)
    places = np.flatnonzero(np.isfinite(p_values))
    order = places[np.argsort(p_values[places], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    found[order] = np.minimum(1.0, np.maximum.accumulate(factors * p_values[order]))
    return found
