"""Soft targets: the objective against a plain loop, whole and resumed runs, and what is refused."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from attentune.config import load_config
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.data.load import load_data
from attentune.errors import CheckpointError, ConfigError, DataError
from attentune.inference.predictor import Predictor, predict_rows
from attentune.metrics.metrics import probabilities_of
from attentune.training.callbacks import ProgressDisplay
from attentune.training.objective import build_objective
from attentune.training.run import train
from helpers.interrupted import assert_same, die_after_step, outcome
from helpers.samples import settings

SPACES = {
    "classification": LabelSpace("classification", ("a", "b", "c")),
    "ordinal": LabelSpace("ordinal", ("1", "2", "3")),
    "multi_label": LabelSpace("multi_label", ("a", "b", "c")),
    "regression": LabelSpace("regression"),
}
LOGITS = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
SHARES = np.random.default_rng(2).dirichlet(np.ones(3), 5)


def log_sigmoid(value: float) -> float:
    return -math.log1p(math.exp(-value))


@pytest.mark.parametrize("kind", sorted(SPACES))
def test_the_objective_with_soft_targets_is_a_plain_loop(kind: str) -> None:
    labels = {"multi_label": np.eye(3, dtype=int)[[0, 1, 2, 0, 1]], "regression": np.arange(5.0)}
    hard = labels.get(kind, np.array([0, 1, 2, 0, 1]))
    objective = build_objective(SPACES[kind], hard, soft_targets=True)
    logits_BC = LOGITS[:, :1] if kind == "regression" else LOGITS
    targets = (SHARES[:, 0] if kind == "regression" else SHARES).astype(np.float32)
    expected = 0.0
    for row in range(5):
        values = logits_BC[row].tolist()
        if kind == "regression":
            expected += (values[0] - targets[row]) ** 2
        elif kind == "multi_label":
            parts = [t * log_sigmoid(v) + (1 - t) * log_sigmoid(-v) for t, v in zip(targets[row], values, strict=True)]
            expected -= sum(parts) / 3
        else:
            total = math.log(sum(map(math.exp, values)))
            expected -= sum(t * (v - total) for t, v in zip(targets[row], values, strict=True))
    sums = objective.sums(SimpleNamespace(logits=logits_BC, token_logits=None), torch.from_numpy(targets), None)
    assert sums[0].item() == pytest.approx(expected, rel=1e-5)
    assert objective.denominators(targets, 0, 0.0).target == 5.0


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("classification", {"loss": "focal"}),
        ("classification", {"class_weights": "balanced"}),
        ("ordinal", {"loss": "corn"}),
        ("multi_label", {"label_smoothing": 0.1}),
        ("regression", {"loss": "pearson"}),
    ],
)
def test_other_losses_weights_and_smoothing_are_refused(kind: str, options: dict[str, Any]) -> None:
    labels = np.eye(3, dtype=int) if kind == "multi_label" else np.array([0, 1, 2])
    with pytest.raises(ConfigError, match=r"for rows with soft targets, expected loss \S+ \(or auto\) alone"):
        build_objective(SPACES[kind], labels, soft_targets=True, **options)


def soft_data(folder: Path, encoder: Path, targets: np.ndarray | None = None, **changes: Any) -> tuple[Any, TaskData]:
    """Return a configuration and its rows, whose targets are the opposite of their labels by default."""
    config = load_config(overrides=settings(folder, encoder, **changes))
    data = load_data(config.data, seed=1)
    rows = data.splits["train"]
    if targets is None:
        targets = 0.9 - 0.8 * np.eye(2)[rows.labels]
    return config, replace(data, splits={**data.splits, "train": replace(rows, targets=targets)})


def quiet(config: Any, data: TaskData) -> Any:
    return train(config, data=data, display=ProgressDisplay(quiet=True))


def test_a_run_learns_its_soft_targets_and_not_its_labels(tiny, tmp_path):
    config, data = soft_data(tmp_path, tiny("bert"), training__num_train_epochs=12, training__learning_rate=3e-3)
    assert quiet(config, data).scores["validation"]["accuracy"] < 0.5
    rows = data.splits["train"]
    shares = probabilities_of(predict_rows(tmp_path / "run", rows), data.label_space)
    assert np.mean(shares.argmax(axis=1) == rows.labels) < 0.1
    assert np.abs(shares - rows.targets).mean() < 0.1
    assert Predictor.load(tmp_path / "run").label_space == data.label_space


def test_a_resumed_run_with_soft_targets_is_the_same_run(tiny, tmp_path, monkeypatch):
    (tmp_path / "whole").mkdir()
    quiet(*soft_data(tmp_path / "whole", tiny("bert")))
    (tmp_path / "resumed").mkdir()
    config, data = soft_data(tmp_path / "resumed", tiny("bert"))

    die_after_step(monkeypatch, 8, lambda: quiet(config, data))
    again = replace(config, training=replace(config.training, resume=True))
    changed = replace(data.splits["train"], targets=data.splits["train"].targets[:, ::-1])
    with pytest.raises(CheckpointError, match=r"cannot be resumed: the rows \(train\) changed"):
        quiet(again, replace(data, splits={**data.splits, "train": changed}))
    quiet(again, data)
    assert_same(outcome(tmp_path / "resumed" / "run"), outcome(tmp_path / "whole" / "run"))


def test_targets_follow_their_rows_and_change_the_fingerprint():
    rows = TextRows(("1", "2", "3"), ("x", "y", "z"), None, np.array([0, 1, 0]), "here", targets=np.eye(3))
    assert rows.take([2, 0]).targets.tolist() == [[0, 0, 1], [1, 0, 0]]
    assert rows.fingerprint() != replace(rows, targets=None).fingerprint()
    assert rows.fingerprint() != replace(rows, targets=np.eye(3)[::-1]).fingerprint()


@pytest.mark.parametrize(
    "targets", [np.full((48, 3), 1 / 3), np.full((48, 2), 0.4), np.full((48, 2), np.nan), np.tile([1.5, -0.5], (48, 1))]
)
def test_targets_that_are_no_probabilities_are_refused(tiny, tmp_path, targets):
    config, data = soft_data(tmp_path, tiny("bert"), targets)
    with pytest.raises(DataError, match=r"got soft targets of shape \(48, \d\), expected probabilities of shape"):
        quiet(config, data)


def test_extra_files_have_no_soft_targets(tiny, tmp_path):
    config, data = soft_data(tmp_path, tiny("bert"))
    extra = replace(config.data, extra_train_files=(str(tmp_path / "train.csv"),))
    with pytest.raises(DataError, match=r"got soft targets and data\.extra_train_files"):
        quiet(replace(config, data=extra), data)
