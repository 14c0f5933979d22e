"""What a search varies, and how it samples and ranks trials; checked without rows, PyTorch and Optuna."""

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attentune.config import Config, load_config, to_flat
from attentune.config.parse import did_you_mean
from attentune.data.builtin import load_spec
from attentune.errors import AttentuneError, ConfigError
from attentune.metrics.metrics import METRICS
from attentune.plugins import require_extra
from attentune.runs.records import CUSTOM_TASK
from attentune.training.prepare import ending_with_last_weights
from attentune.training.run_folder import check_feasible

_CHOICES = {
    "sampler": ("grid", "random", "tpe"),
    "pruner": ("none", "median"),
    "choose": ("score", "three-parts"),
    "score_on": ("train", "dev"),
}
# Trials of a search that names no number, except that of a grid.
_TRIALS = 20
# Settings that the search sets itself, or that would make trials incomparable, with the reason.
_REFUSED = {
    "training.output_dir": "each run has its own folder",
    "training.resume": "a search always goes on where it was",
    "training.overwrite_output_dir": "a search always resumes; to start again, name another folder",
}
# Further settings that cannot be varied; of section `data`, only _VARIED_DATA can be. No file may set the last.
_NOT_VARIED = (
    "training.seed",
    "training.metric_for_best_model",
    "training.eval_strategy",
    "training.eval_steps",
    "model.trust_remote_code",
)
_VARIED_DATA = ("data.max_length",)
_RANGE_KEYS = ("low", "high", "log")
Number = int | float


@dataclass(frozen=True)
class Dimension:
    name: str  # the setting's dotted name
    choices: tuple[Any, ...] = ()  # values; empty for a range
    low: Number = 0  # the lowest value of a range
    high: Number = 0  # the highest value of a range
    log: bool = False  # whether the range is uniform in the logarithm

    @property
    def values(self) -> tuple[Any, ...] | None:
        if isinstance(self.low, int) and isinstance(self.high, int) and not (self.log or self.choices):
            return tuple(range(self.low, self.high + 1))
        return self.choices or None


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
        """Return all points in order; None if there is a continuous range."""
        columns = [dimension.values for dimension in self.dimensions]
        if any(column is None for column in columns):
            return None
        return [dict(zip(self.names, point, strict=True)) for point in itertools.product(*(c or () for c in columns))]


@dataclass(frozen=True)
class SearchSettings:
    """What a search varies, and how it samples, scores and ranks trials.

    Attributes:
        space: what is varied: a mapping of settings to lists of values or to {"low", "high", "log"}; or a list of
            dimensions.
        sampler: "grid", "random" or "tpe"; if None, grid if the space is finite, else tpe.
        trials: number of trials; if None, the whole grid, or 20. May be raised later.
        seeds: the number of runs of each trial, with the settings' seed and those after it.
        choose: "score", the mean over seeds; "three-parts", mean - k std over three stratified parts of the scored
            rows (after SSA, section 4.3; the formula is this library's).
        k: the weight of the standard deviation.
        score_on: "train" scores on held-out training rows, so that dev stays unseen; "dev" scores on dev.
        search_share: the share of the training rows that is held out.
        pruner: "none" or "median", on the first seed's scores during training; if None, "median" with tpe, else "none".
        startup: the number of finished trials before TPE models them, and before the median pruner prunes.
        preset: the preset of all trials.
        config: a file of settings of all trials, as for `load_config`.
        overrides: settings of all trials by dotted name.
    """

    space: Mapping[str, Any] | Sequence[Dimension] = ()
    sampler: str | None = None
    trials: int | None = None
    seeds: int = 1
    choose: str = "score"
    k: float = 1.0
    score_on: str = "train"
    search_share: float = 0.2
    pruner: str | None = None
    startup: int = 5
    preset: str | None = None
    config: str | Path | None = None
    overrides: Mapping[str, Any] | None = None


