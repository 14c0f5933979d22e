"""A number with its interval, as the lab's measurements report them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Interval:
    """A statistic of some rows with its 95 % bootstrap interval over the rows."""

    value: float
    low: float
    high: float
