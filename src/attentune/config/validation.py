"""Checks of settings that are valid one by one but conflict with each other."""

import re
from collections.abc import Iterator, Mapping

from attentune.config.parse import did_you_mean
from attentune.config.schema import BASELINE_NAMES, Config, DataConfig, ObjectiveConfig
from attentune.plugins import is_plugin


def find_conflicts(config: Config) -> list[str]:
    """Return one message for each conflict between settings; an empty list if there is none."""
    parts = (_training, _model, _baselines, _loss, _trained_weights, _calibration, _data)
    return [message for part in parts for message in part(config)]


def _training(config: Config) -> Iterator[str]:
    training = config.training
    if training.eval_strategy == "steps" and training.eval_steps is None:
        yield "training.eval_steps: eval_strategy 'steps' needs a number of steps."
    needs_scores = ["load_best_model_at_end"] if training.load_best_model_at_end else []
    needs_scores += ["early_stopping_patience"] if training.early_stopping_patience is not None else []
    if training.eval_strategy == "no" and needs_scores:
        yield f"training.{needs_scores[0]}: needs scores; set training.eval_strategy to epoch or steps."
    if training.resume and training.overwrite_output_dir:
        yield "training.resume and training.overwrite_output_dir: choose one; the second deletes what the first needs."


def _model(config: Config) -> Iterator[str]:
    blur, generator = config.model.blur, config.labels.generator
    if blur.size % 2 == 0:
        yield f"model.blur.size: got {blur.size}, expected an odd number."
    if blur.layers != "all" and not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", blur.layers):
        yield f"model.blur.layers: got {blur.layers!r}, expected all, or numbers such as 1,2,3."
    makes_token_labels = generator not in ("none", "masked-rows") and not is_plugin(generator)
    if makes_token_labels and config.model.token_gate.kind == "none":
        yield (
            f"labels.generator: {generator} makes token labels, which need a token head; set"
            " model.token_gate.kind ssa, or take a preset such as ssa-co."
        )
    options = config.labels.options
    if not isinstance(options, Mapping | None):
        yield f"labels.options: got {options!r}, expected a mapping such as {{name: value}}."
    elif options is not None and not is_plugin(generator):
        yield f"labels.options: goes with a generator of another package, but labels.generator is {generator}."
    if config.model.head.kind == "cross-attention" and config.model.pair_encoding == "cross-encoder":
        yield (
            "model.head.kind: cross-attention needs separately encoded texts, but model.pair_encoding is"
            " cross-encoder; set --pair_encoding bi-encoder, or take self-attention."
        )


def _baselines(config: Config) -> Iterator[str]:
    training = config.training
    if training.baselines not in ("auto", "none"):
        for name in (name.strip() for name in training.baselines.split(",")):
            if name not in BASELINE_NAMES:
                known, near = ", ".join(BASELINE_NAMES), did_you_mean(name, BASELINE_NAMES)
                yield f"training.baselines: got {name!r}, expected auto, none, or some of {known}.{near}"
    # Settings of what a baseline does not have.
    unfit = {
        "training.calibrate": training.calibrate != "none",
        "training.thresholds": training.thresholds != "none",
        "training.reject": training.reject is not None,
        "training.report_to": training.report_to != "none",
        "labels.generator": config.labels.generator != "none",
        "objective.debias": config.objective.debias != "none",
    }
    for name in (name for name, is_set in unfit.items() if is_set and config.baseline is not None):
        later = " The finished run takes it: attentune calibrate RUN --reject; attentune auto FILE --reject does both."
        yield (
            f"{name}: works with a fine-tuned model, but the baseline {config.baseline} is fitted; leave it out, or"
            f" name a preset such as bert.{later if name == 'training.reject' else ''}"
        )


