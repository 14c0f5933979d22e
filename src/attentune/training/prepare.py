"""Reads, checks and chooses everything before PyTorch is imported, so that a mistake is reported at once.

    config.yaml -> Config -> rows of all splits, metric -> `Prepared`
    `Prepared` -> tokens, device, precision (`building.load_inputs`) -> `RunInputs`

Training settings that are left open follow from rows, text length and encoder size. Small data needs steps, not epochs:
3 epochs of 300 rows are 57 updates of 16 rows, after which a model often still predicts one class (Mosbach,
Andriushchenko and Klakow 2021, section 6; Zhang et al. 2021, section 6). The numbers were chosen on data sets that no
published table of this project uses; docs/training.md has the evidence.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from attentune.config import Config, ObjectiveConfig, TrainingConfig, load_config
from attentune.config.parse import did_you_mean
from attentune.config.validation import find_conflicts, unread_columns
from attentune.data.columns import with_columns
from attentune.data.dataset import CALIBRATION, LabelSpace, TaskData, TextRows
from attentune.data.ignored_words import data_without_words
from attentune.data.load import load_data, with_calibration, with_extra
from attentune.errors import ConfigError, DataError
from attentune.metrics.metrics import Metric, choose_metric
from attentune.results import RESULT_FILE
from attentune.training.run_folder import check_folder, check_writable, config_for_run, free_folder

if TYPE_CHECKING:
    from accelerate import Accelerator

    from attentune.data.cues import Cue
    from attentune.data.dataset import Finding
    from attentune.data.tokenization import Features, TokenWords
    from attentune.models.saving import Tokenizer
    from attentune.training.callbacks import ProgressDisplay
    from attentune.training.debias import Debias

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """The rows and settings of a run, checked."""

    config: Config  # the complete configuration; training settings may be open still
    data: TaskData  # the rows of all splits
    metric: Metric  # the metric that tells the best weights

    @cached_property
    def read_data(self) -> TaskData:
        """The rows as the model reads them: without ignored words. Fingerprints are of `data`."""
        return data_without_words(self.data, self.config.data.ignore_words)

    @property
    def labels(self) -> np.ndarray:
        """(N,) class ids or scores of the training rows; (N, C) ones and zeros for several labels a row."""
        return np.asarray(self.data.splits["train"].labels)

    @property
    def validation(self) -> tuple[str, ...]:
        """The splits that are evaluated during training; the first one tells the best weights."""
        return tuple(name for name in self.data.splits if name.startswith("validation"))

    @property
    def metrics(self) -> tuple[str, ...]:
        """The names of the task's metrics, and of the metric that tells the best weights if it is another."""
        names = self.data.metrics
        return names if self.metric.name in names else (*names, self.metric.name)

    @property
    def is_regression(self) -> bool:
        return self.data.label_space.task_type == "regression"

    @property
    def loss(self) -> str:
        """The name of the loss; "auto" is the usual one of the task."""
        # These need a loss that is a sum over rows, or on the scale of the labels.
        train = self.data.splits["train"]
        if train.weights is not None or train.targets is not None or not self.metric.greater_is_better:
            return self.config.objective.loss
        return default_loss(self.config, self.data.label_space.task_type, is_pair=self.data.is_pair)

    @property
    def weights(self) -> np.ndarray | None:
        """(N,) float64 weights of the training rows; None if all are 1."""
        return self.data.splits["train"].weights

    @cached_property
    def targets(self) -> np.ndarray:
        """What the loss compares predictions with: the labels or soft targets; scores are standardised and float32."""
        soft_NC = self.data.splits["train"].targets
        if self.is_regression:
            mean, std = self.score_scale
            return (((self.labels if soft_NC is None else soft_NC[:, 0]) - mean) / std).astype(np.float32)
        return self.labels if soft_NC is None else soft_NC.astype(np.float32)

    @cached_property
    def score_scale(self) -> tuple[float, float]:
        """Mean and standard deviation of the training scores, 1 if all are equal; 0 and 1 for classes."""
        if not self.is_regression:
            return 0.0, 1.0
        mean = float(self.labels.mean())
        largest = float(np.abs(self.labels - mean).max())
        # Divided first, so that no square of a score overflows.
        return mean, largest * float(((self.labels - mean) / largest).std()) if largest > 0 else 1.0

    @cached_property
    def fingerprint(self) -> dict[str, str]:
        """The SHA-256 of each split; cached, as every checkpoint holds it."""
        return self.data.fingerprint()

    def row_name(self, row: int) -> str:
        """Return the name of a training row for messages: its id, with file and line if known."""
        rows = self.data.splits["train"]
        if rows.sources is not None:
            return f"{rows.ids[row]} ({rows.where(row)})"
        return rows.ids[row] if rows.lines is None else f"{rows.ids[row]} (line {rows.lines[row]})"


