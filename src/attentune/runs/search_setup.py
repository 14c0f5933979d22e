"""Sets up a search: checks options, space, data and encoder before the first trial."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune.config import Config, to_flat
from attentune.config.parse import did_you_mean
from attentune.data.extra import with_extra
from attentune.errors import CheckpointError, ConfigError, DataError
from attentune.runs.manifest import DataFingerprints, fingerprint_encoders, fingerprint_rows
from attentune.runs.manifest import MAY_DIFFER
from attentune.runs.selection import PARTS, RULES, SelectionCriterion
from attentune.runs.search_settings import TrialSettings, checked_settings
from attentune.runs.space import Dimension, Space
from attentune.runs.study import PRUNERS, SAMPLERS, SamplerConfig
from attentune.runs.trial import SCORED, Rows
from attentune.io.files import read_json, write_text
from attentune.metrics.metrics import choose_metric
from attentune.results import SEARCH_FILE

_FORMAT = 1
_SHOWN = 8
# A comparison may have several values of these settings; a search has a single one.
_DECIDES = ("data.task", "data.max_train_samples")


def description(settings: Mapping[str, Any], space: list[dict[str, Any]], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a search, which must stay the same when it is resumed, as a flat mapping."""
    constant = {name: value for name, value in settings.items() if name not in MAY_DIFFER or name in _DECIDES}
    varied = {f"space {part['name']}": {key: value for key, value in part.items() if key != "name"} for part in space}
    content = {**constant, **varied, **options}
    return json.loads(json.dumps(content))


def open_search(folder: Path, content: Mapping[str, Any]) -> None:
    """Create a search in its folder, or continue the one that is there."""
    file = folder / SEARCH_FILE
    if file.exists():
        check_same_search(_read(file)["search"], content, str(folder))
        return
    made = {"format": _FORMAT, "id": uuid.uuid4().hex, "search": content}
    write_text(file, json.dumps(made, indent=1, ensure_ascii=False) + "\n")


def _read(file: Path) -> dict[str, Any]:
    try:
        content = read_json(file)
        if content["format"] == _FORMAT and isinstance(content["search"], dict) and content["id"]:
            return content
        problem = f"is of format {content['format']!r}, expected {_FORMAT}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"cannot be read ({error})"
    raise CheckpointError(f"{file}: {problem}. Name another --output_dir, or delete this file if you know why.")


def check_same_search(before: Mapping[str, Any], now: Mapping[str, Any], where: str) -> None:
    """Check that two descriptions describe the same search."""
    changes = [
        f"{name}: was {before.get(name, 'not there')!r}, now {now.get(name, 'not there')!r}"
        for name in dict.fromkeys([*before, *now])
        if before.get(name) != now.get(name)
    ]
    if changes:
        listed = [*changes[:_SHOWN], *([f"and {len(changes) - _SHOWN} more"] if len(changes) > _SHOWN else [])]
        raise CheckpointError(
            f"{where}: was begun as another search, so its trials could not be ranked together: {'; '.join(listed)}. Go"
            " on as it was begun, or name another --output_dir. Only --trials may be raised."
        )


_TRIALS = 20


@dataclass(frozen=True)
class SearchOptions:
    """The options of a search; see `search.search`."""

    sampler: str | None = None
    trials: int | None = None
    seeds: int = 1
    choose: str = "score"
    k: float = 1.0
    score_on: str = "train"
    search_share: float = 0.2
    pruner: str | None = None
    startup: int = 5


@dataclass(frozen=True)
class Setup:
    """A search whose options have been checked."""

    space: Space  # the search space, with validated values
    settings: TrialSettings  # the settings of all trials
    sampler_config: SamplerConfig  # how trials are sampled and pruned
    criterion: SelectionCriterion  # how trials are ranked
    rows: Rows  # the rows that they are trained and scored on
    seeds: Sequence[int]  # the seeds of each trial's runs
    base: Config  # the configuration of one point of the space
    notes: tuple[str, ...]  # notes to show to the user
    content: Mapping[str, Any]  # the description of the search, which must stay the same when it is resumed


