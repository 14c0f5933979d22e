"""A search for good settings: trials of a grid, random or drawn by TPE, side by side, the best written as a
configuration."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune.config import to_yaml
from attentune.errors import ConfigError, DataError
from attentune.evaluation.metrics import choose_metric
from attentune.files import write_text
from attentune.results import to_json
from attentune.training.conductor import ComparisonStopped, Conductor, default_jobs
from attentune.training.crew import Crew
from attentune.training.matrix_display import MatrixDisplay
from attentune.training.methods import flat_settings
from attentune.training.queue import RunQueue
from attentune.training.queue_storage import HEARTBEAT_S, Place
from attentune.training.search_choice import PARTS, Choice, TrialOutcome, ranked
from attentune.training.search_folder import (
    TRIALS_FILE,
    WINNER_FILE,
    check_same_search,
    description,
    open_search,
)
from attentune.training.search_plan import SearchPlan
from attentune.training.search_run import SCORED, Rows
from attentune.training.search_settings import TrialSettings, checked, common_settings, whole_space
from attentune.training.search_space import Dimension, Space, load_space, space_from
from attentune.training.search_study import PRUNERS, SAMPLERS, Draws, SearchStudy
from attentune.training.signals import stop_on_signal

__all__ = ["ComparisonStopped", "SearchResult", "search"]

RULES = ("score", "three-parts")
_TRIALS = 20


@dataclass(frozen=True)
class SearchResult:
    """What a search has found.

    Attributes:
        task: the task's name, or "own".
        choice: by what trials are ranked.
        rows: which rows they were scored on.
        trials: best first; then those that were pruned and those that failed.
        config: the file with the best one's settings, or None where no trial is done.
        importance: what share of the ranking values' variance each dimension explains, or None.
        importance_note: why there is no saying.
    """

    task: str
    choice: Choice
    rows: Rows
    trials: list[TrialOutcome]
    config: Path | None
    importance: dict[str, float] | None
    importance_note: str = ""

    @property
    def best(self) -> TrialOutcome | None:
        """The trial to take, if one is done."""
        return self.trials[0] if self.trials and self.trials[0].value is not None else None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        trials = [{**dataclasses.asdict(trial), "mean": trial.mean, "std": trial.std} for trial in self.trials]
        return {
            "task": self.task,
            "choice": {**dataclasses.asdict(self.choice), "greater_is_better": self.choice.greater_is_better},
            "rows": dataclasses.asdict(self.rows),
            "best": None if self.best is None else self.best.name,
            "config": None if self.config is None else str(self.config),
            "trials": trials,
            "importance": self.importance,
            "importance_note": self.importance_note,
        }


def search(
    output_dir: str | Path,
    *,
    space: str | Path | Mapping[str, Any] | None = None,
    vary: Sequence[Dimension] = (),
    sampler: str | None = None,
    trials: int | None = None,
    seeds: int = 1,
    choose: str = "score",
    k: float = 1.0,
    score_on: str = "train",
    search_share: float = 0.2,
    pruner: str | None = None,
    startup: int = 5,
    preset: str | None = None,
    config: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    storage: str | None = None,
    study: str | None = None,
    jobs: int | None = None,
    retry_failed: bool = False,
    heartbeat_s: int = HEARTBEAT_S,
    display: MatrixDisplay | None = None,
) -> SearchResult:
    """Look for good settings, and write the best as `config.yaml` in `output_dir`.

    Trials that have ended are not done again; broken-off ones go on from their last checkpoint.

    Args:
        output_dir: the search's folder.
        space: a paper's grid by name, a YAML file, or {"space": {name: values}, "preset": ..., "set": {...}}.
        vary: more dimensions; each takes the place of the space's that varies the same setting.
        sampler: "grid", "random" or "tpe"; grid where every dimension is a list, else tpe, if not given.
        trials: how many; the whole grid, or 20, if not given. May be raised later.
        seeds: runs a trial, with the settings' seed and those after it.
        choose: "score", the mean over seeds; "three-parts", mean - k std over three stratified parts of the rows
            scored (SSA, section 4; the formula is ours).
        k: the weight of the standard deviation.
        score_on: "train" cuts the rows to score on from train, so that dev stays unseen; "dev" scores dev itself.
        search_share: the share that is cut.
        pruner: "none", "median" or "halving", on the first seed's scores while it trains; median with tpe, else none,
            if not given.
        startup: finished trials before TPE models them, and before the median prunes.
        preset, config, overrides: settings of all trials, as for `load_config`.
        storage, study, jobs, retry_failed, heartbeat_s, display: as for `compare`.

    Raises:
        AttentuneError: anything that the user can mend, other than what fails in a single trial.
        ComparisonStopped: a stop was asked for (Ctrl-C or SIGTERM); workers have saved and ended.
    """
    shown, folder = display or MatrixDisplay(), Path(output_dir)
    named = (
        space_from(space, "space") if isinstance(space, Mapping) else None if space is None else load_space(str(space))
    )
    whole, notes = whole_space(named, vary, overrides or {})
    settings, seed = common_settings(overrides or {}, whole, config, preset)
    whole = checked(whole, settings)
    draws = _draws(whole, sampler, trials, pruner, startup, seed)
    rows = Rows(score_on, search_share, seed)
    _check_ways(choose, k, rows, seeds, jobs)
    base = settings.config(
        whole.settings_of({part.name: (part.choices or (part.low,))[0] for part in whole.dimensions})
    )
    if draws.pruner != "none" and base.training.eval_strategy == "no":
        raise ConfigError("--pruner: needs scores on the way; set training.eval_strategy to epoch or steps, or none.")
    data_notes, metric = _check_inputs(base, rows)
    choice = Choice(choose, k, metric)
    for note in (*notes, *data_notes):
        shown.say(note)
    varied = {name for part in whole.dimensions for name in part.setting_names}
    fixed = {name: value for name, value in flat_settings(base).items() if name not in varied}
    ways = {"sampler": draws.sampler, "pruner": draws.pruner, "startup": startup, "seeds": seeds, "seed": seed}
    ways |= {"choose": choose, "k": k, "score_on": score_on, "search_share": search_share, "metric": metric}
    content = description(fixed, [part.to_dict() for part in whole.dimensions], ways)
    place = Place(
        str(folder),
        open_search(folder, content),
        storage,
        "search" if storage is None else study or folder.resolve().name,
        heartbeat_s,
    )
    found = SearchStudy(place, whole, draws, choice)
    check_same_search(found.agreed(content), content, f"the study {place.study!r}", other_place=True)
    cores, one_thread = default_jobs([flat_settings(base)])
    queue = RunQueue(place)
    plan = SearchPlan(found, queue.ledger, settings, rows, range(seed, seed + seeds), one_thread)
    if retry_failed:
        plan.retry_failed()
    plan.advance(0, ())
    if not plan.is_complete:
        _run(plan, queue, Crew(jobs or cores, folder / "logs", one_thread=one_thread), shown)
    return _result(plan, folder, base)


def _draws(space: Space, sampler: str | None, trials: int | None, pruner: str | None, startup: int, seed: int) -> Draws:
    points = space.points()
    sampler = sampler or ("tpe" if points is None else "grid")
    pruner = pruner or ("median" if sampler == "tpe" else "none")
    problems = [
        f"--{name}: got {value!r}, expected one of {', '.join(known)}."
        for name, value, known in (("sampler", sampler, SAMPLERS), ("pruner", pruner, PRUNERS))
        if value not in known
    ]
    if sampler == "grid" and points is None:
        endless = next(part.name for part in space.dimensions if part.values is None)
        problems.append(f"--sampler grid: {endless} is a range without a step; give its values, or --sampler tpe.")
    for name, value in (("trials", trials), ("startup", startup)):
        if value is not None and value < 1:
            problems.append(f"--{name}: got {value}, expected a whole number of at least 1.")
    if problems:
        raise ConfigError(problems)
    return Draws(sampler, pruner, startup, trials if trials is not None or sampler == "grid" else _TRIALS, seed)


def _check_ways(choose: str, k: float, rows: Rows, seeds: int, jobs: int | None) -> None:
    problems = []
    if choose not in RULES:
        problems.append(f"--choose: got {choose!r}, expected one of {', '.join(RULES)}.")
    if rows.score_on not in SCORED:
        problems.append(f"--score_on: got {rows.score_on!r}, expected one of {', '.join(SCORED)}.")
    if not 0 < rows.share < 1:
        problems.append(f"--search_share: got {rows.share}, expected a number above 0 and below 1.")
    if not k >= 0:
        problems.append(f"--k: got {k}, expected a number of at least 0.")
    if seeds < 1:
        problems.append(f"--seeds: got {seeds}, expected a whole number of at least 1.")
    if jobs is not None and jobs < 1:
        problems.append(f"--jobs: got {jobs}, expected a whole number of at least 1.")
    if problems:
        raise ConfigError(problems)


def _check_inputs(base: Any, rows: Rows) -> tuple[Sequence[str], str]:
    """Read the data and look for the encoder once, so that what would fail all trials is told at once; what to tell of
    the data, and the metric.

    Raises:
        AttentuneError: they are not there or not as expected.
    """
    from attentune.models.build import load_tokenizer

    data = rows.load(base)
    metric = choose_metric(base.training.metric_for_best_model, data.metrics, data.label_space)
    scored = next((part for name, part in data.splits.items() if name.startswith("validation")), None)
    if scored is None or scored.labels is None or len(scored) < PARTS:
        raise DataError(f"{data.name}: has no {PARTS} labelled rows to score trials on.")
    load_tokenizer(base.model)
    return data.notes, metric.name


def _run(plan: SearchPlan, queue: RunQueue, crew: Crew, display: MatrixDisplay) -> None:
    display.short = display.long = plan.describe
    with stop_on_signal() as stop:
        Conductor(plan, queue, display).run(crew, stop)


def _result(plan: SearchPlan, folder: Path, base: Any) -> SearchResult:
    """The trials, ranked; the best one's settings and all results are written."""
    study = plan.study
    importance, why = study.importance()
    result = SearchResult(
        plan.settings.task(), study.choice, plan.rows, ranked(study.trials(), study.choice), None, importance, why
    )
    if result.best is not None:
        file = folder / WINNER_FILE
        own = {"training.output_dir": os.fspath(folder / "best"), "training.seed": plan.rows.seed}
        write_text(file, to_yaml(plan.settings.config({**result.best.settings, **own})))
        result = dataclasses.replace(result, config=file)
    write_text(folder / TRIALS_FILE, to_json(result.to_dict()))
    return result
