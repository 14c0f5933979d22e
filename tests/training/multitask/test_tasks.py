"""Several tasks in one command: a run each, or one encoder that all share; resumed, predicted and handed in."""

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import attentune.training.run as run_module
from attentune.config import load_config
from attentune.errors import CheckpointError
from attentune.inference.predictor import Predictor, evaluate
from attentune.training.building import steps_per_task, task_schedule
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run_folder import Interrupted
from attentune.training.tasks import TasksResult, leaderboard_score, train_tasks
from helpers.glue_samples import write_cs224n
from helpers.interrupted import log_of, without_times

Tiny = Callable[..., Path]
TASKS = ("sst5", "quora", "sts")


def train(folder: Path, encoder: Path, **changes: Any) -> TasksResult:
    values = {
        "data.tasks": ",".join(TASKS),
        "data.data_dir": str(folder / "cs224n"),
        "data.max_length": 32,
        "model.name_or_path": str(encoder),
        "training.output_dir": str(folder / "run"),
        "training.per_device_train_batch_size": 8,
        "training.num_train_epochs": 2,
        "training.learning_rate": 1e-3,
        "training.logging_steps": 1,
        "training.use_cpu": True,
    }
    values |= {name.replace("__", "."): value for name, value in changes.items()}
    return train_tasks(load_config(overrides=values), display=ProgressDisplay(quiet=True))


@pytest.fixture
def place(tmp_path: Path) -> Path:
    write_cs224n(tmp_path / "cs224n")
    return tmp_path


METHOD = {"training__multi_task": True, "preset": "ssa-hybrid", "training__save_steps": 5}
RUNS = {
    "apart": {"preset": "task-attention"},
    "together": {"preset": "task-attention", "training__multi_task": True},
    "method": METHOD,
}


@pytest.fixture(scope="module")
def whole(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, TasksResult]]:
    """`whole("apart")`: the folder of such a run, trained once, and its result."""
    made: dict[str, tuple[Path, TasksResult]] = {}

    def get(name: str) -> tuple[Path, TasksResult]:
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            write_cs224n(folder / "cs224n")
            made[name] = folder / "run", train(folder, tiny("bert"), **RUNS[name])
        return made[name]

    return get


def test_the_command_prints_every_tasks_scores_and_the_leaderboards(place, tiny, attentune):
    where = ("--data_dir", place / "cs224n", "--output_dir", place / "run", "--model_name_or_path", tiny("bert"))
    size = ("--max_seq_length", 32, "--num_train_epochs", 1, "--per_device_train_batch_size", 8, "--use_cpu")
    words = ("train", "--tasks", ",".join(TASKS), *where, *size, "--quiet")
    out, _ = attentune.done(*words)
    scores = {task: evaluate(place / "run" / task)["validation"] for task in TASKS}
    for task, own in scores.items():
        for name, value in own.items():
            said = re.search(rf"^{task} +validation +{name} +(\S+)$", out, re.MULTILINE)
            assert said, out
            assert said[1] == "undefined" if value is None else float(said[1]) == pytest.approx(value, abs=1e-4)
    assert re.search(r"^all three +validation +leaderboard score", out, re.MULTILINE)
    found = json.loads(attentune(*words, "--resume", "--format", "json")[1])
    assert list(found["tasks"]) == list(TASKS)
    assert found["tasks"]["sst5"]["validation"] == pytest.approx(scores["sst5"])
    assert found["leaderboard"] == json.loads((place / "run" / "tasks.json").read_text())["leaderboard"]


@pytest.mark.integration
@pytest.mark.parametrize("name", ["apart", "together"])
def test_each_task_is_a_run_that_scores_as_it_said_with_its_own_encoder_or_one_for_all(whole, name: str) -> None:
    folder, result = whole(name)
    assert list(result.scores) == list(TASKS)
    for task in TASKS:
        assert evaluate(folder / task)["validation"] == pytest.approx(result.scores[task]["validation"])
        # The same by the folder of all and the task's name.
        assert Predictor.load(folder, task).folder == folder / task
    told = json.loads((folder / "tasks.json").read_text())
    assert told["tasks"] == result.scores
    accuracy = [result.scores[task]["validation"]["accuracy"] for task in ("sst5", "quora")]
    pearson = result.scores["sts"]["validation"]["pearson"]
    assert result.leaderboard == {"validation": pytest.approx((sum(accuracy) + (1 + pearson) / 2) / 3)}
    first, *others = (load_file(folder / task / "model.safetensors") for task in TASKS)
    names = [one for one in first if one.startswith("encoder.")]
    for other in others:
        assert all(torch.equal(first[one], other[one]) for one in names) == (name == "together")