def set_up(
    space: str | Path | Mapping[str, Any] | None,
    vary: Sequence[Dimension],
    options: SearchOptions,
    *,
    preset: str | None,
    file: str | Path | None,
    overrides: Mapping[str, Any],
) -> Setup:
    """Check everything, and read the data once."""
    checked = checked_settings(space, vary, preset=preset, file=file, overrides=overrides)
    whole, settings, seed = checked.space, checked.trials, checked.seed
    sampler_config = _sampler_config(whole, options, seed)
    _check_options(options)
    rows = Rows(options.score_on, options.search_share, seed)
    base = settings.config(whole.settings_of({part.name: (*part.choices, part.low)[0] for part in whole.dimensions}))
    if base.baseline is not None and all(part.name != "preset" for part in whole.dimensions):
        raise ConfigError(
            f"--preset: got the baseline {base.baseline}, which has no settings to search; expected a preset that"
            " trains, such as bert. attentune train and attentune compare fit baselines."
        )
    if sampler_config.pruner != "none" and base.training.eval_strategy == "no":
        raise ConfigError("--pruner: needs scores on the way; set training.eval_strategy to epoch or steps, or none.")
    data_notes, metric, data_fingerprints = _check_inputs(base, rows)
    return Setup(
        space=whole,
        settings=settings,
        sampler_config=sampler_config,
        criterion=SelectionCriterion(options.choose, options.k, metric),
        rows=rows,
        seeds=range(seed, seed + options.seeds),
        base=base,
        notes=(*checked.notes, *data_notes),
        content=_content(whole, base, options, sampler_config, metric) | data_fingerprints,
    )


def _sampler_config(space: Space, options: SearchOptions, seed: int) -> SamplerConfig:
    points = space.points()
    sampler = options.sampler or ("tpe" if points is None else "grid")
    pruner = options.pruner or ("median" if sampler == "tpe" else "none")
    problems = [*_unknown("sampler", sampler, SAMPLERS), *_unknown("pruner", pruner, PRUNERS)]
    if sampler == "grid" and points is None:
        unbounded = next(part.name for part in space.dimensions if part.values is None)
        problems.append(f"--sampler grid: {unbounded} is a range without a step; give its values, or --sampler tpe.")
    for name, value in (("trials", options.trials), ("startup", options.startup)):
        if value is not None and value < 1:
            problems.append(f"--{name}: got {value}, expected a whole number of at least 1.")
    if problems:
        raise ConfigError(problems)
    trials = _TRIALS if options.trials is None and sampler != "grid" else options.trials
    return SamplerConfig(sampler, pruner, options.startup, trials, seed)


def _unknown(flag: str, value: str, known: Sequence[str]) -> list[str]:
    return (
        []
        if value in known
        else [f"--{flag}: got {value!r}, expected one of {', '.join(known)}.{did_you_mean(value, known)}"]
    )


def _check_options(options: SearchOptions) -> None:
    problems = [*_unknown("choose", options.choose, RULES), *_unknown("score_on", options.score_on, SCORED)]
    if not 0 < options.search_share < 1:
        problems.append(f"--search_share: got {options.search_share}, expected a number above 0 and below 1.")
    if not options.k >= 0:
        problems.append(f"--k: got {options.k}, expected a number of at least 0.")
    if options.seeds < 1:
        problems.append(f"--seeds: got {options.seeds}, expected a whole number of at least 1.")
    if problems:
        raise ConfigError(problems)


def _check_inputs(base: Config, rows: Rows) -> tuple[Sequence[str], str, DataFingerprints]:
    """Return notes on the data, the metric's name, and the fingerprints of data and encoder."""
    from attentune.models.build import load_tokenizer

    data = with_extra(rows.load(base), base.data)
    metric = choose_metric(base.training.metric_for_best_model, data.metrics, data.label_space)
    scored = next((part for name, part in data.splits.items() if name.startswith("validation")), None)
    if scored is None or scored.labels is None or len(scored) < PARTS:
        raise DataError(
            f"{data.name}: has fewer than {PARTS} labelled rows to score trials on. Give more, or raise --search_share."
        )
    load_tokenizer(base.model)
    return data.notes, metric.name, fingerprint_rows(data.name, data) | fingerprint_encoders([base])


def _content(
    space: Space, base: Config, options: SearchOptions, sampler_config: SamplerConfig, metric: str
) -> dict[str, Any]:
    """Return the description that must be equal for two commands on one folder."""
    varied = {name for part in space.dimensions for name in part.setting_names}
    fixed = {name: value for name, value in to_flat(base).items() if name not in varied}
    facts = {
        "metric": metric,
        "seed": sampler_config.seed,
        "sampler": sampler_config.sampler,
        "pruner": sampler_config.pruner,
    }
    names = ("seeds", "choose", "k", "score_on", "search_share", "startup")
    facts |= {name: getattr(options, name) for name in names}
    return description(fixed, [part.to_dict() for part in space.dimensions], facts)