@dataclass(frozen=True, kw_only=True)
class RunInputs(Prepared):
    """A prepared run with its tokens, on its device."""

    features: dict[str, Features]  # the tokens of each split
    size: RunSize  # what open training settings are chosen by
    tokenizer: Tokenizer  # the encoder's
    accelerator: Accelerator  # provides device, processes and precision
    precision: str  # "fp32", "bf16" or "fp16"
    findings: tuple[Finding, ...] = ()  # from the checks of the data
    cues: tuple[Cue, ...] = ()  # words of the training rows that go with one label, though they should not decide
    debias: Debias | None = None  # what training takes from the weak model of `objective.debias`

    def words(self) -> TokenWords:
        from attentune.data.tokenization import words_of  # imports transformers

        config = self.config
        return words_of(
            self.read_data.splits["train"],
            self.tokenizer,
            max_length=config.data.longest_row,
            bi_encoder=config.model.pair_encoding == "bi-encoder",
        )

    @cached_property
    def token_fingerprint(self) -> dict[str, Any]:
        special = (self.tokenizer.pad_token_id, self.tokenizer.mask_token_id)
        return {"special": list(special), **{name: part.fingerprint() for name, part in self.features.items()}}


def prepare(config: Config, data: TaskData | None = None) -> Prepared | None:
    """Check folder, settings and rows (`data` replaces those of `config`) of a run; None if it is finished already."""
    config = config_for_run(config)
    check_folder(config)
    if config.training.resume and (Path(str(config.training.output_dir)) / RESULT_FILE).is_file():
        return None
    check_writable(config)
    return prepare_rows(config, data)


def frame_run(
    frame: Any,
    *,
    text: str | Sequence[str] | None = None,
    label: str | Sequence[str] | None = None,
    text_pair: str | None = None,
    output_dir: str | Path | None = None,
    preset: str | None = None,
    overrides: Mapping[str, Any] | None = None,
) -> tuple[Config, TaskData]:
    """Return the settings and rows of a run on a data frame; see `attentune.train`."""
    if not hasattr(frame, "columns"):
        raise ConfigError(f"train: got a {type(frame).__name__}, expected a Config (load_config) or a data frame.")
    columns = {"text": text, "text_pair": text_pair, "label": label}
    names = list(map(str, frame.columns))
    for argument, wanted in columns.items():
        for name in (wanted,) if isinstance(wanted, str) else wanted or ():
            if name not in names:
                near, known = did_you_mean(name, names), ", ".join(map(repr, names))
                raise DataError(f"{argument}: the data frame has no column {name!r}.{near} Columns here: {known}.")
    settings = {f"data.{argument}_column": wanted for argument, wanted in columns.items() if wanted is not None}
    settings["training.output_dir"] = str(output_dir or free_folder("dataframe"))
    config = load_config(overrides=settings | dict(overrides or {}), preset=preset)
    wanted_splits = ("train", "validation", CALIBRATION)
    try:
        return config, load_data(config.data, seed=config.training.seed, splits=wanted_splits, frame=frame)
    except (ConfigError, DataError) as error:
        if "--" in str(error):
            error.add_note("From Python, a flag --NAME VALUE is overrides={'data.NAME': VALUE}.")
        raise


def prepare_rows(config: Config, data: TaskData | None = None) -> Prepared:
    """Read and check the rows of a run whose folder is checked."""
    settings = config.training
    if (problem := unread_columns(config)) is not None:
        raise ConfigError(problem)
    if data is None:
        # All splits of custom data; of a built-in task only those that are trained and evaluated on.
        wanted = ("train", "validation", CALIBRATION) if config.data.task is not None else None
        data = load_data(config.data, seed=settings.seed, splits=wanted)
    else:
        data = with_extra(with_calibration(data, config.data, settings.seed), config.data)
    config = replace(config, data=with_columns(config.data, data.columns))
    check_calibration(data.label_space, calibrate=settings.calibrate, thresholds=settings.thresholds)
    check_rejection(data.label_space, settings.reject)
    if settings.reject is not None and not held_out_splits(data.splits):
        raise DataError(f"{data.name}: has no validation rows, which --reject needs. Give some.")
    data = replace(data, label_space=with_ordinal_prediction(data.label_space, config.objective.ordinal_prediction))
    train = data.splits.get("train")
    if train is None or len(train) == 0 or train.labels is None:
        raise DataError(f"{data.name}: has no labelled rows to train on, expected a train split.")
    check_debias(data, config.objective.debias)
    check_objective(config.objective, data.label_space)
    validation = [rows for name, rows in data.splits.items() if name.startswith("validation")]
    if settings.eval_strategy != "no" and not any(rows.labels is not None and len(rows) for rows in validation):
        raise DataError(f"{data.name}: has no labelled validation rows. Give some, or set --eval_strategy no.")
    metric = choose_metric(settings.metric_for_best_model, data.metrics, data.label_space)
    return Prepared(config=config, data=data, metric=metric)