@dataclass(frozen=True)
class Search:
    """A checked search. Its `seed` determines the rows and what is sampled."""

    options: SearchSettings  # with the sampler, the pruner and the preset that were left open
    space: Space  # with each value converted to its setting's type
    common: Mapping[str, Any]  # settings of all trials by dotted name
    seed: int
    notes: tuple[str, ...] = ()  # on the rows
    metric: str = "accuracy"  # known once the rows are read

    def config(self, changes: Mapping[str, Any]) -> Config:
        return _config(self.options, self.common, changes)

    @property
    def task(self) -> str:
        """The task's name; `CUSTOM_TASK` for custom data."""
        task = self.config({}).data.task
        return CUSTOM_TASK if task is None else load_spec(task).name

    @property
    def seeds(self) -> range:
        return range(self.seed, self.seed + self.options.seeds)

    @property
    def greater_is_better(self) -> bool:
        return METRICS[self.metric].greater_is_better

    def value(self, scores: Sequence[float]) -> float | None:
        """Return the value that ranks a trial with these scores; None if one of them is undefined.

        The mean; by the rule of three parts the mean - k std, or mean + k std where lower scores are better.
        """
        if not scores or not all(math.isfinite(score) for score in scores):
            return None
        mean = statistics.fmean(scores)
        if self.options.choose == "score":
            return mean
        return mean - (self.options.k if self.greater_is_better else -self.options.k) * statistics.stdev(scores)


def _config(options: SearchSettings, common: Mapping[str, Any], changes: Mapping[str, Any]) -> Config:
    changes = dict(changes)
    preset = changes.pop("preset", options.preset)
    config = load_config(options.config, {**common, **changes}, preset=preset)
    training = ending_with_last_weights(config.training)
    # Trials are scored after the same epochs, so that the pruner can compare them.
    return replace(config, training=replace(training, eval_strategy=training.eval_strategy or "epoch"))


def check_search(options: SearchSettings) -> Search:
    """Check a search's space and settings, and that Optuna, which samples the trials, is installed."""
    require_extra("search", "optuna", what="search")
    overrides = dict(options.overrides or {})
    problems = [f"{name}: {why}." for name, why in _REFUSED.items() if overrides.get(name) not in (None, False)]
    if problems:
        raise ConfigError(problems)
    space = _space(options.space, overrides)
    seed = overrides.pop("training.seed", None)
    preset = overrides.pop("preset", None) if options.preset is None else options.preset
    options = replace(options, preset=preset)
    seed = _config(options, overrides, {} if seed is None else {"training.seed": seed}).training.seed
    space = _check_space(space, options, overrides)
    return Search(_check_sampling(options, space), space, overrides, seed)


def _space(given: Mapping[str, Any] | Sequence[Dimension], fixed: Mapping[str, Any]) -> Space:
    if not given:
        raise ConfigError("search: got nothing to vary, expected --search NAME=VALUES.")
    space = Space(tuple(given)) if isinstance(given, (list, tuple)) else space_from(given, "space")
    names = space.names
    problems = [f"--search {name}: is given more than once." for name in set(names) if names.count(name) > 1]
    problems += [f"--search {name}: has a value of its own too; give one of both." for name in names if name in fixed]
    if problems:
        raise ConfigError(sorted(problems))
    return space


def _check_space(space: Space, options: SearchSettings, common: Mapping[str, Any]) -> Space:
    """Validate each value, with the first ones of the other dimensions; return the space with converted values."""
    first = space.first_point()
    problems: dict[str, None] = {}
    dimensions = []
    for dimension in space.dimensions:
        name = dimension.name
        if name in _REFUSED or name in _NOT_VARIED or (name.startswith("data.") and name not in _VARIED_DATA):
            problems[f"{name}: cannot be varied: trials must be of the same rows and the same score."] = None
        values = []
        for value in dimension.choices or (dimension.low, dimension.high):
            try:
                config = _config(options, common, {**first, name: value})
                check_feasible(config)
                values.append({**to_flat(config), "preset": config.preset}[name])
            except ConfigError as error:
                problems |= dict.fromkeys(error.problems)
            except AttentuneError as error:
                problems[str(error)] = None
        if not problems:
            dimensions.append(_converted(dimension, values, problems))
    if problems:
        raise ConfigError(list(problems))
    return replace(space, dimensions=tuple(dimensions))


