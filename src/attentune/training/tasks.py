"""Trains several built-in tasks in one command: one run each, or one shared encoder; and their joint score."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from attentune.config import Config, TrainingConfig, load_config, to_flat, to_yaml
from attentune.data.builtin import load_spec
from attentune.errors import CheckpointError, ConfigError
from attentune.io.files import read_json, storage_errors, write_text
from attentune.results import TASKS_FILE, RunResult, to_json
from attentune.training.building import load_inputs
from attentune.training.callbacks import ProgressDisplay, one_line
from attentune.training.prepare import RunInputs, prepare_rows, settle
from attentune.training.run import build, finish, fit, train
from attentune.training.run_folder import (
    CONFIG_FILE,
    Interrupted,
    check_folder,
    check_writable,
    config_for_run,
    opened_folder,
    stop_on_signal,
)


def leaderboard_score(scores: Mapping[str, Mapping[str, Mapping[str, float | None]]], split: str) -> float | None:
    """Return (accuracy + accuracy + (1 + Pearson) / 2) / 3 of SST-5, Quora and STS; None if one of them has no score.

    Source: the leaderboard of the course, as in task-specific attention (Jia 2024), results.
    """
    metrics = {"sst5": "accuracy", "quora": "accuracy", "sts": "pearson"}
    values = [scores.get(task, {}).get(split, {}).get(name) for task, name in metrics.items()]
    if any(value is None for value in values):
        return None
    sentiment, paraphrase, similarity = (float(value or 0.0) for value in values)
    return (sentiment + paraphrase + (1.0 + similarity) / 2.0) / 3.0


# Settings that tasks with a shared encoder must have in common, and settings that no single task may have.
_SHARED = ("model.name_or_path", "model.revision", "model.dropout", "model.trust_remote_code", "model.blur", "training")
_NOT_OF_ONE_TASK = (
    "data.task",
    "data.tasks",
    "data.task_settings",
    "training.output_dir",
    "training.seed",
    "preset",
    "model.trust_remote_code",
)


@dataclass(frozen=True)
class TasksResult:
    """The scores of several tasks."""

    scores: dict[str, dict[str, dict[str, float | None]]]  # by task, split and metric
    leaderboard: dict[str, float]  # CS224N's joint score of sst5, quora and sts, by split

    def to_dict(self) -> dict[str, Any]:
        """Return the content of `tasks.json`."""
        return {"tasks": self.scores, "leaderboard": self.leaderboard}


def train_tasks(config: Config, *, display: ProgressDisplay | None = None) -> TasksResult:
    """Train on each of `config.data.tasks`; the folder of a task is `OUTPUT_DIR/TASK`, a run like any other."""
    with display or ProgressDisplay() as display:
        config = config_for_run(config)
        check_folder(config)
        folder = Path(str(config.training.output_dir))
        if config.training.resume and (folder / TASKS_FILE).is_file():
            display.info(f"{folder}: these tasks are finished; nothing to resume.")
            return _finished(folder / TASKS_FILE)
        check_writable(config)
        configs = task_configs(config)
        with opened_folder(config) as run:
            try:
                results = _train_together(run, configs, config.training, display) if config.training.multi_task else {}
                for task, task_config in configs.items():
                    if task not in results:
                        display.info(f"{task}:")
                        results[task] = train(_resumable(task_config), display=display, with_baselines=False)
            except Interrupted as stop:
                raise Interrupted(str(run), stop.step) from None
            scores = {task: one.scores for task, one in results.items()}
            splits = sorted({split for parts in scores.values() for split in parts})
            board = {split: score for split in splits if (score := leaderboard_score(scores, split)) is not None}
            result = TasksResult(scores, board)
            write_text(run / TASKS_FILE, to_json(result.to_dict()))
            return result


def _train_together(
    run: Path, configs: Mapping[str, Config], joint: TrainingConfig, display: ProgressDisplay
) -> dict[str, RunResult]:
    """Train all tasks on one encoder, then evaluate each and save it in `run/TASK` as a run of its own."""
    inputs: dict[str, RunInputs] = {}
    note = f"Trained together with {', '.join(configs)}, on one encoder."
    for task, config in configs.items():
        display.info(f"{task}:")
        one = load_inputs(prepare_rows(config), display)
        data = replace(one.data, notes=(*one.data.notes, note))
        accelerator = one.accelerator if not inputs else next(iter(inputs.values())).accelerator
        inputs[task] = replace(one, data=data, accelerator=accelerator)
    if accelerator.num_processes > 1:
        raise ConfigError(
            f"training.multi_task: got {accelerator.num_processes} processes, expected one: tasks that share an encoder"
            " are trained in a single process."
        )
    trainer = build(settle(inputs, display, joint), shared=joint)
    steps = [
        f"{task} {one.schedule.total_steps} ({one.schedule.total_steps / one.steps_per_epoch:.1f} epochs)"
        for task, one in trainer.tasks.items()
    ]
    display.info(f"optimiser steps: {', '.join(steps)}")
    results = {}
    with stop_on_signal() as stop:
        fit(run, trainer, stop, display, resume=joint.resume)
        for task, trained in trainer.tasks.items():
            trained.state.last_scored_step = -1  # the other tasks have changed the encoder since
            folder = run / task
            with storage_errors(folder):
                folder.mkdir(exist_ok=True)
            write_text(folder / CONFIG_FILE, to_yaml(trained.inputs.config))
            results[task] = finish(folder, trained)
            display.info(f"{task}: {one_line(results[task].scores)}; saved in {folder}")
    return results


def _finished(file: Path) -> TasksResult:
    try:
        content = read_json(file)
        return TasksResult(dict(content["tasks"]), dict(content["leaderboard"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(
            f"{file}: is not the record of finished tasks ({error}). Delete it; the same command makes it again."
        ) from error


def task_configs(config: Config) -> dict[str, Config]:
    """Return the configuration of each task, by its canonical name."""
    problems = _problems(config)
    if problems:
        raise ConfigError(problems)
    names = [load_spec(name).name for name in config.data.tasks or ()]
    given = {load_spec(str(name)).name: dict(settings) for name, settings in (config.data.task_settings or {}).items()}
    whole = to_flat(config)
    configs = {}
    for task in names:
        overrides = {
            "data.task": task,
            "data.tasks": None,
            "data.task_settings": None,
            "training.multi_task": False,
            "training.output_dir": str(Path(str(config.training.output_dir)) / task),
            "training.overwrite_output_dir": False,
            "training.resume": False,
        }
        configs[task] = load_config(overrides={**whole, **overrides, **given.get(task, {})})
    if config.training.multi_task:
        _check_agree(configs)
    return configs


def _problems(config: Config) -> list[str]:
    data, training = config.data, config.training
    names = [load_spec(name).name for name in data.tasks or ()]
    problems = []
    if len(set(names)) != len(names) or not names:
        problems.append(f"data.tasks: got {', '.join(data.tasks or ('nothing',))}, expected each task once.")
    given = data.task_settings or {}
    if not isinstance(given, dict) or not all(isinstance(settings, dict) for settings in given.values()):
        return [
            *problems,
            f"data.task_settings: got {given!r}, expected a mapping such as {{sts: {{objective.loss: pearson}}}}.",
        ]
    for task, settings in given.items():
        if load_spec(str(task)).name not in names:
            problems.append(f"data.task_settings: {task} is not among data.tasks ({', '.join(names)}).")
        wrong = [name for name in settings if name in _NOT_OF_ONE_TASK]
        if wrong:
            problems.append(f"data.task_settings: {task}: {', '.join(wrong)} cannot be set for one task.")
    if training.multi_task and (training.load_best_model_at_end or training.early_stopping_patience is not None):
        problems.append(
            "training.multi_task: the tasks share one encoder, whose last weights count, so load_best_model_at_end and"
            " early_stopping_patience cannot be used with it."
        )
    return problems


def _check_agree(configs: dict[str, Config]) -> None:
    first, *others = ({task: _shared_settings(config) for task, config in configs.items()}).items()
    problems = [
        f"data.task_settings: {task}: {name} is {settings[name]!r}, but {first[0]} has {value!r}; with"
        " training.multi_task all tasks share encoder, blur and training settings."
        for task, settings in others
        for name, value in first[1].items()
        if settings[name] != value
    ]
    if problems:
        raise ConfigError(problems)


def _shared_settings(config: Config) -> dict[str, Any]:
    return {
        name: value
        for name, value in to_flat(config).items()
        if name.startswith(_SHARED) and name != "training.output_dir"
    }


def _resumable(config: Config) -> Config:
    """Return the task's configuration, with `training.resume` if the run exists."""
    if (Path(str(config.training.output_dir)) / CONFIG_FILE).is_file():
        return load_config(overrides={**to_flat(config), "training.resume": True})
    return config
