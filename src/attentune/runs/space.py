"""Search spaces: dimensions from flags and from mappings."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from attentune.errors import ConfigError

Number = int | float
_RANGE_KEYS = ("low", "high", "step", "log")


@dataclass(frozen=True)
class Dimension:
    name: str  # the setting's dotted name
    choices: tuple[Any, ...] = ()  # values; empty for a range
    low: Number = 0  # the lowest value of a range
    high: Number = 0  # the highest value of a range
    step: Number | None = None  # step size of a range; None for a continuous one
    log: bool = False  # whether the range is uniform in the logarithm

    @property
    def values(self) -> tuple[Any, ...] | None:
        if self.choices or self.step is None:
            return self.choices or None
        count = int((self.high - self.low) / self.step + 1e-9) + 1
        return tuple(self.low + number * self.step for number in range(count))


@dataclass(frozen=True)
class Space:
    """A search space. A point of it has a value of each dimension, by the setting's dotted name."""

    dimensions: tuple[Dimension, ...] = ()

    @property
    def names(self) -> list[str]:
        return [dimension.name for dimension in self.dimensions]

    def first_point(self) -> dict[str, Any]:
        return {part.name: (*part.choices, part.low)[0] for part in self.dimensions}

    def points(self) -> list[dict[str, Any]] | None:
        """Return all points in order; None if a range has no step."""
        columns = [dimension.values for dimension in self.dimensions]
        if any(column is None for column in columns):
            return None
        return [dict(zip(self.names, point, strict=True)) for point in itertools.product(*(c or () for c in columns))]


def space_from(content: Any, source: str) -> Space:
    """Build a space from {setting: values}, of which a range is {"low", "high", "step", "log"}."""
    if not isinstance(content, Mapping) or not content:
        raise ConfigError(f"{source}: got {content!r}, expected settings and their values.")
    problems: list[str] = []
    parsed = [_dimension(str(name), value, f"{source}: {name}", problems) for name, value in content.items()]
    if problems:
        raise ConfigError(problems)
    return Space(tuple(dimension for dimension in parsed if dimension is not None))


def _dimension(name: str, value: Any, where: str, problems: list[str]) -> Dimension | None:
    if isinstance(value, list) and value:
        return _listed(name, value, where, problems)
    if isinstance(value, Mapping) and "low" in value and "high" in value:
        return _range(name, value, where, problems)
    problems.append(
        f"{where}: got {value!r}, expected a list of values, or a range such as"
        " {low: 1.0e-5, high: 1.0e-3, log: true}."
    )
    return None


def _listed(name: str, values: Sequence[Any], where: str, problems: list[str]) -> Dimension | None:
    odd = [value for value in values if not isinstance(value, (str, int, float, bool, type(None)))]
    repeated = [value for value in values if list(values).count(value) > 1]
    if odd or repeated:
        reason = f"{odd[0]!r} is no single value" if odd else f"{repeated[0]!r} is named more than once"
        problems.append(f"{where}: {reason}; expected values, each once.")
        return None
    return Dimension(name, tuple(values))


def _range(name: str, given: Mapping[str, Any], where: str, problems: list[str]) -> Dimension | None:
    odd = [str(key) for key in given if key not in _RANGE_KEYS]
    log = given.get("log")
    low, high, step = (_number(given.get(key)) for key in ("low", "high", "step"))
    if odd:
        reason = f"{odd[0]} is no part of a range; known are {', '.join(_RANGE_KEYS)}"
    elif low is None or high is None or (step is None and given.get("step") is not None):
        reason = "a range is of numbers"
    elif low >= high:
        reason = "low must be below high"
    elif step is not None and (step <= 0 or log):
        reason = "a step is above 0 and goes with ranges that are not logarithmic"
    elif log not in (None, True, False) or (log and low <= 0):
        reason = "a logarithmic range is above 0, and log is true or false"
    else:
        return Dimension(name, (), low, high, step, bool(log))
    problems.append(f"{where}: got {dict(given)!r}: {reason}.")
    return None


def _number(value: Any) -> Number | None:
    """Return a finite number, also from text; None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    if isinstance(value, bool) or not math.isfinite(number):
        return None
    return value if isinstance(value, int) else number


def dimension_of(text: str, problems: list[str]) -> Dimension | None:
    """Parse `--search NAME=VALUES`: `a,b,c`, `LOW:HIGH`, `LOW:HIGH:STEP` or `log:LOW:HIGH`; append to `problems`."""
    name, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not name or not values:
        problems.append(f"--search {text}: expected NAME=VALUES, such as training.learning_rate=1e-5,3e-5")
        return None
    parts = values.split(":")
    is_log = parts[0] == "log"
    ends = parts[1:] if is_log else parts
    if is_log or (len(parts) in (2, 3) and all(_number(part) is not None for part in parts)):
        if len(ends) not in (2, 3):
            problems.append(f"--search {text}: expected log:LOW:HIGH, such as log:1e-5:1e-3")
            return None
        given = {**dict(zip(_RANGE_KEYS, ends, strict=False)), "log": is_log}
        return _range(name, given, f"--search {name}", problems)
    return _listed(name, [part.strip() for part in values.split(",")], f"--search {name}", problems)
