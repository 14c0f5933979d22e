"""Distillation: one encoder that learns what an ensemble predicts, for use where only a single model fits.

The encoder starts from the pre-trained weights, with the settings of the ensemble's best neural member, and learns soft
targets: a mix of each row's label and of what the members predicted for it out of fold, that is, without having seen
it. Unlabelled rows have the ensemble's predictions as targets. The ensemble's decision thresholds hold for the encoder.

Source: Hinton, Vinyals and Dean 2015, with temperature 1.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attentune.automl.folds import make_folds
from attentune.automl.fusion import calibrated_losses
from attentune.config import Config, ObjectiveConfig
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.errors import ConfigError, DataError
from attentune.inference.ensemble import EnsemblePredictor
from attentune.inference.predictor import ModelPredictor, Predictor, predict_rows
from attentune.io.files import read_json, write_text
from attentune.metrics.metrics import choose_metric, predictions_of, probabilities_of, score_predictions
from attentune.results import RESULT_FILE, RunResult
from attentune.training.callbacks import TrainingCallback
from attentune.training.progress import ProgressDisplay
from attentune.training.state import TrainingState
from attentune.training.train import train

# The run that is trained without a fold, to estimate what distillation costs.
ESTIMATE_FOLDER = "estimate"
_FOLDS = 5
# A run takes up to this much longer than a fold with as many updates, as it reads all rows.
TIME_MARGIN = 1.25
# Rows that both models predict, to compare their speed.
_TIMED_ROWS = 200
# Training settings that are the caller's; all others are those of the best neural member.
_CALLERS = ("overwrite_output_dir", "resume", "seed", "precision", "use_cpu", "report_to", "logging_steps")


@dataclass(frozen=True)
class Comparison:
    """What a distilled model costs and saves, next to its ensemble."""

    metric: str  # the first metric of the task
    # ensemble, single: the scores of both on the same rows, which neither was trained on.
    ensemble: float
    single: float
    rows: int  # the number of these rows
    estimate: str  # what the rows are: "held-out rows" of the validation or test split, or "out of fold"
    # ensemble_seconds, single_seconds: the time that each takes to predict `timed_rows` rows.
    ensemble_seconds: float
    single_seconds: float
    timed_rows: int
    # alternative, alternative_score: what was scored on the same rows, if anything; see `Alternative`.
    alternative: str | None = None
    alternative_score: float | None = None
    alternative_is_better: bool | None = None  # whether its loss there is below that of the distilled model

    def sentence(self) -> str:
        """Describe the comparison."""
        faster = self.ensemble_seconds / max(self.single_seconds, 1e-9)
        return (
            f"Distilled from an ensemble: {self.metric} {self.single:.4f}, the ensemble {self.ensemble:.4f} on"
            f" {self.rows:,} {_ROWS[self.estimate]}; predicting is {faster:.1f} times as fast ({self.timed_rows} rows"
            f" in {self.single_seconds:.3g} s, the ensemble {self.ensemble_seconds:.3g} s)."
        )


@dataclass(frozen=True)
class Alternative:
    """What could be delivered in the place of a distilled encoder."""

    name: str  # as it is called in sentences
    logits: np.ndarray  # (N, C) its out-of-fold logits of the rows of train
    label_space: LabelSpace  # the labels, with its decision thresholds


class OutOfTime(Exception):
    """The time for distillation was up before the encoder was trained."""


class _TimeLimitCallback(TrainingCallback):
    """Ends training when no time is left."""

    def __init__(self, left_s: Callable[[], float]) -> None:
        self._left_s = left_s

    def on_step_end(self, state: TrainingState, logs: Mapping[str, float]) -> None:
        if self._left_s() <= 0:
            raise OutOfTime


_ROWS = {
    "held-out rows": "held-out rows",
    "out of fold": (
        "training rows of one fold, which a model distilled from the other folds did not see; their labels reached it"
        " only through what the members predict for other rows"
    ),
}


def distill(
    folder: str | Path,
    data: TaskData,
    config: Config,
    *,
    out_of_fold: np.ndarray,
    unlabeled: TextRows | None = None,
    output_dir: str | Path,
    folds: np.ndarray | None = None,
    alternative: Alternative | None = None,
    label_share: float = 0.5,
    max_steps: int | None = None,
    left_s: Callable[[], float] | None = None,
    display: ProgressDisplay | None = None,
) -> RunResult:
    """Train one encoder on the soft targets of an ensemble, and compare the two.

    The comparison uses validation or test rows with labels, if `data` has some: they choose nothing here. Without them
    the encoder is also trained without one fold, which costs its training time a second time, and that model and the
    ensemble's out-of-fold predictions are scored on the fold.
    """
    if not 0 <= label_share <= 1:
        raise ConfigError(f"label_share: got {label_share}, expected a number from 0 to 1.")
    teacher, rows = Predictor.load(folder), _training_rows(data, out_of_fold)
    student = student_config(teacher, config, Path(output_dir))
    if max_steps is not None:
        student = replace(student, training=replace(student.training, max_steps=max_steps))
    callbacks = [] if left_s is None else [_TimeLimitCallback(left_s)]
    soft = replace(rows, targets=soft_targets(rows, out_of_fold, data.label_space, label_share=label_share))
    if unlabeled is not None and len(unlabeled):
        soft = _with_unlabeled(soft, unlabeled, teacher)
    everything = replace(data, splits={**data.splits, "train": soft})
    result = train(student, data=everything, display=display, callbacks=callbacks, with_baselines=False)
    single = _with_thresholds(Path(output_dir), teacher.label_space)
    held_out = _held_out(data)
    if held_out is not None:
        score = _score_held_out(teacher, single, data, held_out)
    else:
        if folds is None:
            folds = make_folds(rows, data.label_space, folds=_FOLDS, seed=config.training.seed)
        with_thresholds = replace(data, label_space=teacher.label_space)
        try:
            score = _score_without_a_fold(
                student, with_thresholds, soft, out_of_fold, folds, alternative, display, callbacks
            )
        except OutOfTime:
            note = "Distilled from an ensemble; no time was left to compare the two."
            return _with_note(result, note, Path(output_dir))
    timed = rows.take(range(min(len(rows), _TIMED_ROWS)))
    comparison = Comparison(
        **score,
        ensemble_seconds=_seconds(teacher, timed),
        single_seconds=_seconds(single, timed),
        timed_rows=len(timed),
    )
    facts = {**vars(comparison), "label_share": label_share, "unlabeled_rows": len(soft) - len(rows)}
    result = replace(result, train={**result.train, "distillation": facts})
    return _with_note(result, comparison.sentence(), Path(output_dir))


def _with_note(result: RunResult, note: str, folder: Path) -> RunResult:
    """Add the note on distillation to a run's record, in place of an earlier one, and save it."""
    others = [one for one in result.notes if not one.startswith("Distilled from")]
    result = replace(result, notes=[*others, note])
    write_text(folder / RESULT_FILE, result.to_json())
    return result