def _loss(config: Config) -> Iterator[str]:
    objective, training, loss = config.objective, config.training, config.objective.loss
    if loss in ("mse", "pearson", "corn"):
        only = "class labels only" if loss != "corn" else "cross-entropy, binary-cross-entropy and focal only"
        if objective.label_smoothing > 0:
            yield f"objective.label_smoothing: works with {only}; set it to 0 with loss {loss}."
        if objective.class_weights is not None:
            yield f"objective.class_weights: works with {only}; leave it out with loss {loss}."
    if loss != "focal" and objective.focal_gamma != ObjectiveConfig().focal_gamma:
        yield f"objective.focal_gamma: goes with loss focal, but objective.loss is {loss}."
    if objective.debias == "product" and loss not in ("auto", "cross-entropy"):
        yield (
            f"objective.debias: product adds log-probabilities of classes, which needs the cross-entropy, but"
            f" objective.loss is {loss}; set loss cross-entropy, or debias none."
        )
    if loss != "pearson":
        return
    if training.per_device_train_batch_size == 1:
        yield (
            "training.per_device_train_batch_size: got 1, but a correlation needs at least 2 rows in a batch (32 or"
            " more are better) with objective.loss pearson."
        )
    if config.labels.generator not in ("none", "masked-rows"):
        yield (
            f"labels.generator: {config.labels.generator} compares predictions on the task's own scale, so it needs a"
            " loss that keeps to it; with objective.loss pearson set labels.generator none, or take loss mse."
        )
    if any(weight not in (0, 1) for weight in config.data.extra_train_weights or ()):
        yield (
            "data.extra_train_weights: multiply the losses of rows, but objective.loss pearson has one for a whole"
            " batch; leave the weights out, or take loss mse."
        )


def _trained_weights(config: Config) -> Iterator[str]:
    training = config.training
    if training.freeze_encoder and training.encoder_learning_rate is not None:
        yield "training.encoder_learning_rate and training.freeze_encoder: choose one; a frozen encoder does not learn."
    if training.freeze_encoder and training.lora_rank is not None:
        yield "training.lora_rank and training.freeze_encoder: choose one; adapters train in the encoder."
    if training.lora_rank is None and (training.lora_alpha is not None or training.lora_dropout > 0):
        yield "training.lora_rank: training.lora_alpha and training.lora_dropout need it; give one too."


def _calibration(config: Config) -> Iterator[str]:
    wanted = [name for name in ("calibrate", "thresholds") if getattr(config.training, name) != "none"]
    rows = [name for name in ("calibration_share", "calibration_file") if getattr(config.data, name) is not None]
    if wanted and not rows:
        yield (
            f"training.{wanted[0]}: needs rows that training does not see: cut them from train with"
            " --calibration_share 0.1, or name a file with --calibration_file."
        )
    if len(rows) == 2:
        yield "data.calibration_share and data.calibration_file: choose one."
    if rows and not wanted and config.training.reject is None:
        yield (
            f"data.{rows[0]}: goes with --calibrate temperature, --thresholds f1 or --reject, which are fitted on these"
            " rows."
        )


def unread_columns(config: Config) -> str | None:
    """Return an error if columns beside the text are named that the run would not read."""
    if not config.data.extra_columns or config.baseline == "columns-linear":
        return None
    return (
        f"data.extra_columns: got {', '.join(config.data.extra_columns)}, but only the baseline columns-linear reads"
        " columns. Use attentune auto --extra_columns, which fuses it with other models; or join the columns into the"
        " text: --text_column title,price."
    )


def _data(config: Config) -> Iterator[str]:
    data = config.data
    if config.preset is not None and (problem := unread_columns(config)) is not None:  # auto has none
        yield problem
    for name in ("fold", "fold_seed") if data.folds is None else ():
        if getattr(data, name) != getattr(DataConfig(), name):
            yield f"data.{name}: goes with --folds, the number of parts."
    if data.folds is not None and data.fold is not None and data.fold > data.folds:
        yield f"data.fold: got {data.fold}, which needs as many folds, but data.folds is {data.folds}."
    files, weights = data.extra_train_files or (), data.extra_train_weights
    if weights is not None and len(weights) != len(files):
        got = f"got {len(weights)} for {len(files)} extra_train_files"
        yield f"data.extra_train_weights: {got}, expected one for each."
    if repeated := sorted({file for file in files if files.count(file) > 1 or file == data.train_file}):
        yield f"data.extra_train_files: {', '.join(repeated)} is named more than once; give it a weight instead."
    if data.long_texts != "cut" and data.stride >= data.max_length - 2:
        yield (
            f"data.stride: got {data.stride}, but a window of {data.max_length} tokens needs some of its own; expected"
            f" less than {data.max_length - 2} (max_length without [CLS] and [SEP])."
        )