def check_debias(data: TaskData, kind: str) -> None:
    """Check that training rows have one class each, and are enough for the weak model's folds."""
    rows, task_type = data.splits["train"], data.label_space.task_type
    if kind == "none":
        return
    if task_type != "classification" or rows.targets is not None:
        got = "rows with soft targets" if task_type == "classification" else f"labels of the type {task_type}"
        raise ConfigError(
            f"objective.debias: got {kind} for {got} ({data.name}), expected one class a row (data.task_type"
            " classification). Set it to none."
        )
    if len(rows) < 2 * WEAK_FOLDS:
        raise DataError(
            f"{rows.source}: got {len(rows)} training rows, expected at least {2 * WEAK_FOLDS} for the folds of"
            " objective.debias. Give more rows, or set it to none."
        )


def check_objective(objective: ObjectiveConfig, label_space: LabelSpace) -> None:
    weights, is_regression = objective.class_weights, label_space.task_type == "regression"
    if is_regression and (weights is not None or objective.label_smoothing > 0):
        raise ConfigError(
            "objective: class_weights and label_smoothing need classes; this task is a regression. Leave them out."
        )
    if weights not in (None, "balanced"):
        class_weight_values(weights, label_space.names)


def class_weight_values(wanted: Any, names: Sequence[str]) -> list[float]:
    """Return the weight of each class from `objective.class_weights`, a list, a text or a mapping by class."""
    near = did_you_mean(wanted, ("balanced",)) if isinstance(wanted, str) else ""
    if isinstance(wanted, str):
        wanted = [part.strip() for part in wanted.split(",")]
    if isinstance(wanted, Mapping):
        if set(map(str, wanted)) != set(names):
            raise ConfigError(f"objective.class_weights: got {sorted(map(str, wanted))}, expected {sorted(names)}.")
        wanted = [{str(key): value for key, value in wanted.items()}[name] for name in names]
    try:
        values = [float(value) for value in wanted] if isinstance(wanted, Sequence) else []
    except (TypeError, ValueError):
        values = []
    if len(values) != len(names) or any(not np.isfinite(value) or value < 0 for value in values) or not any(values):
        raise ConfigError(
            f"objective.class_weights: got {wanted!r}, expected balanced, or {len(names)} numbers of at least 0,"
            f" one for each of {', '.join(names)}.{near}"
        )
    return values


def check_calibration(label_space: LabelSpace, *, calibrate: str = "none", thresholds: str = "none") -> None:
    """Check that the task has the probabilities or thresholds that are to be fitted."""
    if calibrate == "none" and thresholds == "none":
        return
    if label_space.task_type == "regression":
        name = "calibrate" if calibrate != "none" else "thresholds"
        raise ConfigError(f"training.{name}: needs classes, whose probabilities it mends; this task is a regression.")
    is_binary = label_space.task_type == "classification" and label_space.num_labels == 2
    if thresholds != "none" and not (is_binary or label_space.is_multilabel):
        raise ConfigError(
            f"training.thresholds: needs two classes, or several labels a row; this is {label_space.task_type} into"
            f" {label_space.num_labels}. Leave it out: the likeliest class is predicted."
        )


def check_rejection(label_space: LabelSpace | None, share: float | None, name: str = "training.reject") -> None:
    """Check that each row has one class, if texts of none are to be rejected; None if the labels are not known yet."""
    task_type = "classification" if label_space is None else label_space.task_type
    if share is not None and task_type not in ("classification", "ordinal"):
        kind = "a regression" if task_type == "regression" else "a task of several labels a row"
        raise ConfigError(f"{name}: is about texts of no class, where others have one; this is {kind}. Leave it out.")


def held_out_splits(splits: Mapping[str, TextRows]) -> list[str]:
    """Return the labelled splits on which what is rejected is chosen: calibration rows, else validation rows."""
    named = {name: rows for name, rows in splits.items() if rows.labels is not None and len(rows)}
    return [CALIBRATION] if CALIBRATION in named else [name for name in named if name.startswith("validation")]