def _training_rows(data: TaskData, out_of_fold: np.ndarray) -> TextRows:
    rows = data.splits.get("train")
    if rows is None or rows.labels is None:
        raise DataError(f"{data.name}: has no labelled rows to train on, expected a train split.")
    expected = (len(rows), data.label_space.num_labels)
    if out_of_fold.shape != expected:
        raise DataError(
            f"{rows.source}: got out-of-fold logits of shape {out_of_fold.shape}, expected {expected}: one row for each"
            " training row, in the same order."
        )
    return rows


def soft_targets(rows: TextRows, out_of_fold: np.ndarray, space: LabelSpace, *, label_share: float) -> np.ndarray:
    """Return the (N, C) targets of labelled rows: a mix of the label and the out-of-fold prediction."""
    labels = np.asarray(rows.labels)
    if space.task_type == "regression":
        hard_NC = labels[:, None].astype(np.float64)
    else:
        hard_NC = labels.astype(np.float64) if space.is_multilabel else np.eye(space.num_labels)[labels]
    is_known_N = np.isfinite(out_of_fold).all(axis=1)
    targets_NC = hard_NC.copy()
    predicted_NC = predicted_targets(out_of_fold[is_known_N], space)
    targets_NC[is_known_N] = label_share * hard_NC[is_known_N] + (1 - label_share) * predicted_NC
    return targets_NC


