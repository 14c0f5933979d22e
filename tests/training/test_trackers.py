"""Trackers: what they are told, and how their runs end and go on."""

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from attentune.config import load_config
from attentune.errors import ConfigError
from attentune.results import RunResult
from attentune.training.callbacks import TrainingCallback
from attentune.training.run import train
from attentune.training.run_folder import Interrupted
from helpers.interrupted import log_of
from helpers.samples import settings, write_reviews

pytestmark = pytest.mark.integration

Tiny = Callable[..., Path]
Tracked = Callable[..., RunResult]


@pytest.fixture
def tracked(tiny: Tiny, tmp_path: Path) -> Tracked:
    """`tracked("mlflow", **changes)`: a tiny run of ten steps in tmp_path/run."""

    def run(tracker: str, *callbacks: TrainingCallback, **changes: Any) -> RunResult:
        write_reviews(tmp_path / "train.csv", 40)
        given = settings(tmp_path, tiny("bert"), training__report_to=tracker, training__save_steps=2, **changes)
        return train(load_config(preset="bert-mean", overrides=given), callbacks=callbacks)

    write_reviews(tmp_path / "validation.csv", 20, seed=2)
    return run


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A local store of MLflow; to make one takes seconds."""
    return f"sqlite:///{tmp_path_factory.mktemp('mlflow') / 'mlflow.db'}"


@pytest.fixture
def mlflow(store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """MLflow with that store, and an experiment of the test's own."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    import mlflow as module

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", store)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", tmp_path.name)
    module.set_tracking_uri(store)
    yield module
    module.end_run()
    module.set_tracking_uri(None)


def runs_of(mlflow: Any, experiment: str | None = None) -> list[Any]:
    client = mlflow.MlflowClient()
    name = experiment or os.environ["MLFLOW_EXPERIMENT_NAME"]
    (found,) = client.search_experiments(filter_string=f"name = '{name}'")
    return client.search_runs([found.experiment_id])


def test_mlflow_has_settings_without_places_course_and_final_scores(mlflow, tracked, tiny, tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME")
    result = tracked("mlflow")
    (run,) = runs_of(mlflow, "attentune")
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "run"
    assert run.data.params["preset"] == "bert-mean"
    assert run.data.params["training.num_train_epochs"] == "2.0"
    assert str(tmp_path) not in json.dumps(run.data.params)
    assert run.data.params["model.name_or_path"] == tiny("bert").name
    assert run.data.metrics["final/validation/accuracy"] == pytest.approx(result.scores["validation"]["accuracy"])
    losses = {line["step"]: line["loss"] for line in log_of(tmp_path / "run") if "loss" in line}
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "train/loss")
    assert {point.step: point.value for point in history} == pytest.approx(losses)
    scores = mlflow.MlflowClient().get_metric_history(run.info.run_id, "validation/accuracy")
    assert [point.step for point in scores] == [5, 10]


class OnEvaluate(TrainingCallback):
    """Does something at the first evaluation."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.action = action

    def on_evaluate(self, state: Any, scores: Any, *, is_last: bool) -> None:
        self.action()


def test_a_run_that_is_broken_off_goes_on_in_the_same_mlflow_run(mlflow: Any, tracked: Tracked) -> None:
    with pytest.raises(Interrupted):
        tracked("mlflow", OnEvaluate(lambda: os.kill(os.getpid(), signal.SIGINT)))
    (run,) = runs_of(mlflow)
    assert run.info.status == "KILLED"
    tracked("mlflow", training__resume=True)
    (again,) = runs_of(mlflow)
    assert (again.info.run_id, again.info.status) == (run.info.run_id, "FINISHED")
    history = mlflow.MlflowClient().get_metric_history(run.info.run_id, "train/loss")
    assert sorted(point.step for point in history) == list(range(1, 11))


def test_a_run_that_fails_is_marked_so(mlflow: Any, tracked: Tracked) -> None:
    with pytest.raises(IndexError):
        tracked("mlflow", OnEvaluate([].pop))
    assert [run.info.status for run in runs_of(mlflow)] == ["FAILED"]


def test_a_store_that_is_not_there_is_said(mlflow: Any, tracked: Tracked, tmp_path: Path) -> None:
    mlflow.set_tracking_uri("nosuch://store")
    with pytest.raises(ConfigError, match="mlflow could not be started: .* MLFLOW_TRACKING_URI says where"):
        tracked("mlflow")
    assert not (tmp_path / "run").exists()


def test_wandb_offline_keeps_its_files_in_the_run_folder(tracked, tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    result = tracked("wandb")
    folder = tmp_path / "run" / "tracker"
    (offline,) = (folder / "wandb").glob("offline-run-*")
    name = json.loads((folder / "run-id.json").read_text())["wandb"]
    (file,) = offline.glob("run-*.wandb")
    assert name in file.name
    # Its own process writes the last of it once the run has ended.
    deadline = time.monotonic() + 30
    while b"final/validation/accuracy" not in (content := file.read_bytes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    for word in ("train/loss", "final/validation/accuracy", "training.learning_rate", "bert-mean"):
        assert word.encode() in content
    assert f"{result.scores['validation']['accuracy']}".encode() in content