def outcome(run: Path) -> dict[str, Any]:
    """All that a run of several tasks computed."""
    return {
        "weights": [(run / task / "model.safetensors").read_bytes() for task in TASKS],
        "scores": json.loads((run / "tasks.json").read_text()),
        "log": [without_times(line) for line in log_of(run)],
    }


@pytest.mark.integration
@pytest.mark.parametrize(("step", "way"), [(2, "killed"), (11, "killed"), (23, "killed"), (7, "Ctrl-C")])
def test_a_broken_off_run_goes_on_to_the_same_end(whole, place, tiny, monkeypatch, step: int, way: str) -> None:
    """Ctrl-C saves the step that it came in, and says how to go on."""
    expected = outcome(whole("method")[0])
    assert len([line for line in expected["log"] if "loss" in line]) > 20
    done: list[int] = []
    usual = run_module.training_step

    def broken(*arguments: Any) -> Any:
        if len(done) == step and way == "killed":
            raise RuntimeError("killed")
        logs = usual(*arguments)
        done.append(1)
        if len(done) == step and way == "Ctrl-C":
            os.kill(os.getpid(), signal.SIGINT)
        return logs

    kind, told = (RuntimeError, "killed") if way == "killed" else (Interrupted, "step 7.*--resume --output_dir")
    with monkeypatch.context() as patched, pytest.raises(kind, match=told):
        patched.setattr(run_module, "training_step", broken)
        train(place, tiny("bert"), **METHOD)
    folders = [entry.name for entry in (place / "run").glob("checkpoint-*")]
    assert bool(folders) == (step >= 5)
    if way == "Ctrl-C":
        assert "checkpoint-7" in folders
        resumed = load_config(overrides={"training.output_dir": str(place / "run"), "training.resume": True})
        train_tasks(resumed, display=ProgressDisplay(quiet=True))
    else:
        train(place, tiny("bert"), **METHOD, training__resume=bool(folders))
    assert outcome(place / "run") == expected


@pytest.mark.integration
def test_apart_finished_tasks_are_not_trained_again(whole, tiny: Tiny) -> None:
    folder, _ = whole("apart")
    stamp = (folder / "sst5" / "model.safetensors").stat().st_mtime_ns
    for file in (folder / "tasks.json", folder / "sts" / "run.json"):
        file.unlink()
    train(folder.parent, tiny("bert"), **RUNS["apart"], training__resume=True)
    assert (folder / "sst5" / "model.safetensors").stat().st_mtime_ns == stamp
    assert (folder / "sts" / "run.json").is_file()


def test_small_tasks_get_more_than_their_share() -> None:
    steps = steps_per_task({"small": 10, "large": 1000}, {"small": 100, "large": 10_000}, 0.5, 0)
    assert steps == {"small": 92, "large": 918}
    assert steps_per_task({"small": 10, "large": 1000}, {"small": 100, "large": 10_000}, 1.0, 0) == {
        "small": 10,
        "large": 1000,
    }
    assert steps_per_task({"a": 7, "b": 7}, {"a": 5, "b": 50}, 0.0, 100) == {"a": 50, "b": 50}


def test_turns_are_a_function_of_the_seed() -> None:
    order = task_schedule({"a": 3, "b": 7}, 1)
    assert Counter(order) == {"a": 3, "b": 7}
    assert order == task_schedule({"a": 3, "b": 7}, 1) != task_schedule({"a": 3, "b": 7}, 2)


def test_the_leaderboards_score() -> None:
    scores = {"sst5": {"dev": {"accuracy": 0.524}}, "quora": {"dev": {"accuracy": 0.842}}}
    assert leaderboard_score(scores, "dev") is None
    scores["sts"] = {"dev": {"pearson": 0.826}}
    assert leaderboard_score(scores, "dev") == pytest.approx((0.524 + 0.842 + 1.826 / 2) / 3)


@pytest.mark.integration
def test_settings_of_one_task(place: Path, tiny: Tiny) -> None:
    written = "{STS: {objective.loss: pearson}, sst5: {objective.loss: corn}}"
    own = {"STS": {"objective.loss": "pearson"}, "sst5": {"objective.loss": "corn"}}
    ways = [load_config(overrides={"data.tasks": ",".join(TASKS), "data.task_settings": one}) for one in (written, own)]
    assert ways[0] == ways[1]
    train(place, tiny("bert"), data__task_settings=written, training__multi_task=True, training__max_steps=1)
    losses = [Predictor.load(place / "run", task).model.config.loss for task in TASKS]
    assert losses == ["corn", "cross-entropy", "pearson"]


def test_of_several_runs_one_must_be_named(whole) -> None:
    folder, _ = whole("apart")
    with pytest.raises(CheckpointError, match="quora, sst5, sts; got no task"):
        evaluate(folder)
    with pytest.raises(CheckpointError, match="got task cola"):
        Predictor.load(folder, "CoLA")