def predicted_targets(logits_NC: np.ndarray, space: LabelSpace) -> np.ndarray:
    """Return the (N, C) probabilities of logits, or their scores for regression."""
    values_NC = np.asarray(logits_NC, dtype=np.float64)
    return values_NC if space.task_type == "regression" else probabilities_of(values_NC, space)


def _with_unlabeled(rows: TextRows, unlabeled: TextRows, teacher: Predictor) -> TextRows:
    """Append unlabelled rows with the teacher's predictions as labels and targets; rows of train are left out."""
    if (unlabeled.pairs is None) != (rows.pairs is None):
        kinds = ("single texts", "pairs of texts")
        raise DataError(
            f"{unlabeled.source}: got {kinds[unlabeled.pairs is not None]}, but the training rows are"
            f" {kinds[rows.pairs is not None]}; expected rows of that kind."
        )
    known = set(zip(rows.texts, rows.pairs or rows.texts, strict=True))
    texts = zip(unlabeled.texts, unlabeled.pairs or unlabeled.texts, strict=True)
    added = unlabeled.take([place for place, text in enumerate(texts) if text not in known])
    if not len(added):
        return rows
    space = teacher.label_space
    logits_NC = predict_rows(teacher, added)
    assert rows.labels is not None
    assert rows.targets is not None
    return TextRows(
        ids=(*rows.ids, *(f"unlabeled-{name}" for name in added.ids)),
        texts=(*rows.texts, *added.texts),
        pairs=None if rows.pairs is None else (*rows.pairs, *(added.pairs or ())),
        labels=np.concatenate([rows.labels, predictions_of(logits_NC, space).astype(rows.labels.dtype)]),
        source=rows.source,
        weights=None if rows.weights is None else np.concatenate([rows.weights, np.ones(len(added))]),
        sources=(*(rows.sources or (rows.source,) * len(rows)), *((added.source,) * len(added))),
        targets=np.concatenate([rows.targets, predicted_targets(logits_NC, space)]),
    )


def student_config(teacher: Predictor, config: Config, output_dir: Path) -> Config:
    """Return the configuration of the distilled model.

    Model, token labels and training are as of the teacher's neural member with the largest weight. The objective is
    the task's plain loss, since the targets already say how sure to be of a class.
    """
    best = _best_model(teacher)
    base = config if best is None else best.config
    kept = {name: getattr(config.training, name) for name in _CALLERS}
    training = replace(base.training, **kept)
    training = replace(
        training,
        output_dir=str(output_dir),
        # The rows that compare the two models must not choose between weights.
        eval_strategy="no",
        eval_steps=None,
        load_best_model_at_end=False,
        early_stopping_patience=None,
        metric_for_best_model=config.training.metric_for_best_model,
        calibrate="none",
        thresholds="none",
    )
    plain = ObjectiveConfig()
    objective = replace(
        base.objective,
        loss=plain.loss,
        class_weights=None,
        label_smoothing=0.0,
        ordinal_prediction=teacher.label_space.ordinal_prediction,
    )
    data = replace(
        config.data,
        max_length=base.data.max_length,
        long_texts=base.data.long_texts,
        stride=base.data.stride,
        extra_train_files=None,
        extra_train_weights=None,
        calibration_share=None,
        calibration_file=None,
    )
    return replace(base, data=data, objective=objective, training=training)


def _best_model(teacher: Predictor) -> ModelPredictor | None:
    """Return the teacher's model with the largest weight, if it has models."""
    if not isinstance(teacher, EnsemblePredictor):
        return teacher if isinstance(teacher, ModelPredictor) else None
    # Of a bag, whose runs have equal settings, the first.
    best: tuple[float, ModelPredictor] | None = None
    weights = teacher.fusion.member_weights()
    for member in teacher.members:
        run = teacher.loaded.load(member.folders[0])
        if isinstance(run, ModelPredictor) and (best is None or weights[member.name] > best[0]):
            best = weights[member.name], run
    return None if best is None else best[1]