def with_ordinal_prediction(label_space: LabelSpace, rule: str) -> LabelSpace:
    if rule == "argmax":
        return label_space
    if label_space.task_type != "ordinal":
        raise ConfigError(
            f"objective.ordinal_prediction: got {rule!r}, which needs classes with an order"
            f" (data.task_type ordinal); this is a {label_space.task_type} task. Leave it at argmax."
        )
    return replace(label_space, ordinal_prediction=rule)


def row_facts(train: TextRows) -> dict[str, Any]:
    """Return the sources and weights of the training rows, if there are several sources, and the range of scores."""
    facts: dict[str, Any] = {}
    if train.sources is not None:
        facts["rows_from"] = [asdict(part) for part in train.row_sources()]
    if train.labels is not None and train.labels.dtype.kind == "f" and len(train):
        facts["score_range"] = [float(train.labels.min()), float(train.labels.max())]
    return facts


# Updates of a run on few rows, and the bounds of its passes over them.
UPDATES = 600
MIN_EPOCHS, MAX_EPOCHS = 3.0, 40.0
# Rows up to which batches are small, and text length in tokens from which they are.
SMALL_DATA_ROWS, LONG_TEXT_TOKENS = 5000, 128
SMALL_BATCH, LARGE_BATCH = 16, 32
# The peak learning rate of an encoder with this many weights in its layers (the embedded MiniLM), and the bounds.
BASE_LEARNING_RATE, BASE_WEIGHTS = 1e-4, 12 * 6 * 384**2
MIN_LEARNING_RATE, MAX_LEARNING_RATE = 1e-5, 2e-4
FROZEN_LEARNING_RATE, MAX_LORA_LEARNING_RATE, LORA_FACTOR = 1e-3, 5e-4, 5.0
# Evaluations, and checkpoints, of a run of many epochs.
EVALUATIONS = 10
# With fewer validation rows, differences between checkpoints are mostly noise, and the last weights are kept.
MIN_ROWS_TO_CHOOSE = 100

# Folds in which the weak model of `objective.debias` predicts the training rows.
WEAK_FOLDS = 5

# Training rows that a linear probe encodes and is fitted to; more make the fit slow and hardly better.
PROBED_ROWS = 4096

# Updates of an encoder's adaptation to texts (docs/small-data.md has the evidence), and the settings that it obeys.
ADAPTATION_UPDATES = 300
_OF_ADAPTATION = {
    "data": "task data_dir train_file dataset_name text_column text_pair_column max_length",
    "model": "name_or_path revision trust_remote_code dropout",
    "training": "output_dir overwrite_output_dir resume learning_rate num_train_epochs max_steps"
    " per_device_train_batch_size gradient_accumulation_steps weight_decay max_grad_norm lr_scheduler_type warmup_ratio"
    " seed precision use_cpu fused_layers save_steps logging_steps",
}
ADAPTATION_SETTINGS = tuple(f"{section}.{name}" for section, names in _OF_ADAPTATION.items() for name in names.split())


@dataclass(frozen=True)
class RunSize:
    rows: int  # number of training rows
    mean_tokens: float  # mean length of a training row in tokens
    validation_rows: int  # number of rows that are scored during training
    layers: int  # number of the encoder's layers
    hidden_size: int  # width of the encoder
    processes: int = 1  # number of processes, each with batches of its own


def choose_settings(training: TrainingConfig, size: RunSize) -> TrainingConfig:
    """Return the settings with open ones chosen by the rule; `eval_steps` and `save_steps` None are once an epoch."""
    batch = _first(training.per_device_train_batch_size, default_batch_size(size.rows, size.mean_tokens))
    rows_per_step = batch * size.processes * training.gradient_accumulation_steps
    epochs = _first(training.num_train_epochs, default_epochs(size.rows, rows_per_step))
    rate = _first(
        training.learning_rate,
        default_learning_rate(
            size.layers, size.hidden_size, frozen=training.freeze_encoder, lora=training.lora_rank is not None
        ),
    )
    strategy, eval_steps, save_steps = training.eval_strategy, training.eval_steps, training.save_steps
    steps = training.max_steps if training.max_steps > 0 else math.ceil(epochs * size.rows / rows_per_step)
    if steps * rows_per_step > EVALUATIONS * size.rows:
        interval = math.ceil(steps / EVALUATIONS)
        if strategy is None:
            strategy, eval_steps = "steps", _first(eval_steps, interval)
        save_steps = _first(save_steps, interval)
    strategy = _first(strategy, "epoch")
    return replace(
        training,
        learning_rate=rate,
        num_train_epochs=epochs,
        per_device_train_batch_size=batch,
        eval_strategy=strategy,
        eval_steps=eval_steps,
        save_steps=save_steps,
        load_best_model_at_end=_first(
            training.load_best_model_at_end,
            strategy != "no" and size.validation_rows >= MIN_ROWS_TO_CHOOSE,
        ),
    )


