"""Search spaces: dimensions from flags, YAML files and the papers' grids."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from attentune.config import flatten
from attentune.config.load import read_yaml
from attentune.config.parse import did_you_mean
from attentune.errors import ConfigError

Number = int | float
_KEYS = ("description", "source", "preset", "set", "space")
_RANGE_KEYS = ("low", "high", "step", "log")


@dataclass(frozen=True)
class Dimension:
    """One dimension: the values of a setting, a range of it, or named alternatives of several settings."""

    name: str  # a setting's dotted name; for alternatives any name
    choices: tuple[Any, ...] = ()  # values, or names of alternatives; empty for a range
    low: Number = 0  # the lowest value of a range
    high: Number = 0  # the highest value of a range
    step: Number | None = None  # step size of a range; None for a continuous one
    log: bool = False  # whether the range is uniform in the logarithm
    alternatives: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by choice, the settings that it sets

    @property
    def values(self) -> tuple[Any, ...] | None:
        if self.choices or self.step is None:
            return self.choices or None
        count = int((self.high - self.low) / self.step + 1e-9) + 1
        return tuple(self.low + number * self.step for number in range(count))

    @property
    def setting_names(self) -> tuple[str, ...]:
        if not self.alternatives:
            return (self.name,)
        return tuple(dict.fromkeys(name for part in self.alternatives.values() for name in part))


@dataclass(frozen=True)
class Space:
    """A search space."""

    dimensions: tuple[Dimension, ...] = ()  # the dimensions that are varied
    preset: str | None = None  # the default preset of the trials
    settings: Mapping[str, Any] = field(default_factory=dict)  # fixed settings of the trials; flags override them

    def first_point(self) -> dict[str, Any]:
        return {part.name: (*part.choices, part.low)[0] for part in self.dimensions}

    def settings_of(self, point: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a point, by dotted name."""
        settings: dict[str, Any] = {}
        for dimension in self.dimensions:
            value = point[dimension.name]
            settings |= dimension.alternatives[value] if dimension.alternatives else {dimension.name: value}
        return settings

    def points(self) -> list[dict[str, Any]] | None:
        """Return all points in order; None if a range has no step."""
        columns = [dimension.values for dimension in self.dimensions]
        if any(column is None for column in columns):
            return None
        names = [dimension.name for dimension in self.dimensions]
        return [dict(zip(names, point, strict=True)) for point in itertools.product(*(c or () for c in columns))]


def space_names() -> tuple[str, ...]:
    """Return the names of the papers' grids, sorted."""
    folder = resources.files("attentune.runs") / "spaces"
    return tuple(sorted(entry.name[:-5] for entry in folder.iterdir() if entry.name.endswith(".yaml")))


def load_space(name: str) -> Space:
    """Load a paper's grid by name, or a YAML file with `space` and optionally `preset` and `set`."""
    if name in space_names():
        text = (resources.files("attentune.runs") / "spaces" / f"{name}.yaml").read_text(encoding="utf-8")
        return space_from(yaml.safe_load(text), name)
    if not Path(name).is_file() and not name.endswith((".yaml", ".yml")):
        raise ConfigError(
            f"--space: got {name!r}, expected a YAML file or one of {', '.join(space_names())}."
            f"{did_you_mean(name, space_names())}"
        )
    return space_from(read_yaml(name), name)


def space_from(content: Mapping[str, Any], source: str) -> Space:
    """Build a space from {"space": {name: values}, "preset": name, "set": {name: value}}."""
    problems = [
        f"{source}: {key}: there is no such key.{did_you_mean(str(key), _KEYS)} Known here: {', '.join(_KEYS)}."
        for key in content
        if key not in _KEYS
    ]
    given, common, preset = content.get("space"), content.get("set") or {}, content.get("preset")
    if not isinstance(given, Mapping) or not given:
        problems.append(f"{source}: has no space:, expected settings and their values under it.")
        given = {}
    if not isinstance(common, Mapping):
        problems.append(f"{source}: set: got {common!r}, expected settings and their values.")
        common = {}
    if flatten(common).get("model.trust_remote_code"):
        problems.append(
            f"{source}: set: model.trust_remote_code runs the code that comes with a model, so a file cannot ask for"
            " it; add --trust_remote_code if you trust the model."
        )
    parsed = [_dimension(name, value, f"{source}: {name}", problems) for name, value in _flat(given)]
    if problems:
        raise ConfigError(problems)
    dimensions = tuple(dimension for dimension in parsed if dimension is not None)
    return Space(dimensions, None if preset is None else str(preset), flatten(common))


def _flat(given: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield dimensions by dotted name; like settings, they may be nested in sections."""
    for key, value in given.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and value and "low" not in value and not _is_alternatives(value):
            yield from _flat(value, f"{name}.")
        else:
            yield name, value


def _is_alternatives(value: Mapping[str, Any]) -> bool:
    """Return whether each entry is a mapping of settings to single values."""
    return all(
        isinstance(part, Mapping)
        and part
        and "low" not in part
        and not any(isinstance(single, (list, Mapping)) for single in part.values())
        for part in value.values()
    )


def _dimension(name: str, value: Any, where: str, problems: list[str]) -> Dimension | None:
    if isinstance(value, list) and value:
        return _listed(name, value, where, problems)
    if isinstance(value, Mapping) and "low" in value and "high" in value:
        return _range(name, value, where, problems)
    if isinstance(value, Mapping) and value and _is_alternatives(value):
        parts = {str(label): {str(key): single for key, single in part.items()} for label, part in value.items()}
        return Dimension(name, tuple(parts), alternatives=parts)
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
