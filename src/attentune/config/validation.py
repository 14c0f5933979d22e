"""Checks of settings that are valid one by one but conflict with each other."""

from __future__ import annotations

import re

from attentune.config.parse import did_you_mean
from attentune.config.schema import BASELINE_NAMES, Config, DataConfig, ObjectiveConfig
from attentune.plugins import is_plugin


def find_conflicts(config: Config) -> list[str]:
    """Return one message for each conflict between settings; an empty list if there is none."""
    training, problems = config.training, []
    if training.eval_strategy == "steps" and training.eval_steps is None:
        problems.append("training.eval_steps: eval_strategy 'steps' needs a number of steps.")
    needs_scores = [
        name
        for name, is_set in (
            ("load_best_model_at_end", training.load_best_model_at_end),
            ("early_stopping_patience", training.early_stopping_patience is not None),
        )
        if is_set
    ]
    if training.eval_strategy == "no" and needs_scores:
        problems.append(f"training.{needs_scores[0]}: needs scores; set training.eval_strategy to epoch or steps.")
    if training.resume and training.overwrite_output_dir:
        problems.append(
            "training.resume and training.overwrite_output_dir: choose one; the second deletes what the first needs."
        )
    if config.model.blur.size % 2 == 0:
        problems.append(f"model.blur.size: got {config.model.blur.size}, expected an odd number.")
    if config.model.blur.layers != "all" and not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", config.model.blur.layers):
        problems.append(f"model.blur.layers: got {config.model.blur.layers!r}, expected all, or numbers such as 1,2,3.")
    generator = config.labels.generator
    makes_token_labels = generator not in ("none", "masked-rows") and not is_plugin(generator)
    if makes_token_labels and config.model.token_gate.kind == "none":
        problems.append(
            f"labels.generator: {generator} makes token labels, which need a token head; set"
            " model.token_gate.kind ssa, or take a preset such as ssa-co."
        )
    if config.model.head.kind == "cross-attention" and config.model.pair_encoding == "cross-encoder":
        problems.append(
            "model.head.kind: cross-attention needs separately encoded texts, but model.pair_encoding is"
            " cross-encoder; set --pair_encoding bi-encoder, or take self-attention."
        )
    return (
        problems
        + _tasks(config)
        + _baselines(config)
        + _loss_conflicts(config)
        + _frozen_conflicts(config)
        + _calibration(config)
        + _folds(config.data)
        + _extra_rows(config)
        + _windows(config.data)
    )


def _tasks(config: Config) -> list[str]:
    training, problems = config.training, []
    if config.data.tasks is not None and config.data.task is not None:
        problems.append("data.task and data.tasks: choose one; tasks names several, one works too.")
    if training.multi_task and config.data.tasks is None:
        problems.append("training.multi_task: needs data.tasks, as in --tasks sst5,quora,sts.")
    if training.multi_task and training.report_to != "none":
        problems.append(
            "training.report_to: a tracker works with the run of one model, but training.multi_task has several; set it"
            " to none and look at each task's log.jsonl."
        )
    if config.data.task_settings is not None and config.data.tasks is None:
        problems.append("data.task_settings: goes with data.tasks; set a single task's settings directly.")
    return problems


def _baselines(config: Config) -> list[str]:
    training, problems = config.training, []
    if training.baselines not in ("auto", "none"):
        names = [name.strip() for name in training.baselines.split(",")]
        problems += [
            f"training.baselines: got {name!r}, expected auto, none, or some of {', '.join(BASELINE_NAMES)}."
            f"{did_you_mean(name, BASELINE_NAMES)}"
            for name in names
            if name not in BASELINE_NAMES
        ]
    if config.baseline is None:
        return problems
    # Settings of what a baseline does not have.
    unfit = (
        ("training.multi_task", training.multi_task),
        ("training.calibrate", training.calibrate != "none"),
        ("training.thresholds", training.thresholds != "none"),
        ("labels.generator", config.labels.generator != "none"),
    )
    problems += [
        f"{name}: works with a fine-tuned model, but the baseline {config.baseline} is fitted; leave it out, or name a"
        " preset such as bert."
        for name, is_set in unfit
        if is_set
    ]
    return problems