def settle(inputs: RunInputs, display: ProgressDisplay) -> RunInputs:
    """Choose the training settings that are open, and say which."""
    given = inputs.config.training
    settled = choose_settings(given, inputs.size)
    if (line := _describe(given, settled)) is not None:
        display.info(line)
    if inputs.loss != inputs.config.objective.loss:
        display.info(f"chosen for scores from a dot product: loss {inputs.loss} (--loss mse for the squared error)")
    return replace(inputs, config=replace(inputs.config, training=settled))


def default_loss(config: Config, task_type: str, *, is_pair: bool) -> str:
    """Return the configured loss; for scores from a dot product `auto` is "pearson".

    A dot product has no scale of its own; the poster of task-specific attention reports a correlation of 0.3 to 0.4
    with the squared error. Where other settings need a loss on the scale of the labels it stays "auto".
    """
    from attentune.models.head_settings import is_dot_product  # imports PyTorch

    loss = config.objective.loss
    if loss != "auto" or task_type != "regression" or not is_dot_product(config.model, is_pair=is_pair):
        return loss
    wanted = replace(config, objective=replace(config.objective, loss="pearson"))
    return loss if find_conflicts(wanted) else "pearson"


def ending_with_last_weights(training: TrainingConfig) -> TrainingConfig:
    """Return the settings of a run that is compared with others: its last weights, unless the user sets it."""
    # Choosing a checkpoint on the rows that are reported would favour methods that are scored more often.
    return replace(training, load_best_model_at_end=bool(training.load_best_model_at_end))


def wants_best(settings: TrainingConfig) -> bool:
    return bool(settings.load_best_model_at_end) or settings.early_stopping_patience is not None


def default_batch_size(rows: int, mean_tokens: float) -> int:
    """Return the rows per batch: few for small data, which needs updates, and for long texts, which need memory."""
    return SMALL_BATCH if rows <= SMALL_DATA_ROWS or mean_tokens > LONG_TEXT_TOKENS else LARGE_BATCH


def default_epochs(rows: int, rows_per_step: int) -> float:
    """Return the passes over the rows that make `UPDATES` updates, within the bounds, in tenths."""
    epochs = UPDATES * rows_per_step / max(rows, 1)
    return round(min(max(epochs, MIN_EPOCHS), MAX_EPOCHS), 1)


def default_learning_rate(layers: int, hidden_size: int, *, frozen: bool = False, lora: bool = False) -> float:
    """Return the peak learning rate, to two digits: inverse to the square root of the weights in the layers.

    1e-4 for the embedded encoder (6 layers, 384 wide), 3.5e-5 for BERT base and 1.9e-5 for BERT large, within the
    ranges that Devlin et al. 2019 (appendix A.3) and Liu et al. 2019 (table 10) searched.
    """
    if frozen:
        return FROZEN_LEARNING_RATE
    rate = BASE_LEARNING_RATE * math.sqrt(BASE_WEIGHTS / (12 * layers * hidden_size**2))
    rate = min(max(rate, MIN_LEARNING_RATE), MAX_LEARNING_RATE)
    return float(f"{min(rate * LORA_FACTOR, MAX_LORA_LEARNING_RATE) if lora else rate:.2g}")


def chosen(value: T | None) -> T:
    """Return a setting that the rule has set."""
    if value is None:
        raise RuntimeError("a training setting is None, expected the value that choose_settings gives it")
    return value


def _describe(given: TrainingConfig, settled: TrainingConfig) -> str | None:
    """Return a line on the settings that the rule chose; None if the user had given all of them."""
    names = ("learning_rate", "num_train_epochs", "per_device_train_batch_size")
    open_ones = [name for name in names if getattr(given, name) is None]
    if settled.max_steps > 0:
        open_ones = [name for name in open_ones if name != "num_train_epochs"]
    parts = [f"{name} {getattr(settled, name):g}" for name in open_ones]
    if given.load_best_model_at_end is None and settled.load_best_model_at_end:
        parts.append("load_best_model_at_end true")
    return f"chosen by rows, text length and encoder: {', '.join(parts)}" if parts else None


def _first(value: T | None, default: T) -> T:
    return default if value is None else value
