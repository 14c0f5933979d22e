"""Default training settings by rule: what the user leaves open follows from rows, text length and encoder size.

Small data needs steps, not epochs: 3 epochs of 300 rows are 57 updates of 16 rows, after which a model often still
predicts one class (Mosbach, Andriushchenko and Klakow 2021, section 6; Zhang et al. 2021, section 6). The numbers were
chosen on data sets that no published table of this project uses; docs/training.md has the evidence.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TypeVar

from attentune.config import Config, TrainingConfig
from attentune.config.validation import find_conflicts

T = TypeVar("T")

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

# Settings that are None until `choose_settings` sets them.
RULED = (
    "learning_rate",
    "num_train_epochs",
    "per_device_train_batch_size",
    "eval_strategy",
    "eval_steps",
    "save_steps",
    "load_best_model_at_end",
)

# Training rows that a linear probe encodes and is fitted to; more make the fit slow and hardly better.
PROBED_ROWS = 4096

# Updates of an encoder's adaptation to texts (docs/small-data.md has the evidence), and the settings that it obeys.
ADAPTATION_UPDATES = 300
ADAPTATION_SETTINGS = (
    *(f"data.{name}" for name in ("task", "data_dir", "train_file", "dataset_name", "text_column", "text_pair_column")),
    "data.max_length",
    *(f"model.{name}" for name in ("name_or_path", "revision", "trust_remote_code", "dropout")),
    *(
        f"training.{name}"
        for name in (
            "output_dir",
            "overwrite_output_dir",
            "resume",
            "learning_rate",
            "num_train_epochs",
            "max_steps",
            "per_device_train_batch_size",
            "gradient_accumulation_steps",
            "weight_decay",
            "max_grad_norm",
            "lr_scheduler_type",
            "warmup_ratio",
            "seed",
            "precision",
            "use_cpu",
            "fused_layers",
            "save_steps",
            "logging_steps",
        )
    ),
)


@dataclass(frozen=True)
class RunSize:
    """What the rule depends on."""

    rows: int  # number of training rows
    mean_tokens: float  # mean length of a training row in tokens
    validation_rows: int  # number of rows that are scored during training
    layers: int  # number of the encoder's layers
    hidden_size: int  # width of the encoder
    processes: int = 1  # number of processes, each with batches of its own


def choose_settings(training: TrainingConfig, size: RunSize) -> TrainingConfig:
    """Return the settings with every open one (None) chosen by the rule; given ones are kept.

    `eval_steps` and `save_steps` stay None where scores and checkpoints are made once an epoch.
    """
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
            strategy != "no" and not training.multi_task and size.validation_rows >= MIN_ROWS_TO_CHOOSE,
        ),
    )


def default_loss(config: Config, task_type: str, *, is_pair: bool) -> str:
    """Return the loss of these rows: that of the settings, but for scores from a dot product "pearson" instead of auto.

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
    """Return the settings of one of many runs that are compared: it ends with its last weights unless the user sets it.

    Choosing a checkpoint on the rows that are reported would favour methods that are scored more often.
    """
    return replace(training, load_best_model_at_end=bool(training.load_best_model_at_end))


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


def describe(given: TrainingConfig, settled: TrainingConfig) -> str | None:
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
