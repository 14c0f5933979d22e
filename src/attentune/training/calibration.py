"""Calibrates a finished run on given rows: saves temperature and thresholds, and leaves the weights unchanged."""

import contextlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attentune.config import DataConfig, TrainingConfig
from attentune.data.dataset import CALIBRATION, LabelSpace, TextRows
from attentune.data.splits import stratified_sample
from attentune.errors import CheckpointError, ConfigError, DataError
from attentune.inference.ensemble import EnsembleEvaluator
from attentune.inference.predictor import ModelPredictor, Predictor
from attentune.inference.scoring import Evaluator, ModelEvaluator
from attentune.io.files import MANIFEST, read_json, write_text
from attentune.metrics.calibration import Calibration, error_of, fit, soft_cross_entropy
from attentune.metrics.rejection import (
    ClassMeans,
    Rejection,
    energy,
    energy_weights,
    fit_rejection,
    is_right,
    maximum_probability,
    remove_rejection,
)
from attentune.results import to_json
from attentune.training.card import CARD_FILE, LIMIT_OF_CALIBRATION, LIMIT_OF_REJECTION, NO_REJECTION, plain
from attentune.training.prepare import check_calibration, check_rejection, held_out_splits
from attentune.training.run_folder import locked_folder


def calibrate(
    evaluator: Evaluator, splits: Sequence[str], training: TrainingConfig, *, reuse: bool
) -> Calibration | None:
    """Fit temperature and thresholds on the calibration rows for the evaluator, and measure other splits' error."""
    temperature, thresholds = training.calibrate == "temperature", training.thresholds == "f1"
    rows = evaluator.splits.get(CALIBRATION)
    if not (temperature or thresholds) or rows is None or rows.labels is None:
        return None
    space = evaluator.label_space
    fitted = fit(evaluator.predict(CALIBRATION), rows.labels, space, temperature=temperature, thresholds=thresholds)
    errors: dict[str, tuple[float, float]] = {}
    for split in splits:
        before_NC, labels = evaluator.logits_of(split, reuse=reuse), evaluator.splits[split].labels
        evaluator.logits[split] = before_NC / before_NC.dtype.type(fitted.temperature)
        if labels is not None and len(labels):
            errors[split] = error_of(before_NC, labels, space), error_of(evaluator.logits[split], labels, space)
    evaluator.label_space = fitted.space(space)
    return replace(fitted, errors=errors)


def calibration_sentence(calibration: Calibration | None, evaluator: Evaluator, splits: Sequence[str]) -> str | None:
    """Tell the calibration error of the scored splits; None for scores, which have no probabilities."""
    if calibration is not None or evaluator.label_space.task_type == "regression":
        return None if calibration is None else calibration.sentence()
    errors = [
        f"{split} {error_of(evaluator.logits[split], labels, evaluator.label_space):.4f}"
        for split in splits
        if (labels := evaluator.splits[split].labels) is not None and len(labels)
    ]
    soft = [
        f"{split} {soft_cross_entropy(evaluator.logits[split], targets, evaluator.label_space).mean():.4f}"
        for split in splits
        if (targets := evaluator.splits[split].targets) is not None
    ]
    more = f" Cross-entropy with the soft labels: {', '.join(soft)}." if soft else ""
    return f"Expected calibration error: {', '.join(errors)}.{more}" if errors else None


CALIBRATION_FILE = "calibration.json"


@dataclass(frozen=True)
class Recalibration:
    calibration: Calibration  # the fitted temperature and thresholds
    label_space: LabelSpace  # the run's, with the new thresholds
    before: Mapping[str, Any]  # the temperature and thresholds that the run had
    data_fingerprint: Mapping[str, str]  # the SHA-256 of each split that it was fitted on
    ends_rejection: bool = False  # whether texts were rejected by a score that changes with the temperature

    def facts(self) -> dict[str, Any]:
        """Return the content of `calibration.json`."""
        facts = self.calibration.facts(self.label_space)
        return {**facts, "before": dict(self.before), "data_fingerprint": dict(self.data_fingerprint)}

    def sentence(self) -> str:
        text = "Probabilities are those of the model, not calibrated."
        text = self.calibration.sentence() if self.calibration.rows else text
        return f"{text} No text is rejected any more; choose a threshold anew: --reject." * self.ends_rejection or text


