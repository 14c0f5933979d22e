"""Hyper-parameter search: runs trials in parallel (grid, random or TPE), and trains a model with the best settings."""

import dataclasses
import json
import os
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from attentune.config import Config, load_config, to_flat, to_yaml
from attentune.data.dataset import data_name
from attentune.data.load import with_extra
from attentune.errors import CheckpointError, ConfigError, DataError
from attentune.execution import make_executor
from attentune.execution.executor import ExecutorOptions
from attentune.io.files import write_text
from attentune.metrics.metrics import choose_metric
from attentune.results import BEST_FOLDER, RESULT_FILE, SEARCH_FILE, TRIALS_FILE, WINNER_FILE, RunResult, to_json
from attentune.runs.driver import ComparisonStopped, Driver, only_driver
from attentune.runs.grid import (
    MAY_DIFFER,
    check_content,
    fingerprint_encoders,
    fingerprint_rows,
    first_of,
    make_folder,
    read_manifest_file,
)
from attentune.runs.progress import ComparisonProgress
from attentune.runs.search_settings import Search, SearchSettings, check_search
from attentune.runs.trials import PARTS, SearchPlan, TrialOutcome, optuna_study, ranked, rows_of
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run_folder import Interrupted, StopRequest, stop_on_signal

__all__ = ["ComparisonStopped", "SearchResult", "search"]

_FORMAT = 2
_POLL_S = 0.2
# A comparison may have several values of these settings; a search has a single one.
_DECIDES = ("data.task", "data.max_train_samples")


@dataclass(frozen=True)
class SearchResult:
    task: str  # the task's name; for custom data that of the file or data set
    search: Search  # on which rows trials are scored, and how they are ranked
    trials: list[TrialOutcome]  # best first, then the pruned and the failed ones
    config: Path | None  # the file with the best trial's settings; None if no trial is done
    model: Path | None = None  # the run folder of the model that was trained with these settings; None if none was
    model_scores: Mapping[str, Mapping[str, float | None]] = field(default_factory=dict)  # that model's scores

    @property
    def best(self) -> TrialOutcome | None:
        return self.trials[0] if self.trials and self.trials[0].value is not None else None

    def to_dict(self) -> dict[str, Any]:
        trials = [{**dataclasses.asdict(trial), "mean": trial.mean, "std": trial.std} for trial in self.trials]
        search, options = self.search, self.search.options
        return {
            "task": self.task,
            "choice": {
                "rule": options.choose,
                "k": options.k,
                "metric": search.metric,
                "greater_is_better": search.greater_is_better,
            },
            "rows": {"score_on": options.score_on, "share": options.search_share, "seed": search.seed},
            "best": None if self.best is None else self.best.name,
            "config": None if self.config is None else str(self.config),
            "model": None if self.model is None else str(self.model),
            "model_scores": {split: dict(scores) for split, scores in self.model_scores.items()},
            "trials": trials,
        }


def search(
    output_dir: str | Path,
    *,
    jobs: int | None = None,
    executor: ExecutorOptions | None = None,
    retry_failed: bool = False,
    train_best: bool = True,
    display: ComparisonProgress | None = None,
    **settings: Any,
) -> SearchResult:
    """Search for good settings, write the best as `config.yaml` in `output_dir`, and train a model with them in `best`.

    Finished trials are not repeated; interrupted ones resume from their last checkpoint, as does the model's training.

    Args:
        output_dir: the search's folder.
        jobs: number of runs at a time; if not given, one per core on a CPU, one per accelerator.
        executor: where runs are executed, if not on this machine.
        retry_failed: repeat trials that are recorded as failed.
        train_best: train a model with the best trial's settings on all training rows.
        display: shows progress.
        settings: the space, and how trials are sampled, scored and ranked: the attributes of
            `attentune.runs.search_settings.SearchSettings`, such as `space`, `sampler`, `trials` and `overrides`.

    Raises:
        AttentuneError: an error that the user can correct. Errors of single trials are recorded instead.
        ComparisonStopped: a stop was requested (Ctrl-C or SIGTERM); workers have saved and exited.
        Interrupted: a stop was requested while the best trial's settings were trained; the run is saved.
    """
    where = executor or ExecutorOptions(jobs=jobs)
    where.check()
    display, folder = display or ComparisonProgress(), Path(output_dir)
    check_content(folder, SEARCH_FILE, "search")
    checked, content = _set_up(SearchSettings(**settings))
    for note in checked.notes:
        display.info(note)
    make_folder(folder, SEARCH_FILE, "search")
    with only_driver(folder):
        plan = _open(folder, checked, content)
        if retry_failed:
            plan.retry_failed()
        if not plan.is_complete:
            display.short = display.long = plan.describe
            workers = make_executor(where, folder / "logs", [to_flat(checked.config({}))])
            with stop_on_signal() as stop:
                Driver(plan, plan.record_store, workers, display).run(stop)
        result = _result(plan)
        if not train_best or result.best is None:
            return result
        display.info(f"training the settings of {result.best.name} on all training rows")
        best = _best_config(plan, result.best)
        trained = _train_best(best, where, folder / "logs", ProgressDisplay(quiet=display.is_quiet))
        result = replace(result, model=folder / BEST_FOLDER, model_scores=trained.scores)
        write_text(folder / TRIALS_FILE, to_json(result.to_dict()))
        return result


# Before the first trial.