def _held_out(data: TaskData) -> str | None:
    """Return the first split but train that has labels."""
    for name, rows in data.splits.items():
        if name != "train" and rows.labels is not None and len(rows):
            return name
    return None


def training_runs(data: TaskData) -> int:
    """Return how many runs `distill` trains: one, and another one to compare where no other rows are scored."""
    return 1 if _held_out(data) is not None else 2


def _score_held_out(teacher: Predictor, single: Predictor, data: TaskData, split: str) -> dict[str, Any]:
    """Score both on a split."""
    rows = data.splits[split]
    metric = choose_metric(single.config.training.metric_for_best_model, data.metrics, data.label_space).name

    def score(run: Predictor) -> float:
        return score_predictions([metric], np.asarray(rows.labels), predict_rows(run, rows), run.label_space)[metric]

    return {
        "metric": metric,
        "ensemble": score(teacher),
        "single": score(single),
        "rows": len(rows),
        "estimate": "held-out rows",
    }


def _score_without_a_fold(
    student: Config,
    data: TaskData,
    soft: TextRows,
    out_of_fold: np.ndarray,
    folds_N: np.ndarray,
    alternative: Alternative | None,
    display: ProgressDisplay | None,
    callbacks: Sequence[TrainingCallback],
) -> dict[str, Any]:
    """Train without one fold of the labelled rows; score that model and out-of-fold predictions of the others on it.

    Unlabelled rows are kept.
    """
    rows, space = data.splits["train"], data.label_space
    in_fold_N = folds_N == folds_N[folds_N >= 0].min()
    scored = np.flatnonzero(in_fold_N & np.isfinite(out_of_fold).all(axis=1))
    kept = np.setdiff1d(np.arange(len(soft)), np.flatnonzero(in_fold_N))
    place = Path(str(student.training.output_dir)) / ESTIMATE_FOLDER
    config = replace(student, training=replace(student.training, output_dir=str(place)))
    plain = replace(space, thresholds=None)
    without = TaskData(data.name, plain, data.metrics, {"train": soft.take(kept)})
    train(config, data=without, display=display, callbacks=callbacks, with_baselines=False)
    metric = choose_metric(student.training.metric_for_best_model, data.metrics, space)
    fold = replace(rows.take(scored), labels=None)
    labels = np.asarray(rows.labels)[scored]
    single = _with_thresholds(place, space)
    single_logits_MC = predict_rows(single, fold)
    score: dict[str, Any] = {
        "metric": metric.name,
        "ensemble": score_predictions([metric.name], labels, out_of_fold[scored], space)[metric.name],
        "single": score_predictions([metric.name], labels, single_logits_MC, single.label_space)[metric.name],
        "rows": len(scored),
        "estimate": "out of fold",
    }
    if alternative is not None:
        logits_MC = alternative.logits[scored]
        losses = [calibrated_losses(one_MC, labels, plain).mean() for one_MC in (single_logits_MC, logits_MC)]
        score |= {
            "alternative": alternative.name,
            "alternative_score": score_predictions([metric.name], labels, logits_MC, alternative.label_space)[
                metric.name
            ],
            "alternative_is_better": bool(losses[1] < losses[0]),
        }
    return score


def _with_thresholds(folder: Path, space: LabelSpace) -> Predictor:
    """Give a distilled model the decision thresholds of its ensemble, whose probabilities it has learned; load it."""
    if space.thresholds is not None:
        content = read_json(folder / "config.json") | {"thresholds": list(space.thresholds)}
        write_text(folder / "config.json", json.dumps(content, indent=2, sort_keys=True) + "\n")
    return Predictor.load(folder)


def _seconds(run: Predictor, rows: TextRows) -> float:
    """Time the prediction of rows by a run whose models are in memory."""
    predict_rows(run, rows.take(range(min(len(rows), 1))))
    began = time.perf_counter()
    predict_rows(run, rows)
    return time.perf_counter() - began