def calibrate_run(
    run: str | Path,
    data: DataConfig | None = None,
    *,
    temperature: bool = True,
    thresholds: bool = False,
    split: str = "validation",
    precision: str | None = None,
) -> Recalibration:
    """Fit temperature or thresholds on rows not trained on, and save them in the run's folder; neither removes both."""
    saved = Predictor.load(run).single_model("calibrate")
    _check_folder(saved, split)
    check_calibration(
        saved.label_space,
        calibrate="temperature" if temperature else "none",
        thresholds="f1" if thresholds else "none",
    )
    config, space = saved.model.config, replace(saved.label_space, thresholds=None)
    before = {"temperature": config.calibration_temperature, "thresholds": config.thresholds}
    calibration, prints = Calibration(0), {}
    config.update(calibration.settings())  # the logits to fit on are those without temperature
    if temperature or thresholds:
        rows = saved.data(data, (split,))
        labelled = {name: part.labels for name, part in rows.splits.items() if part.labels is not None and len(part)}
        if not labelled:
            raise DataError(f"{rows.name}: {split} has no labelled rows to calibrate on.")
        evaluator = replace(saved, label_space=space).evaluator(rows, precision=precision)
        logits_NC = np.concatenate([evaluator.predict(name) for name in labelled])
        labels = np.concatenate(list(labelled.values()))
        calibration = fit(logits_NC, labels, space, temperature=temperature, thresholds=thresholds)
        was, now = (error_of(logits_NC / t, labels, space) for t in (before["temperature"], calibration.temperature))
        calibration = replace(calibration, errors={"these rows": (was, now)})
        prints = {name: rows.fingerprint()[name] for name in labelled}
        config.update(calibration.settings())
    ends_rejection = saved.rejection is not None and saved.rejection.means is None
    space = calibration.space(saved.label_space)
    done = Recalibration(calibration, space, before, prints, ends_rejection)
    # Card and record first and `config.json` last, so that readers see the old or the new calibration.
    with locked_folder(saved.folder):
        settings = {**read_json(saved.folder / "config.json"), **calibration.settings()}
        sentence = plain(done.sentence())
        if calibration.rows:
            sentence += (
                " This was fitted after the run: the scores above are of before, and the error of the same rows."
            )
        _change_card(saved.folder, LIMIT_OF_CALIBRATION, sentence)
        if ends_rejection:
            _remove_rejection(saved.folder)
        write_text(saved.folder / CALIBRATION_FILE, to_json(done.facts()))
        write_text(saved.folder / "config.json", json.dumps(settings, indent=2, sort_keys=True) + "\n")
    return done


# Training rows that class means are fitted on.
_MEANS_ROWS = 20_000