def _converted(dimension: Dimension, values: Sequence[Any], problems: dict[str, None]) -> Dimension:
    if dimension.choices:
        if len(set(map(repr, values))) < len(values):
            problems[f"{dimension.name}: got {', '.join(map(str, values))}: a value is named more than once."] = None
        return replace(dimension, choices=tuple(values))
    low, high = values
    if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in values):
        problems[f"{dimension.name}: has no range, expected its values."] = None
    return replace(dimension, low=low, high=high)


def _check_sampling(options: SearchSettings, space: Space) -> SearchSettings:
    """Check how trials are sampled and ranked; return the options with what was left open."""
    points = space.points()
    sampler = options.sampler or ("tpe" if points is None else "grid")
    options = replace(options, sampler=sampler, pruner=options.pruner or ("median" if sampler == "tpe" else "none"))
    problems = [
        f"--{flag}: got {word!r}, expected one of {', '.join(choices)}.{did_you_mean(word, choices)}"
        for flag, choices in _CHOICES.items()
        if (word := getattr(options, flag)) not in choices
    ]
    if sampler == "grid" and points is None:
        unbounded = next(part.name for part in space.dimensions if part.values is None)
        problems.append(f"--sampler grid: {unbounded} is a range; give its values, or --sampler tpe.")
    problems += [
        f"--{name}: got {value}, expected a whole number of at least 1."
        for name in ("trials", "startup", "seeds")
        if (value := getattr(options, name)) is not None and value < 1
    ]
    if not 0 < options.search_share < 1:
        problems.append(f"--search_share: got {options.search_share}, expected a number above 0 and below 1.")
    if not options.k >= 0:
        problems.append(f"--k: got {options.k}, expected a number of at least 0.")
    if problems:
        raise ConfigError(problems)
    return replace(options, trials=_TRIALS) if options.trials is None and sampler != "grid" else options


# Spaces from settings and from flags.


def space_from(content: Any, source: str) -> Space:
    """Build a space from {setting: values}; a range is {"low", "high", "log"}."""
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
    log, low, high = given.get("log"), _number(given.get("low")), _number(given.get("high"))
    if odd:
        reason = f"{odd[0]} is no part of a range; known are {', '.join(_RANGE_KEYS)}"
    elif low is None or high is None:
        reason = "a range is of numbers"
    elif low >= high:
        reason = "low must be below high"
    elif log not in (None, True, False) or (log and low <= 0):
        reason = "a logarithmic range is above 0, and log is true or false"
    else:
        return Dimension(name, (), low, high, bool(log))
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
    """Parse `--search NAME=VALUES`: `a,b,c`, `LOW:HIGH` or `log:LOW:HIGH`; append to `problems`."""
    name, equals, values = (part.strip() for part in text.partition("="))
    if not equals or not name or not values:
        problems.append(f"--search {text}: expected NAME=VALUES, such as training.learning_rate=1e-5,3e-5")
        return None
    parts = values.split(":")
    is_log = parts[0] == "log"
    if is_log and len(parts) != 3:
        problems.append(f"--search {text}: expected log:LOW:HIGH, such as log:1e-5:1e-3")
        return None
    if is_log or (len(parts) == 2 and all(_number(part) is not None for part in parts)):
        low, high = parts[-2:]
        return _range(name, {"low": low, "high": high, "log": is_log}, f"--search {name}", problems)
    if len(parts) == 3 and all(_number(part) is not None for part in parts):
        problems.append(f"--search {text}: a range is LOW:HIGH, without a step; list the values: {name}=A,B,C")
        return None
    return _listed(name, [part.strip() for part in values.split(",")], f"--search {name}", problems)
