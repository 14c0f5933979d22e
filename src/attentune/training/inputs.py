"""The inputs of a run: data, tokens, metric and hardware, checked before anything is written."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from accelerate import Accelerator

from attentune.config import Config, TrainingConfig
from attentune.data.columns import with_columns
from attentune.data.dataset import CALIBRATION, TaskData
from attentune.data.doctor import examine
from attentune.data.doctor_report import Finding, summary_lines
from attentune.data.load import load_data, with_calibration, with_extra
from attentune.data.tokenization import Features, TokenWords, encode_rows, words_of
from attentune.errors import DataError
from attentune.inference.scoring import make_accelerator
from attentune.metrics.metrics import Metric, choose_metric
from attentune.models.build import encoder_size, is_english_only, load_tokenizer
from attentune.models.loading import Tokenizer
from attentune.training.calibration import check_calibration
from attentune.training.defaults import RunSize, choose_settings, default_loss, describe
from attentune.training.objective import score_scale, with_ordinal_prediction
from attentune.training.progress import ProgressDisplay


@dataclass(frozen=True)
class RunInputs:
    """The data, tokenizer, metric and hardware of a run."""

    config: Config  # the complete configuration
    data: TaskData  # the rows of all splits
    labels: np.ndarray  # (N,) class ids or scores of the training rows
    features: dict[str, Features]  # the tokens of each split
    tokenizer: Tokenizer  # the encoder's
    metric: Metric  # the metric that tells the best weights
    accelerator: Accelerator  # provides device, processes and precision
    precision: str  # "fp32", "bf16" or "fp16"
    findings: tuple[Finding, ...] = ()  # what the checks of the data have found

    @property
    def validation(self) -> tuple[str, ...]:
        """The splits that are evaluated during training; the first one tells the best weights."""
        return tuple(name for name in self.data.splits if name.startswith("validation"))

    def words(self) -> TokenWords:
        """Return the words of the training rows."""
        config = self.config
        return words_of(
            self.data.splits["train"],
            self.tokenizer,
            max_length=config.data.longest_row,
            bi_encoder=config.model.pair_encoding == "bi-encoder",
        )

    def size(self) -> RunSize:
        """Return what open training settings are chosen by."""
        layers, hidden_size = encoder_size(self.config.model)
        return RunSize(
            rows=len(self.labels),
            mean_tokens=float(self.features["train"].lengths.mean()),
            validation_rows=sum(len(self.data.splits[name]) for name in self.validation),
            layers=layers,
            hidden_size=hidden_size,
            processes=self.accelerator.num_processes,
        )

    def with_training(self, training: TrainingConfig) -> RunInputs:
        """Return the inputs with other training settings."""
        return replace(self, config=replace(self.config, training=training))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the task's metrics, and of the metric that tells the best weights if it is another."""
        names = self.data.metrics
        return names if self.metric.name in names else (*names, self.metric.name)

    def row_name(self, row: int) -> str:
        """Return the name of a training row for messages: its id, with file and line if known."""
        rows = self.data.splits["train"]
        if rows.sources is not None:
            return f"{rows.ids[row]} ({rows.where(row)})"
        return rows.ids[row] if rows.lines is None else f"{rows.ids[row]} (line {rows.lines[row]})"

    @property
    def is_regression(self) -> bool:
        """Whether the labels are scores rather than classes."""
        return self.data.label_space.task_type == "regression"

    @property
    def loss(self) -> str:
        """The name of the loss; "auto" is the usual one of the task."""
        # These need a loss that is a sum over rows, or on the scale of the labels.
        if self.weights is not None or self.has_soft_targets or not self.metric.greater_is_better:
            return self.config.objective.loss
        return default_loss(self.config, self.data.label_space.task_type, is_pair=self.data.is_pair)

    @property
    def weights(self) -> np.ndarray | None:
        """(N,) float64 weights of the training rows; None if all are 1."""
        return self.data.splits["train"].weights

    @property
    def has_soft_targets(self) -> bool:
        """Whether the training rows have targets besides their labels."""
        return self.data.splits["train"].targets is not None

    @property
    def targets(self) -> np.ndarray:
        """What the loss compares predictions with: the labels or soft targets; scores are standardised and float32."""
        soft_NC = self.data.splits["train"].targets
        if self.is_regression:
            mean, std = self.score_scale
            return (((self.labels if soft_NC is None else soft_NC[:, 0]) - mean) / std).astype(np.float32)
        return self.labels if soft_NC is None else soft_NC.astype(np.float32)

    @cached_property
    def score_scale(self) -> tuple[float, float]:
        """Mean and standard deviation of the training scores; 0 and 1 for classes."""
        return score_scale(self.labels) if self.is_regression else (0.0, 1.0)

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """The SHA-256 of each split; cached, as every checkpoint holds it."""
        return self.data.fingerprint()

    @cached_property
    def _token_fingerprint(self) -> dict[str, Any]:
        special = (self.tokenizer.pad_token_id, self.tokenizer.mask_token_id)
        return {"special": list(special), **{name: part.fingerprint() for name, part in self.features.items()}}

    def resume_fingerprint(self) -> dict[str, Any]:
        """Return what must be equal for a run to be resumed."""
        return {
            "data": self.fingerprint,
            "tokens": self._token_fingerprint,
            "processes": self.accelerator.num_processes,
            "precision": self.precision,
            "device": self.accelerator.device.type,
        }


