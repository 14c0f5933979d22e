"""Distillation: one encoder that learns what an ensemble predicts, for use where only a single model fits.

The encoder starts from the pre-trained weights, with the settings of the ensemble's best neural member, and learns soft
targets: a mix of each row's label and of what the members predicted for it out of fold, that is, without having seen
it. Unlabelled rows have the ensemble's predictions as targets. The ensemble's decision thresholds hold for the encoder.

Source: Hinton, Vinyals and Dean 2015, with temperature 1.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from attentune.config import Config, ObjectiveConfig
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.inference.ensemble import EnsemblePredictor
from attentune.inference.predictor import ModelPredictor, Predictor, predict_rows
from attentune.io.files import read_json, write_text
from attentune.metrics.metrics import choose_metric, predictions_of, probabilities_of, score_predictions
from attentune.results import RESULT_FILE, RunResult
from attentune.training.callbacks import ProgressDisplay, TrainingCallback, TrainingState
from attentune.training.run import train

# The run that is trained without a fold, to estimate what distillation costs.
ESTIMATE_FOLDER = "estimate"
# A run takes up to this much longer than a fold with as many updates, as it reads all rows.
TIME_MARGIN = 1.25
# The share of the label in the target of a labelled row; the rest is the ensemble's out-of-fold prediction.
_LABEL_SHARE = 0.5
# Training settings that are the caller's; all others are those of the best neural member.
_CALLERS = (
    *("output_dir", "overwrite_output_dir", "resume", "seed", "precision", "use_cpu"),
    *("report_to", "logging_steps", "metric_for_best_model"),
)
_FOLD = (
    "training rows of one fold, which a model distilled from the other folds did not see; their labels reached it only"
    " through what the members predict for other rows"
)


class OutOfTime(Exception):
    """The time for distillation was up before the encoder was trained."""


class _TimeLimitCallback(TrainingCallback):
    def __init__(self, left_s: Callable[[], float]) -> None:
        self._left_s = left_s

    def on_step_end(self, state: TrainingState, logs: Mapping[str, float]) -> None:
        if self._left_s() <= 0:
            raise OutOfTime


@dataclass(frozen=True, kw_only=True)
class Distillation:
    """Targets of the student, and its comparison with the ensemble."""

    teacher: Predictor  # the ensemble
    data: TaskData  # validation rows with labels, if there are any, compare the two and the rivals
    config: Config  # the settings of the caller; its `training.output_dir` is the folder of the encoder
    out_of_fold: np.ndarray  # (N, C) the ensemble's out-of-fold logits of the training rows
    folds: np.ndarray  # (N,) their folds, from 0
    rivals: Mapping[str, tuple[Path, np.ndarray]] = field(default_factory=dict)  # run folders, out-of-fold logits
    unlabeled: TextRows | None = None  # further texts, whose targets are the ensemble's predictions
    max_steps: int | None = None  # the updates, if not those of the best neural member
    left_s: Callable[[], float] | None = None  # returns the seconds that are left

    def run(self) -> RunResult:
        """Train one encoder on soft targets; compare it with the ensemble, without other rows by a second run."""
        rows, folder = self.data.splits["train"], Path(str(self.config.training.output_dir))
        student = student_config(self.teacher, self.config)
        if self.max_steps is not None:
            student = replace(student, training=replace(student.training, max_steps=self.max_steps))
        soft = replace(rows, targets=soft_targets(rows, self.out_of_fold, self.data.label_space))
        if self.unlabeled is not None and len(self.unlabeled):
            soft = _with_unlabeled(soft, self.unlabeled, self.teacher)
        result = self._train(student, folder, replace(self.data, splits={**self.data.splits, "train": soft}))
        single, split = _with_thresholds(folder, self.teacher.label_space), _held_out(self.data)
        try:
            facts = self._score_without_a_fold(student, folder, soft) if split is None else self._score(single, split)
        except OutOfTime:
            facts, note = {}, "Distilled from an ensemble; no time was left to compare the two."
        else:
            facts |= {"label_share": _LABEL_SHARE, "unlabeled_rows": len(soft) - len(rows)}
            note = (
                f"Distilled from an ensemble: {facts['metric']} {facts['single']:.4f}, the ensemble"
                f" {facts['ensemble']:.4f} on {facts['rows']:,} {facts['scored']}."
            )
        train = {**result.train, "distillation": facts} if facts else result.train
        result = replace(result, train=train, notes=[*result.notes, note])
        write_text(folder / RESULT_FILE, result.to_json())
        return result

    def _train(self, config: Config, folder: Path, data: TaskData) -> RunResult:
        callbacks = [] if self.left_s is None else [_TimeLimitCallback(self.left_s)]
        config = replace(config, training=replace(config.training, output_dir=str(folder)))
        return train(config, data=data, display=ProgressDisplay(quiet=True), callbacks=callbacks, with_baselines=False)

    def _scores(self, labels: np.ndarray, **given: tuple[np.ndarray, LabelSpace]) -> dict[str, Any]:
        """Return the scores of logits, each with its label space, on the metric that decides."""
        wanted = self.config.training.metric_for_best_model
        metric = choose_metric(wanted, self.data.metrics, self.data.label_space).name
        scores = {name: score_predictions([metric], labels, *logits)[metric] for name, logits in given.items()}
        rivals = {name: scores.pop(name) for name in self.rivals}
        return {"metric": metric, **scores, "rows": len(labels), **({"rivals": rivals} if rivals else {})}

    def _score(self, single: Predictor, split: str) -> dict[str, Any]:
        rows, runs = self.data.splits[split], {"ensemble": self.teacher, "single": single}
        runs |= {name: Predictor.load(folder) for name, (folder, _) in self.rivals.items()}
        logits = {name: (predict_rows(run, rows), run.label_space) for name, run in runs.items()}
        return {**self._scores(np.asarray(rows.labels), **logits), "scored": "held-out rows"}

    def _score_without_a_fold(self, student: Config, folder: Path, soft: TextRows) -> dict[str, Any]:
        """Train without one fold of the labelled rows; score that model and out-of-fold predictions on it."""
        space, plain = self.teacher.label_space, replace(self.data.label_space, thresholds=None)
        in_fold_N = self.folds == self.folds[self.folds >= 0].min()
        scored = np.flatnonzero(in_fold_N & np.isfinite(self.out_of_fold).all(axis=1))
        kept = np.setdiff1d(np.arange(len(soft)), np.flatnonzero(in_fold_N))  # unlabelled rows too
        folder = folder / ESTIMATE_FOLDER
        self._train(student, folder, TaskData(self.data.name, plain, self.data.metrics, {"train": soft.take(kept)}))
        single, rows = _with_thresholds(folder, space), self.data.splits["train"].take(scored)
        labels, single_MC = np.asarray(rows.labels), predict_rows(single, replace(rows, labels=None))
        logits = {"ensemble": (self.out_of_fold[scored], space), "single": (single_MC, single.label_space)}
        logits |= {name: (out_of_fold_NC[scored], plain) for name, (_, out_of_fold_NC) in self.rivals.items()}
        return {**self._scores(labels, **logits), "scored": _FOLD}


def soft_targets(rows: TextRows, out_of_fold: np.ndarray, space: LabelSpace) -> np.ndarray:
    """Return the (N, C) targets of labelled rows: a mix of the label and the out-of-fold prediction."""
    labels = np.asarray(rows.labels)
    if space.task_type == "regression":
        hard_NC = labels[:, None].astype(np.float64)
    else:
        hard_NC = labels.astype(np.float64) if space.is_multilabel else np.eye(space.num_labels)[labels]
    is_known_N = np.isfinite(out_of_fold).all(axis=1)
    targets_NC = hard_NC.copy()
    predicted_NC = predicted_targets(out_of_fold[is_known_N], space)
    targets_NC[is_known_N] = _LABEL_SHARE * hard_NC[is_known_N] + (1 - _LABEL_SHARE) * predicted_NC
    return targets_NC


def predicted_targets(logits_NC: np.ndarray, space: LabelSpace) -> np.ndarray:
    """Return the (N, C) probabilities of logits, or their scores for regression."""
    values_NC = np.asarray(logits_NC, dtype=np.float64)
    return values_NC if space.task_type == "regression" else probabilities_of(values_NC, space)


def _with_unlabeled(rows: TextRows, unlabeled: TextRows, teacher: Predictor) -> TextRows:
    """Append unlabelled rows with the teacher's predictions as labels and targets; rows of train are left out."""
    known = set(zip(rows.texts, rows.pairs or rows.texts, strict=True))
    texts = zip(unlabeled.texts, unlabeled.pairs or unlabeled.texts, strict=True)
    added = unlabeled.take([place for place, text in enumerate(texts) if text not in known])
    if not len(added):
        return rows
    space = teacher.label_space
    logits_NC = predict_rows(teacher, added)
    assert rows.labels is not None
    return rows.joined(
        replace(
            added,
            ids=tuple(f"unlabeled-{name}" for name in added.ids),
            labels=predictions_of(logits_NC, space).astype(rows.labels.dtype),
            targets=predicted_targets(logits_NC, space),
        )
    )