def _set_up(options: SearchSettings) -> tuple[Search, dict[str, Any]]:
    """Check everything, and read the data once; return the search, and what must stay the same when it is resumed."""
    from attentune.models.build import load_tokenizer

    search = check_search(options)
    options, space = search.options, search.space
    base = search.config(space.first_point())
    if base.baseline is not None and "preset" not in space.names:
        raise ConfigError(
            f"--preset: got the baseline {base.baseline}, which has no settings to search; expected a preset that"
            " trains, such as bert. attentune train and attentune compare fit baselines."
        )
    if options.pruner != "none" and base.training.eval_strategy == "no":
        raise ConfigError("--pruner: needs scores on the way; set training.eval_strategy to epoch or steps, or none.")
    data = with_extra(rows_of(search, base), base.data)
    metric = choose_metric(base.training.metric_for_best_model, data.metrics, data.label_space).name
    scored = next((part for name, part in data.splits.items() if name.startswith("validation")), None)
    if scored is None or scored.labels is None or len(scored) < PARTS:
        raise DataError(
            f"{data.name}: has fewer than {PARTS} labelled rows to score trials on. Give more, or raise --search_share."
        )
    load_tokenizer(base.model)
    fixed = {
        name: value
        for name, value in to_flat(base).items()
        if name not in space.names and (name not in MAY_DIFFER or name in _DECIDES)
    }
    parts = [dataclasses.asdict(part) for part in space.dimensions]
    dimensions = {f"space {part.pop('name')}": part for part in parts}
    names = ("sampler", "pruner", "seeds", "choose", "k", "score_on", "search_share", "startup")
    facts = {"metric": metric, "seed": search.seed, **{name: getattr(options, name) for name in names}}
    facts |= {**fingerprint_rows(data.name, data), **fingerprint_encoders([base])}
    content = json.loads(json.dumps({**fixed, **dimensions, **facts}))
    return replace(search, metric=metric, notes=tuple(data.notes)), content


def _open(folder: Path, search: Search, content: Mapping[str, Any]) -> SearchPlan:
    file = folder / SEARCH_FILE
    manifest: dict[str, Any] = {"format": _FORMAT, "id": uuid.uuid4().hex, "search": content, "trials": []}

    def save() -> None:
        write_text(file, json.dumps(manifest, indent=1, ensure_ascii=False) + "\n")

    if not file.exists():
        save()
    manifest = read_manifest_file(file, _FORMAT, lambda saved: isinstance(saved["search"], dict))
    before = manifest["search"]
    changes = [
        f"{name}: was {before.get(name, 'not there')!r}, now {content.get(name, 'not there')!r}"
        for name in dict.fromkeys([*before, *content])
        if before.get(name) != content.get(name)
    ]
    if changes:
        raise CheckpointError(
            f"{folder}: was begun as another search, so its trials could not be ranked together:"
            f" {first_of(changes)}. Go on as it was begun, or name another --output_dir. Only --trials"
            " may be raised."
        )
    try:
        optuna_study(search, [TrialOutcome("", point) for point in manifest["trials"]])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"{file}: holds a trial that is not of its space ({error}). Name another --output_dir."
        ) from error
    return SearchPlan(folder, search, manifest["trials"], save)


# After the last trial.


def _result(plan: SearchPlan) -> SearchResult:
    trials = ranked(plan.trials, greater_is_better=plan.search.greater_is_better)
    result = SearchResult(data_name(vars(plan.search.config({}).data)), plan.search, trials, None)
    if result.best is not None:
        file = plan.folder / WINNER_FILE
        write_text(file, to_yaml(_best_config(plan, result.best)))
        result = replace(result, config=file)
    write_text(plan.folder / TRIALS_FILE, to_json(result.to_dict()))
    return result


def _best_config(plan: SearchPlan, best: TrialOutcome) -> Config:
    run_settings = {"training.output_dir": os.fspath(plan.folder / BEST_FOLDER), "training.seed": plan.search.seed}
    return plan.search.config({**best.params, **run_settings})


def _train_best(config: Config, options: ExecutorOptions, logs: Path, display: ProgressDisplay) -> RunResult:
    """Train the settings of the best trial; a run with those of an earlier best trial is replaced."""
    from attentune.training.run import train

    config = _resumed_or_new(config)
    if options.executor == "local":
        return train(config, display=display)
    folder, flat = str(config.training.output_dir), to_flat(config)
    workers = make_executor(options, logs, [flat])
    try:
        with stop_on_signal() as stop:
            (future,) = workers.submit(train_in_worker, [(flat,)])
            while not future.done() and not stop.requested:
                time.sleep(_POLL_S)
            if stop.requested:
                workers.request_stop()
            if future.cancelled() or not future.result():
                raise Interrupted(folder, 0)
    finally:
        workers.shutdown()
    return RunResult.load(Path(folder) / RESULT_FILE)


def _resumed_or_new(config: Config) -> Config:
    """Return the settings with `resume` if the folder holds a run with these settings, else with `overwrite`."""
    from attentune.training.run_folder import CONFIG_FILE, check_folder, config_for_run

    if not (Path(str(config.training.output_dir)) / CONFIG_FILE).is_file():
        return config
    resumed = replace(config, training=replace(config.training, resume=True))
    try:
        resumed = config_for_run(resumed)
        check_folder(resumed)
    except CheckpointError:
        return replace(config, training=replace(config.training, overwrite_output_dir=True))
    return resumed


def train_in_worker(flat: dict[str, object], *, stop: StopRequest) -> bool:
    """Train with these settings by dotted name; return False if a stop was requested and the run can be resumed."""
    from attentune.training.run import train

    if stop.requested:
        return False
    try:
        train(load_config(overrides=flat))
    except Interrupted:
        return False
    return True