def _loss_conflicts(config: Config) -> list[str]:
    objective, training, problems = config.objective, config.training, []
    if objective.loss in ("mse", "pearson", "corn"):
        only = "class labels only" if objective.loss != "corn" else "cross-entropy, binary-cross-entropy and focal only"
        if objective.label_smoothing > 0:
            problems.append(f"objective.label_smoothing: works with {only}; set it to 0 with loss {objective.loss}.")
        if objective.class_weights is not None:
            problems.append(f"objective.class_weights: works with {only}; leave it out with loss {objective.loss}.")
    if objective.loss != "focal" and objective.focal_gamma != ObjectiveConfig().focal_gamma:
        problems.append(f"objective.focal_gamma: goes with loss focal, but objective.loss is {objective.loss}.")
    if objective.loss != "pearson":
        return problems
    if training.per_device_train_batch_size == 1:
        problems.append(
            "training.per_device_train_batch_size: got 1, but a correlation needs at least 2 rows in a batch (32 or"
            " more are better) with objective.loss pearson."
        )
    if training.batch_by == "tokens":
        problems.append(
            "training.batch_by: tokens may leave a long text alone in a batch, but a correlation needs at least 2 rows;"
            " with objective.loss pearson set it to rows."
        )
    if config.labels.generator not in ("none", "masked-rows"):
        problems.append(
            f"labels.generator: {config.labels.generator} compares predictions on the task's own scale, so it needs a"
            " loss that keeps to it; with objective.loss pearson set labels.generator none, or take loss mse."
        )
    return problems


def _frozen_conflicts(config: Config) -> list[str]:
    training, problems = config.training, _lora_conflicts(config)
    if not training.freeze_encoder:
        return problems
    if training.encoder_learning_rate is not None:
        problems.append(
            "training.encoder_learning_rate and training.freeze_encoder: choose one; a frozen encoder does not learn."
        )
    if config.labels.generator == "gradient":
        problems.append(
            "labels.generator: gradient needs the backward pass through the encoder, which training.freeze_encoder"
            " leaves out; take another generator, or do not freeze."
        )
    return problems


def _lora_conflicts(config: Config) -> list[str]:
    training, problems = config.training, []
    if training.lora_rank is None:
        if training.lora_alpha is not None or training.lora_dropout > 0:
            problems.append("training.lora_rank: training.lora_alpha and training.lora_dropout need it; give one too.")
        return problems
    if training.freeze_encoder:
        problems.append("training.lora_rank and training.freeze_encoder: choose one; adapters train in the encoder.")
    if training.multi_task:
        problems.append("training.lora_rank: works with one model; leave it out with training.multi_task.")
    if config.labels.generator == "gradient":
        problems.append(
            "labels.generator: gradient needs the gradients of the word embeddings, which stay as they are with"
            " training.lora_rank; take another generator, or leave the adapters out."
        )
    return problems


def _calibration(config: Config) -> list[str]:
    training, data = config.training, config.data
    wanted = [name for name in ("calibrate", "thresholds") if getattr(training, name) != "none"]
    rows = [name for name in ("calibration_share", "calibration_file") if getattr(data, name) is not None]
    problems = []
    if wanted and not rows:
        problems.append(
            f"training.{wanted[0]}: needs rows that training does not see: cut them from train with"
            " --calibration_share 0.1, or name a file with --calibration_file."
        )
    if len(rows) == 2:
        problems.append("data.calibration_share and data.calibration_file: choose one.")
    if rows and not wanted:
        problems.append(
            f"data.{rows[0]}: goes with --calibrate temperature or --thresholds f1, which are fitted on these rows."
        )
    return problems


def _folds(data: DataConfig) -> list[str]:
    if data.folds is None:
        given = [name for name in ("fold", "fold_seed") if getattr(data, name) != getattr(DataConfig(), name)]
        return [f"data.{name}: goes with --folds, the number of parts." for name in given]
    if data.fold is not None and data.fold > data.folds:
        return [f"data.fold: got {data.fold}, which needs as many folds, but data.folds is {data.folds}."]
    return []


def _extra_rows(config: Config) -> list[str]:
    data = config.data
    files, weights = data.extra_train_files or (), data.extra_train_weights
    problems = []
    if weights is not None and len(weights) != len(files):
        problems.append(
            f"data.extra_train_weights: got {len(weights)} for {len(files)} extra_train_files, expected one for each."
        )
    elif config.objective.loss == "pearson" and any(weight not in (0, 1) for weight in weights or ()):
        problems.append(
            "data.extra_train_weights: multiply the losses of rows, but objective.loss pearson has one for a whole"
            " batch; leave the weights out, or take loss mse."
        )
    repeated = sorted({file for file in files if files.count(file) > 1 or file == data.train_file})
    if repeated:
        problems.append(
            f"data.extra_train_files: {', '.join(repeated)} is named more than once; give it a weight instead."
        )
    if files and data.tasks is not None:
        problems.append(
            "data.extra_train_files: are rows of one task; with data.tasks name them in data.task_settings, as in"
            " {sts: {data.extra_train_files: more.csv}}."
        )
    return problems


def _windows(data: DataConfig) -> list[str]:
    if data.long_texts == "cut" or data.stride < data.max_length - 2:
        return []
    return [
        f"data.stride: got {data.stride}, but a window of {data.max_length} tokens needs some of its own; expected less"
        f" than {data.max_length - 2} (max_length without [CLS] and [SEP])."
    ]