def prepare_inputs(config: Config, data: TaskData | None, display: ProgressDisplay) -> RunInputs:
    """Read, check and tokenise the data, and print notes on them."""
    settings = config.training
    # All splits of custom data; of a built-in task only those that are trained and evaluated on.
    wanted = ("train", "validation", CALIBRATION) if config.data.task is not None else None
    if data is None:
        data = load_data(config.data, seed=settings.seed, splits=wanted)
    else:
        data = with_extra(with_calibration(data, config.data, settings.seed), config.data)
    config = replace(config, data=with_columns(config.data, data.columns))
    check_calibration(data.label_space, calibrate=settings.calibrate, thresholds=settings.thresholds)
    data = replace(data, label_space=with_ordinal_prediction(data.label_space, config.objective.ordinal_prediction))
    train = data.splits.get("train")
    if train is None or len(train) == 0 or train.labels is None:
        raise DataError(f"{data.name}: has no labelled rows to train on, expected a train split.")
    _check_targets(data)
    if settings.eval_strategy != "no" and not any(name.startswith("validation") for name in data.splits):
        raise DataError(f"{data.name}: has no validation rows. Give some, or set --eval_strategy no.")
    metric = choose_metric(settings.metric_for_best_model, data.metrics, data.label_space)
    accelerator, precision = make_accelerator(
        precision=settings.precision,
        use_cpu=settings.use_cpu,
        tracker=settings.report_to,
        folder=str(settings.output_dir),
    )
    tokenizer = load_tokenizer(config.model)
    limit, bi_encoder = config.data.longest_row, config.model.pair_encoding == "bi-encoder"
    features = {
        name: encode_rows(rows, tokenizer, max_length=limit, bi_encoder=bi_encoder)
        for name, rows in data.splits.items()
    }
    lengths = {name: part.full_lengths for name, part in features.items()}
    report = examine(data, token_lengths=lengths, max_length=limit, english_only=is_english_only(config.model))
    for line in (*data.notes, *summary_lines(report)):
        display.info(line)
    return RunInputs(config, data, train.labels, features, tokenizer, metric, accelerator, precision, report.findings)


def _check_targets(data: TaskData) -> None:
    """Check the soft targets of the training rows, if they have some."""
    rows, space = data.splits["train"], data.label_space
    if rows.targets is None:
        return
    shape, expected = rows.targets.shape, (len(rows), space.num_labels)
    is_valid = shape == expected and bool(np.isfinite(rows.targets).all())
    if is_valid and space.task_type != "regression":
        is_valid = bool((rows.targets >= 0).all() and (rows.targets <= 1).all())
        is_valid &= space.is_multilabel or np.allclose(rows.targets.sum(axis=1), 1, atol=1e-6)
    if not is_valid:
        kind = "finite scores" if space.task_type == "regression" else "probabilities"
        raise DataError(f"{rows.source}: got soft targets of shape {shape}, expected {kind} of shape {expected}.")


def settled_inputs(inputs: RunInputs, display: ProgressDisplay) -> RunInputs:
    """Return the inputs with open training settings chosen by `defaults.choose_settings`; show which."""
    given = inputs.config.training
    settled = choose_settings(given, inputs.size())
    if (line := describe(given, settled)) is not None:
        display.info(line)
    if inputs.loss != inputs.config.objective.loss:
        display.info(f"chosen for scores from a dot product: loss {inputs.loss} (--loss mse for the squared error)")
    return inputs.with_training(settled)
