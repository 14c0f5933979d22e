"""What a search varies, and how it samples and ranks trials; checked without rows, PyTorch and Optuna."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attentune.config import Config, ModelConfig, load_config, to_flat
from attentune.config.parse import did_you_mean
from attentune.data.builtin import load_spec
from attentune.errors import AttentuneError, ConfigError
from attentune.metrics.metrics import METRICS
from attentune.runs.grid import RunGrid
from attentune.runs.records import CUSTOM_TASK, Run
from attentune.runs.space import Dimension, Space, named_space
from attentune.training.prepare import ending_with_last_weights
from attentune.training.run_folder import check_feasible

_CHOICES = {
    "sampler": ("grid", "random", "tpe"),
    "pruner": ("none", "median", "halving"),
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
    "training.multi_task": "a search is on one task",
    "data.tasks": "a search is on one task; name it with --task",
    "data.task_settings": "a search is on one task; give its settings directly",
}
# Further settings that cannot be varied; of those of section `data`, only _VARIED_DATA can be. No file may set the last.
_NOT_VARIED = (
    "training.seed",
    "training.metric_for_best_model",
    "training.eval_strategy",
    "training.eval_steps",
    "model.trust_remote_code",
)
_VARIED_DATA = ("data.max_length",)


@dataclass(frozen=True)
class SearchSettings:
    """What a search varies, and how it samples, scores and ranks trials.

    Attributes:
        space: the name of a paper's grid, a YAML file, or a mapping of settings to lists of values or {"low", "high",
            "step", "log"}; also {"space": that mapping, "preset": ..., "set": {...}}.
        vary: more dimensions; each replaces the space's dimension of the same setting.
        sampler: "grid", "random" or "tpe"; if None, grid if the space is finite, else tpe.
        trials: number of trials; if None, the whole grid, or 20. May be raised later.
        seeds: the number of runs of each trial, with the settings' seed and those after it.
        choose: "score", the mean over seeds; "three-parts", mean - k std over three stratified parts of the scored
            rows (after SSA, section 4.3; the formula is this library's).
        k: the weight of the standard deviation.
        score_on: "train" scores on held-out training rows, so that dev stays unseen; "dev" scores on dev.
        search_share: the share of the training rows that is held out.
        pruner: "none", "median" or "halving", on the first seed's scores during training; if None, "median" with tpe,
            else "none".
        startup: the number of finished trials before TPE models them, and before the median pruner prunes.
        preset: the preset of all trials.
        config: a file of settings of all trials, as for `load_config`.
        overrides: settings of all trials by dotted name.
    """

    space: str | Path | Mapping[str, Any] | None = None
    vary: Sequence[Dimension] = ()
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
class SamplerConfig:
    """How trials are sampled and pruned."""

    sampler: str = "tpe"
    pruner: str = "none"
    startup: int = 5  # the number of finished trials before TPE models them, and before the median pruner prunes
    trials: int | None = None  # the number of trials; None for the whole grid
    seed: int = 42  # the seed of the sampler


@dataclass(frozen=True)
class SelectionCriterion:
    """How trials are ranked: by mean - k std, or mean + k std where lower scores are better."""

    rule: str = "score"  # "score", the mean over seeds; or "three-parts", the mean over three parts of the rows
    k: float = 1.0  # the weight of the standard deviation; ignored for "score"
    metric: str = "accuracy"

    @property
    def greater_is_better(self) -> bool:
        return METRICS[self.metric].greater_is_better

    def value(self, scores: Sequence[float]) -> float | None:
        """Return the ranking value of a trial with these scores; None if one of them is undefined."""
        if not scores or not all(math.isfinite(score) for score in scores):
            return None
        mean = statistics.fmean(scores)
        if self.rule == "score":
            return mean
        return mean - (self.k if self.greater_is_better else -self.k) * statistics.stdev(scores)


@dataclass(frozen=True)
class TrialSettings:
    """The settings of all trials."""

    file: str | Path | None = None  # a YAML file of settings
    preset: str | None = None  # the preset; overrides the file
    common: Mapping[str, Any] = field(default_factory=dict)  # settings by dotted name; override both

    def config(self, changes: Mapping[str, Any]) -> Config:
        """Return the configuration with these settings added, which override all others."""
        changes = dict(changes)
        preset = changes.pop("preset", self.preset)
        config = load_config(self.file, {**self.common, **changes}, preset=preset)
        training = ending_with_last_weights(config.training)
        # Trials are scored after the same epochs, so that the pruner can compare them.
        return replace(config, training=replace(training, eval_strategy=training.eval_strategy or "epoch"))

    def task(self) -> str:
        """Return the task's name; `CUSTOM_TASK` for custom data."""
        task = self.config({}).data.task
        return CUSTOM_TASK if task is None else load_spec(task).name

    def grid(self, name: str, settings: Mapping[str, Any], seeds: Sequence[int]) -> RunGrid:
        """Return the runs of one trial."""
        config, task = self.config(settings), self.task()
        runs = tuple(Run(task, config.data.max_train_samples, name, seed) for seed in seeds)
        return RunGrid(runs, {name: {task: to_flat(config)}}, {})


@dataclass(frozen=True)
class CheckedSearch:
    """A search whose settings have been checked."""

    space: Space  # with each value converted to its setting's type
    trials: TrialSettings
    sampling: SamplerConfig  # its seed determines rows and samples
    notes: tuple[str, ...]  # on dimensions of a named space that are not varied


def check_search(settings: SearchSettings) -> CheckedSearch:
    """Check a search's space and settings."""
    given = named_space(settings.space)
    left_out: list[str] = []
    if given is not None:
        given, left_out = without_idle_dimensions(given, _trial_settings(settings, given)[0].config({}).model)
    space, notes = whole_space(given, settings.vary, settings.overrides or {})
    trials, seed = _trial_settings(settings, space)
    space = check_space(space, trials)
    return CheckedSearch(space, trials, _sampling(space, settings, seed), (*left_out, *notes))


def without_idle_dimensions(space: Space, model: ModelConfig) -> tuple[Space, list[str]]:
    """Return a named space without the dimensions that this model does not use, and notes on them.

    BERT-m has gamma but no token head, and co-training has no beta.
    """
    names = {name for dimension in space.dimensions for name in dimension.setting_names}
    if {"preset", "model.token_gate.kind"} & names:
        return space, []
    if model.token_gate.kind == "none":
        idle = {"objective.alpha", *(name for name in names if name.startswith("model.token_gate."))}
        why = "there is no token gate"
    elif model.token_gate.beta == 1.0:
        idle, why = {"model.token_gate.beta"}, "it is 1, as in co-training"
    else:
        return space, []
    kept = tuple(dimension for dimension in space.dimensions if not idle.issuperset(dimension.setting_names))
    left_out = [dimension.name for dimension in space.dimensions if dimension not in kept]
    return replace(space, dimensions=kept), [f"{name}: is not varied, as {why}." for name in left_out]


def _trial_settings(settings: SearchSettings, space: Space) -> tuple[TrialSettings, int]:
    """Return the settings of all trials, and their seed, which determines rows and samples."""
    overrides = dict(settings.overrides or {})
    problems = [f"{name}: {why}." for name, why in _REFUSED.items() if overrides.get(name) not in (None, False)]
    if problems:
        raise ConfigError(problems)
    seed = overrides.pop("training.seed", None)
    preset = overrides.pop("preset", None) if settings.preset is None else settings.preset
    if preset is None and (settings.config is None or load_config(settings.config).preset is None):
        preset = space.preset
    trials = TrialSettings(settings.config, preset, {**space.settings, **overrides})
    return trials, trials.config({} if seed is None else {"training.seed": seed}).training.seed


def whole_space(
    given: Space | None, vary: Sequence[Dimension], fixed: Mapping[str, Any]
) -> tuple[Space, list[str]]:
    """Return a named space with more dimensions, and notes on the dimensions that were omitted."""
    names = [name for dimension in vary for name in dimension.setting_names]
    problems = [f"--search {name}: is given more than once." for name in set(names) if names.count(name) > 1]
    problems += [f"--search {name}: has a value of its own too; give one of both." for name in names if name in fixed]
    space, notes, kept = given or Space(), [], []
    for dimension in space.dimensions:
        taken = [name for name in dimension.setting_names if name in fixed]
        if taken:
            notes.append(f"{dimension.name}: is not varied, as {taken[0]} is set to {fixed[taken[0]]}.")
        elif not set(names).intersection(dimension.setting_names):
            kept.append(dimension)
    dimensions = (*kept, *vary)
    if not dimensions and not problems:
        problems.append("search: got nothing to vary, expected --space NAME or --search NAME=VALUES.")
    if problems:
        raise ConfigError(sorted(problems))
    varied = {name for dimension in dimensions for name in dimension.setting_names}
    settings = {name: value for name, value in space.settings.items() if name not in varied}
    return replace(space, dimensions=dimensions, settings=settings), notes


def check_space(space: Space, settings: TrialSettings) -> Space:
    """Validate a space; return it with each value converted to its setting's type.

    Each value is validated together with the first values of the other dimensions.
    """
    first = space.first_point()
    problems: dict[str, None] = {}
    dimensions = []
    for dimension in space.dimensions:
        problems |= {
            f"{name}: cannot be varied: trials must be of the same rows and the same score.": None
            for name in dimension.setting_names
            if name in _REFUSED or name in _NOT_VARIED or (name.startswith("data.") and name not in _VARIED_DATA)
        }
        values = []
        for value in dimension.choices or (dimension.low, dimension.high):
            try:
                config = settings.config(space.settings_of({**first, dimension.name: value}))
                check_feasible(config)
                flat = {**to_flat(config), "preset": config.preset}
                values.append(value if dimension.alternatives else flat[dimension.name])
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
    """Return the dimension with these converted values; append errors to `problems`."""
    if dimension.choices:
        if len(set(map(repr, values))) < len(values):
            problems[f"{dimension.name}: got {', '.join(map(str, values))}: a value is named more than once."] = None
        return replace(dimension, choices=tuple(values))
    low, high = values
    step = dimension.step
    if any(isinstance(value, bool) or not isinstance(value, (int, float)) for value in values):
        problems[f"{dimension.name}: has no range, expected its values."] = None
    elif isinstance(low, int) and step is not None and step != int(step):
        problems[f"{dimension.name}: takes whole numbers, but the step is {step}."] = None
    if isinstance(low, int) and not dimension.log:
        step = int(step or 1)
    return replace(dimension, low=low, high=high, step=step)


def _sampling(space: Space, settings: SearchSettings, seed: int) -> SamplerConfig:
    """Check the options, and return how trials are sampled."""
    points = space.points()
    sampler = settings.sampler or ("tpe" if points is None else "grid")
    pruner = settings.pruner or ("median" if sampler == "tpe" else "none")
    words = {"sampler": sampler, "pruner": pruner, "choose": settings.choose, "score_on": settings.score_on}
    problems = [
        f"--{flag}: got {word!r}, expected one of {', '.join(_CHOICES[flag])}.{did_you_mean(word, _CHOICES[flag])}"
        for flag, word in words.items()
        if word not in _CHOICES[flag]
    ]
    if sampler == "grid" and points is None:
        unbounded = next(part.name for part in space.dimensions if part.values is None)
        problems.append(f"--sampler grid: {unbounded} is a range without a step; give its values, or --sampler tpe.")
    problems += [
        f"--{name}: got {value}, expected a whole number of at least 1."
        for name in ("trials", "startup", "seeds")
        if (value := getattr(settings, name)) is not None and value < 1
    ]
    if not 0 < settings.search_share < 1:
        problems.append(f"--search_share: got {settings.search_share}, expected a number above 0 and below 1.")
    if not settings.k >= 0:
        problems.append(f"--k: got {settings.k}, expected a number of at least 0.")
    if problems:
        raise ConfigError(problems)
    trials = _TRIALS if settings.trials is None and sampler != "grid" else settings.trials
    return SamplerConfig(sampler, pruner, settings.startup, trials, seed)
