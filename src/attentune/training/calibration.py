"""Calibrates a finished run on given rows: saves temperature and thresholds, and leaves the weights unchanged."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attentune.config import DataConfig, TrainingConfig
from attentune.data.dataset import CALIBRATION, LabelSpace
from attentune.errors import CheckpointError, ConfigError, DataError
from attentune.inference.predictor import Predictor
from attentune.inference.scoring import Evaluator
from attentune.io.files import MANIFEST, read_json, write_text
from attentune.metrics.calibration import Calibration, error_of, fit, soft_cross_entropy
from attentune.results import to_json
from attentune.training.card import CARD_FILE, LIMIT_OF_CALIBRATION, plain
from attentune.training.prepare import check_calibration
from attentune.training.run_folder import locked_folder


def calibrate(
    evaluator: Evaluator, splits: Sequence[str], training: TrainingConfig, *, reuse: bool
) -> Calibration | None:
    """Fit temperature and thresholds on the calibration rows, and measure the calibration error of other splits.

    The evaluator then has the calibrated logits of these splits, and predicts by the thresholds.
    """
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
    """The calibration of a finished run."""

    folder: Path  # the run folder
    calibration: Calibration  # the fitted temperature and thresholds
    label_space: LabelSpace  # the run's, with the new thresholds
    before: Mapping[str, Any]  # the temperature and thresholds that the run had
    data_fingerprint: Mapping[str, str]  # the SHA-256 of each split that it was fitted on

    def facts(self) -> dict[str, Any]:
        """Return the content of `calibration.json`."""
        facts = self.calibration.facts(self.label_space)
        return {**facts, "before": dict(self.before), "data_fingerprint": dict(self.data_fingerprint)}

    def sentence(self) -> str:
        """Return a sentence for the user and the model card."""
        if not self.calibration.rows:
            return "Probabilities are those of the model, not calibrated."
        return self.calibration.sentence()


def calibrate_run(
    run: str | Path | Predictor,
    data: DataConfig | None = None,
    *,
    temperature: bool = True,
    thresholds: bool = False,
    split: str = "validation",
    precision: str | None = None,
) -> Recalibration:
    """Fit temperature or thresholds on labelled rows that the run was not trained on, and save them in its folder.

    Earlier ones are replaced; with neither option they are removed. Weights, scores and predictions are unchanged.
    """
    loaded = run if isinstance(run, Predictor) else Predictor.load(run, None if data is None else data.task)
    saved = loaded.single_model("calibrate")
    _check(saved, temperature, thresholds, split)
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
    done = Recalibration(saved.folder, calibration, calibration.space(saved.label_space), before, prints)
    _write(done)
    return done


def _check(saved: Predictor, temperature: bool, thresholds: bool, split: str) -> None:
    if split.split("_")[0] not in ("validation", "test"):
        raise ConfigError(f"--split: got {split!r}, expected validation or test: rows that training has not seen.")
    if (saved.folder / MANIFEST).is_file():
        raise CheckpointError(
            f"{saved.folder}: is a checkpoint, which stays as it was written. Calibrate the folder of its finished run."
        )
    check_calibration(
        saved.label_space,
        calibrate="temperature" if temperature else "none",
        thresholds="f1" if thresholds else "none",
    )


def _write(done: Recalibration) -> None:
    """Write card and record first and `config.json` last, so that readers see the old or the new calibration."""
    folder, calibration = done.folder, done.calibration
    with locked_folder(folder):
        settings = {**read_json(folder / "config.json"), **calibration.settings()}
        card = folder / CARD_FILE
        if card.is_file():
            sentence = plain(done.sentence())
            if calibration.rows:
                sentence += (
                    " This was fitted after the run: the scores above are of before, and the error of the same rows."
                )
            text = card.read_text(encoding="utf-8")
            text = re.sub(LIMIT_OF_CALIBRATION, lambda _: f"- {sentence}", text, count=1, flags=re.MULTILINE)
            write_text(card, text)
        write_text(folder / CALIBRATION_FILE, to_json(done.facts()))
        write_text(folder / "config.json", json.dumps(settings, indent=2, sort_keys=True) + "\n")