def student_config(teacher: Predictor, config: Config) -> Config:
    """Return the configuration of the distilled model.

    Model, token labels and training are as of the teacher's neural member with the largest weight. The objective is
    the task's plain loss, since the targets already say how sure to be of a class.
    """
    best = _best_model(teacher)
    base = config if best is None else best.config
    training = replace(
        base.training,
        **{name: getattr(config.training, name) for name in _CALLERS},
        # The rows that compare the two models must not choose between weights.
        eval_strategy="no",
        eval_steps=None,
        load_best_model_at_end=False,
        early_stopping_patience=None,
        calibrate="none",
        thresholds="none",
    )
    objective = replace(
        base.objective,
        loss=ObjectiveConfig().loss,
        class_weights=None,
        label_smoothing=0.0,
        debias="none",
        ordinal_prediction=teacher.label_space.ordinal_prediction,
    )
    read = {name: getattr(base.data, name) for name in ("max_length", "long_texts", "stride")}
    data = replace(config.data, **read)
    return replace(base, data=data, objective=objective, training=training)


def _best_model(teacher: Predictor) -> ModelPredictor | None:
    """Return the teacher's model with the largest weight, if it has models."""
    assert isinstance(teacher, EnsemblePredictor)
    weights = teacher.fusion.member_weights()
    for name in sorted(teacher.members, key=lambda name: -weights[name]):
        run = teacher.loaded.load(teacher.members[name][0])  # those of a bag have equal settings
        if isinstance(run, ModelPredictor):
            return run
    return None


def _held_out(data: TaskData) -> str | None:
    """Return the first validation split that has labels."""
    splits = ((name, rows) for name, rows in data.splits.items() if name.startswith("validation"))
    return next((name for name, rows in splits if rows.labels is not None and len(rows)), None)


def training_runs(data: TaskData) -> int:
    """Return how many runs distillation trains: one, and another one to compare where no other rows are scored."""
    return 1 if _held_out(data) is not None else 2


def _with_thresholds(folder: Path, space: LabelSpace) -> Predictor:
    """Give a distilled model the decision thresholds of its ensemble, whose probabilities it has learned; load it."""
    if space.thresholds is not None:
        content = read_json(folder / "config.json") | {"thresholds": list(space.thresholds)}
        write_text(folder / "config.json", json.dumps(content, indent=2, sort_keys=True) + "\n")
    return Predictor.load(folder)