def rejection_of(evaluator: Evaluator, splits: Sequence[str], share: float, *, outside: str | None = None) -> Rejection:
    """Fit on labelled held-out splits which texts are rejected; `outside`, texts of no class, may choose the score."""
    means = None
    evaluator = replace(evaluator, logits={}, vectors={}, rejection=None)
    if isinstance(evaluator, ModelEvaluator):
        train = evaluator.splits.get("train")
        if train is not None and train.labels is not None:
            rows = np.arange(len(train))
            if len(rows) > _MEANS_ROWS:
                rows = stratified_sample(train.labels, _MEANS_ROWS, "class means", 0)
            means = ClassMeans.fit(evaluator.vectors_of("train", rows), train.labels[rows])
        evaluator = replace(evaluator, keep_vectors=means is not None)

    for name in (*splits, *(() if outside is None else (outside,))):
        evaluator.predict(name)

    def vectors(names: Sequence[str]) -> np.ndarray:
        return np.concatenate([evaluator.vectors[name] for name in names])

    space, weights = evaluator.label_space, None
    if isinstance(evaluator, EnsembleEvaluator):
        weights = energy_weights(vectors(splits), tuple(evaluator.ensemble.fusion.member_weights().values()))

    def scores(names: Sequence[str]) -> dict[str, np.ndarray]:
        logits_NC = np.concatenate([evaluator.logits[name] for name in names])
        energies_N = energy(logits_NC) if weights is None else vectors(names) @ np.array(weights)
        found = {"energy": energies_N, "probability": maximum_probability(logits_NC, space)}
        return found if means is None else {"distance": means.scores(vectors(names)), **found}

    known = scores(splits)
    right = [is_right(evaluator.logits[name], np.asarray(evaluator.splits[name].labels), space) for name in splits]
    unknown = None if outside is None else scores((outside,))
    return fit_rejection(known, np.concatenate(right), share, unknown, means, weights)


def fit_on_held_out(evaluator: Evaluator, share: float | None) -> tuple[Rejection | None, str | None]:
    """Return the rejection of a run that ends, if a share is wanted, and a note on it."""
    if share is None:
        return None, None
    try:
        fitted = rejection_of(evaluator, held_out_splits(evaluator.splits), share)
    except DataError as error:
        return None, f"No text is rejected: {error}"
    return fitted, fitted.sentence()


def reject_run(
    run: str | Path | Predictor,
    share: float,
    data: DataConfig | None = None,
    *,
    outside: TextRows | None = None,
    split: str = "validation",
    precision: str | None = None,
) -> Rejection:
    """Choose below which score, by `outside` if given, a run rejects texts as of no class; save it in its folder."""
    saved = run if isinstance(run, Predictor) else Predictor.load(run)
    _check_folder(saved, split)
    check_rejection(saved.label_space, share)
    rows = saved.data(data, (split,))
    splits = {name: part for name, part in rows.splits.items() if part.labels is not None and len(part)}
    if not (held_out := tuple(splits)):
        raise DataError(f"{rows.name}: {split} has no labelled rows, which tell how many right predictions are lost.")
    if isinstance(saved, ModelPredictor):  # others have no distances
        with contextlib.suppress(DataError, ConfigError, OSError):  # the rows may be gone; the sentence names a score
            splits |= saved.data(None, ("train",)).splits
    if outside is not None:
        splits["out of scope"] = outside
    evaluator = saved.evaluator(replace(rows, splits=splits), precision=precision)
    fitted = rejection_of(evaluator, held_out, share, outside=None if outside is None else "out of scope")
    with locked_folder(saved.folder):
        fitted.save(saved.folder)
        _change_card(saved.folder, LIMIT_OF_REJECTION, plain(fitted.sentence()))
    return fitted


def end_rejection(run: str | Path) -> None:
    saved = Predictor.load(run)
    _check_folder(saved, "validation")
    with locked_folder(saved.folder):
        _remove_rejection(saved.folder)


def _remove_rejection(folder: Path) -> None:
    remove_rejection(folder)
    _change_card(folder, LIMIT_OF_REJECTION, NO_REJECTION)


def _check_folder(saved: Predictor, split: str) -> None:
    if split.split("_")[0] not in ("validation", "test"):
        raise ConfigError(f"--split: got {split!r}, expected validation or test: rows that training has not seen.")
    if (saved.folder / MANIFEST).is_file():
        raise CheckpointError(
            f"{saved.folder}: is a checkpoint, which stays as it was written. Calibrate the folder of its finished run."
        )


def _change_card(folder: Path, pattern: str, sentence: str) -> None:
    """Replace a line of the model card, if there is a card."""
    if (card := folder / CARD_FILE).is_file():
        text = card.read_text(encoding="utf-8")
        write_text(card, re.sub(pattern, lambda _: f"- {sentence}", text, count=1, flags=re.MULTILINE))
