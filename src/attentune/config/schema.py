"""The settings of a run: frozen sections whose names are the keys of `config.yaml`.

Field metadata says what the command line shows: `help`, `choices`, and `minimum`/`maximum` (with `open=True` where the
bound itself is not allowed). Names are those of transformers' `TrainingArguments` and `run_classification` where one
exists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def setting(default: Any, help: str, **facts: Any) -> Any:
    """A dataclass field with its default, and what `schema` says of metadata."""
    return field(default=default, metadata={"help": help, **facts})


@dataclass(frozen=True)
class BlurConfig:
    where: str = setting(
        "none",
        "what a Gaussian blur along the tokens is applied to in each layer",
        choices=("none", "context", "value", "scores"),
    )
    sigma: float = setting(0.3, "standard deviation of the blur in tokens", minimum=0.001, maximum=100)
    size: int = setting(3, "window of the blur in tokens, odd", minimum=1)
    layers: str = setting("all", "which layers are blurred: all, or their numbers from 1 with commas between")
    learnable: str = setting(
        "no", "learn sigma, from the given value on: one a layer, or one a head", choices=("no", "layer", "head")
    )


@dataclass(frozen=True)
class LayerMixConfig:
    kind: str = setting(
        "last",
        "which encoder layers make the token matrix",
        choices=(
            "first",
            "second",
            "second-to-last",
            "last",
            "sum-last-4",
            "sum-all",
            "mean-all",
            "weighted",
            "concat-last-4",
        ),
    )
    squeeze: bool = setting(False, "rescale each layer by squeeze-and-excitation first")
    ratio: int = setting(3, "squeeze: the bottleneck has the number of layers, divided by this, features", minimum=1)


@dataclass(frozen=True)
class TokenGateConfig:
    kind: str = setting(
        "none",
        "how single tokens are weighted: ssa has a head that scores each token's importance",
        choices=("none", "ssa"),
    )
    beta: float = setting(
        0.5,
        "ssa: the share of the head's vector; the tokens weighted by importance have 1 - beta (1: co-training only)",
        minimum=0,
        maximum=1,
    )
    share_weights: bool = setting(True, "ssa: one last linear for all positions; false: one a position")
    attention_threshold: float = setting(
        0.0, "ssa: tokens whose importance is below it have no weight", minimum=0, maximum=1
    )


@dataclass(frozen=True)
class HeadConfig:
    kind: str = setting(
        "cls",
        "how tokens become one vector a text; task-attention is self-attention for single texts, cross-attention for"
        " pairs",
        choices=("cls", "mean", "cls-mean", "self-attention", "cross-attention", "task-attention"),
    )
    beta: float = setting(
        0.5, "cls-mean: the share of [CLS]; the mean of the other tokens has 1 - beta", minimum=0, maximum=1
    )
    pooler: str = setting(
        "auto",
        "dense + tanh after [CLS]: auto takes the encoder's own where its checkpoint has one",
        choices=("auto", "fresh", "none"),
    )
    dropout: float = setting(
        0.1, "dropout before the linear classifier, and in the head's attention blocks", minimum=0, maximum=0.99
    )
    layers: int | None = setting(
        None,
        "full blocks of self-attention (2 if not given) or cross-attention (1; none where there is a bare one)",
        minimum=0,
    )
    bare: bool = setting(False, "cross-attention: one block of attention alone after the full ones")
    init: str = setting(
        "default",
        "attention blocks: how queries, keys and values start; uniform draws from 0.9 to 1",
        choices=("default", "uniform"),
    )
    attention_heads: int | None = setting(
        None, "attention blocks: how many attention heads (the encoder's own number if not given)", minimum=1
    )
    combine: str = setting(
        "dot",
        "bi-encoder: the dot product of both texts' vectors after one linear; or a linear on u, v, |u - v| and u * v",
        choices=("dot", "concat"),
    )
    projection: int | None = setting(
        None, "bi-encoder, dot: features of the linear (the encoder's width if not given)", minimum=1
    )


@dataclass(frozen=True)
class ModelConfig:
    name_or_path: str = setting(
        "embedded",
        "encoder: embedded, a folder (of a run too: then with its slots where they fit), or a name on the hub",
    )
    revision: str | None = setting(None, "the hub revision of the encoder")
    dropout: float | None = setting(
        None, "dropout inside the encoder (its own setting if not given)", minimum=0, maximum=0.99
    )
    trust_remote_code: bool = setting(
        False, "run code that comes with a hub model (only for models that you trust); no file can set it"
    )
    pair_encoding: str = setting(
        "cross-encoder",
        "how pairs are read: both texts in one row, or (bi-encoder) each by itself; of no account for single texts",
        choices=("cross-encoder", "bi-encoder"),
    )
    blur: BlurConfig = field(default_factory=BlurConfig)
    layer_mix: LayerMixConfig = field(default_factory=LayerMixConfig)
    token_gate: TokenGateConfig = field(default_factory=TokenGateConfig)
    head: HeadConfig = field(default_factory=HeadConfig)


__all__ = [
    "BlurConfig",
    "Config",
    "DataConfig",
    "HeadConfig",
    "LabelsConfig",
    "LayerMixConfig",
    "ModelConfig",
    "ObjectiveConfig",
    "TokenGateConfig",
    "TrainingConfig",
]


@dataclass(frozen=True)
class ObjectiveConfig:
    loss: str = setting(
        "auto",
        "auto: cross-entropy for classes, mean squared error for regression; pearson: minus the batch's correlation",
        choices=("auto", "cross-entropy", "binary-cross-entropy", "focal", "mse", "pearson", "corn"),
    )
    focal_gamma: float = setting(
        2.0, "loss focal: how little a row counts whose class is likely already (0: as cross-entropy)", minimum=0
    )
    alpha: float = setting(
        0.7, "the weight of the task's loss; the token head's loss has 1 - alpha", minimum=0, maximum=1
    )
    token_loss_warmup_epochs: float = setting(
        0.0, "epochs over which the weight of the token head's loss rises from 0 to 1 - alpha", minimum=0
    )
    label_smoothing: float = setting(0.0, "share of the target spread over all classes", minimum=0, maximum=0.99)
    class_weights: Any = setting(None, "null, balanced, or one number a class (a list, or a mapping by label name)")
    ordinal_prediction: str = setting(
        "argmax",
        "ordered classes: predict the likeliest, or the one nearest to the mean of class numbers",
        choices=("argmax", "expected-value"),
    )


@dataclass(frozen=True)
class LabelsConfig:
    generator: str = setting(
        "none",
        "what is made of the training rows before each epoch: masked copies, or labels for single tokens",
        choices=(
            "none",
            "masked-rows",
            "flip",
            "released",
            "drop",
            "leave-one-out",
            "gradient",
            "integrated-gradients",
            "lime",
        ),
    )
    ratio: float = setting(
        1.0, "masked rows made an epoch, as a multiple of the training rows (the paper's gamma)", minimum=0, maximum=100
    )
    mask_share: float = setting(0.3, "share of a text's tokens that is masked", minimum=0, maximum=1)
    tolerance: float = setting(
        0.3, "regression: predictions that differ by at most this are the same (the task's own scale)", minimum=0
    )
    reuse_predictions: bool = setting(
        True,
        "flip, released: with classes take the training pass's word for which sentences the model is right on;"
        " false: ask for all of them again before each epoch",
    )
    targets: str = setting(
        "hard",
        "leave-one-out, gradient, integrated-gradients, lime: labels of 0 and 1, or shares between them",
        choices=("hard", "soft"),
    )
    top_share: float = setting(
        0.3,
        "hard targets from scores: this share of a text's tokens is labelled 1, the bottom half 0, the rest nothing",
        minimum=0,
        maximum=0.5,
    )
    shuffle: bool = setting(False, "control: deal an epoch's labels out again at random among the labelled tokens")
    aug_ratio_each: float = setting(
        0.2, "released: how much the share of labelled samples rises each epoch", minimum=0, maximum=1
    )
    aug_threshold: float = setting(0.1, "released: the chance that a token starts a masked span", minimum=0, maximum=1)
    rm_threshold: float = setting(
        0.7, "released: a draw above it masks 3 tokens, one above 2 x this - 1 masks 2, else 1", minimum=0, maximum=1
    )
    double_ori: bool = setting(False, "released: add all original rows to each epoch's samples")
    steps: int = setting(16, "integrated-gradients: points on the path from the masked text to the text", minimum=1)
    samples: int = setting(64, "lime: masked copies a text", minimum=2)


@dataclass(frozen=True)
class TrainingConfig:
    output_dir: str | None = setting(None, "the run folder")
    overwrite_output_dir: bool = setting(False, "empty the run folder first, if it holds something")
    resume: bool = setting(False, "go on from the newest good checkpoint in the run folder")
    multi_task: bool = setting(
        False, "with data.tasks: one encoder for all tasks, each with slots and classifier of its own"
    )
    task_sampling_exponent: float = setting(
        0.5, "multi_task: a task gets steps in proportion to its rows to this power", minimum=0, maximum=1
    )
    learning_rate: float = setting(5e-5, "peak learning rate", minimum=0, open=True)
    encoder_learning_rate: float | None = setting(
        None, "peak learning rate of the encoder, embeddings too (learning_rate if not given)", minimum=0, open=True
    )
    freeze_encoder: bool = setting(False, "train the slots and the classifier only; the encoder stays as it is")
    lora_rank: int | None = setting(
        None, "train low-rank adapters of this rank in the encoder's attention, not the encoder itself", minimum=1
    )
    lora_alpha: float | None = setting(
        None,
        "the adapters' output is scaled by this over the rank (twice the rank if not given)",
        minimum=0,
        open=True,
    )
    lora_dropout: float = setting(0.0, "dropout before the adapters", minimum=0, maximum=0.99)
    num_train_epochs: float = setting(
        3.0, "passes over the training rows (a fraction stops within one)", minimum=0, open=True
    )
    max_steps: int = setting(-1, "stop after this many optimiser steps, whatever the epochs (-1: off)", minimum=-1)
    per_device_train_batch_size: int = setting(32, "rows in a training batch, on each device", minimum=1)
    per_device_eval_batch_size: int = setting(64, "rows in an evaluation batch, on each device", minimum=1)
    gradient_accumulation_steps: int = setting(1, "batches to one optimiser step", minimum=1)
    weight_decay: float = setting(0.01, "AdamW's weight decay (not on biases and norms)", minimum=0)
    adam_beta1: float = setting(0.9, "AdamW's beta 1", minimum=0, maximum=0.999999)
    adam_beta2: float = setting(0.999, "AdamW's beta 2", minimum=0, maximum=0.999999)
    adam_epsilon: float = setting(1e-8, "AdamW's epsilon", minimum=0)
    max_grad_norm: float = setting(1.0, "gradients are clipped to this norm (0: not clipped)", minimum=0)
    lr_scheduler_type: str = setting(
        "linear",
        "how the learning rate falls after the warm-up",
        choices=("linear", "cosine", "constant_with_warmup", "constant"),
    )
    warmup_ratio: float = setting(0.1, "share of the steps that warm up", minimum=0, maximum=1)
    warmup_steps: int = setting(0, "steps that warm up; goes before warmup_ratio if above 0", minimum=0)
    seed: int = setting(42, "the seed of every random choice", minimum=0)
    precision: str = setting(
        "auto",
        "auto: bf16 where the hardware multiplies it fast, else fp32",
        choices=("auto", "fp32", "bf16", "fp16"),
    )
    use_cpu: bool = setting(False, "train on the CPU even where there is an accelerator")
    fused_layers: bool = setting(True, "train layers like BERT's by own C code, on a CPU with bf16 and a C compiler")
    eval_strategy: str = setting("epoch", "when to score the validation rows", choices=("epoch", "steps", "no"))
    eval_steps: int | None = setting(None, "with eval_strategy steps: optimiser steps between scores", minimum=1)
    save_steps: int | None = setting(None, "optimiser steps between checkpoints (not given: one an epoch)", minimum=1)
    save_total_limit: int = setting(2, "checkpoints kept: the newest, and always the best", minimum=1)
    load_best_model_at_end: bool = setting(False, "end with the weights that scored best, not with the last")
    metric_for_best_model: str | None = setting(None, "the metric that tells the best (the task's first if not given)")
    early_stopping_patience: int | None = setting(None, "stop after this many scores without a gain", minimum=1)
    early_stopping_threshold: float = setting(0.0, "a gain smaller than this is none", minimum=0)
    logging_steps: int = setting(10, "optimiser steps between lines in log.jsonl", minimum=1)
    calibrate: str = setting(
        "none",
        "at the end, fit on rows kept out of training what the logits are divided by, so that probabilities are true",
        choices=("none", "temperature"),
    )
    thresholds: str = setting(
        "none",
        "at the end, fit there from which probability on a label (of two classes the second) is predicted: for its F1",
        choices=("none", "f1"),
    )
    report_to: str = setting(
        "none", "also log for a tracker; wandb is Weights & Biases", choices=("none", "tensorboard", "mlflow", "wandb")
    )


@dataclass(frozen=True)
class DataConfig:
    task: str | None = setting(None, "a known task (`attentune tasks` lists them)")
    tasks: tuple[str, ...] | None = setting(
        None, "several known tasks in one command: one run each, or with multi_task one encoder that all share"
    )
    task_settings: Any = setting(
        None, "with tasks: settings of single tasks, such as {sts: {objective.loss: pearson}}; a mapping by task"
    )
    data_dir: str | None = setting(None, "the folder of the task's files, as they were published")
    dataset_name: str | None = setting(None, "a Hugging Face data set: a hub name, or a folder from save_to_disk")
    dataset_config_name: str | None = setting(None, "the configuration of that data set")
    train_file: str | None = setting(None, "own rows to train on: .csv .tsv .json .jsonl .parquet, also with .gz")
    validation_file: str | None = setting(None, "own rows to score on (a part of train_file is cut if not given)")
    test_file: str | None = setting(None, "own rows to predict")
    extra_train_files: tuple[str, ...] | None = setting(
        None, "more rows to train on, mixed into train: files, or folders from save_to_disk, with commas between"
    )
    extra_train_weights: tuple[float, ...] | None = setting(
        None, "what each row of these files counts beside a row of train (1 each if not given; 0: left out)", minimum=0
    )
    text_column: str | None = setting(None, "the column of the (first) text")
    text_pair_column: str | None = setting(None, "the column of the second text")
    label_column: str | None = setting(None, "the column of the label")
    id_column: str | None = setting(None, "the column of the row's id (else id, idx or index, else the row's number)")
    task_type: str | None = setting(
        None,
        "what the labels are (default: the known task's own; classification for own data)",
        choices=("classification", "regression", "ordinal", "multi_label"),
    )
    label_separator: str | None = setting(None, "multi_label: what stands between labels in a text (| if not given)")
    label_names: tuple[str, ...] | None = setting(
        None, "the labels in order (ordinal: lowest first); else as found, sorted"
    )
    validation_share: float = setting(
        0.1, "share of train_file that is cut where there is no validation file", minimum=0.001, maximum=0.9
    )
    folds: int | None = setting(None, "cross-validation: cut train in this many stratified parts", minimum=2)
    fold: int | None = setting(None, "with folds: the part that is scored on, from 1; compare runs all", minimum=1)
    fold_seed: int = setting(1, "with folds: the seed of the cut", minimum=0)
    calibration_share: float | None = setting(
        None, "share of train that is cut to calibrate on", minimum=0.001, maximum=0.9
    )
    calibration_file: str | None = setting(None, "own rows to calibrate on, instead of a part of train")
    max_length: int = setting(
        128, "longest text or pair in tokens (bi-encoder: each text of a pair); longer ones are cut", minimum=4
    )
    long_texts: str = setting(
        "cut",
        "single texts longer than max_length: cut them, or read them in overlapping windows of max_length tokens",
        choices=("cut", "windows"),
    )
    stride: int = setting(32, "windows: tokens that a window shares with the one before", minimum=0)
    max_windows: int = setting(8, "windows: at most so many a text; what is longer is cut", minimum=1)
    max_train_samples: int | None = setting(None, "train on a seeded, stratified part of this many rows", minimum=1)
    max_eval_samples: int | None = setting(None, "score on a seeded, stratified part of this many rows", minimum=1)

    @property
    def extra_train(self) -> tuple[tuple[str, float], ...]:
        """The extra files that are used, and the weight of each one's rows."""
        files = self.extra_train_files or ()
        weights = self.extra_train_weights or (1.0,) * len(files)
        return tuple((file, weight) for file, weight in zip(files, weights, strict=True) if weight > 0)

    @property
    def longest_row(self) -> int:
        """Where a row is cut, in tokens: at `max_length`, or at the end of the last window."""
        if self.long_texts == "cut":
            return self.max_length
        # [CLS] and [SEP] stand in each window.
        return self.max_length + (self.max_windows - 1) * (self.max_length - 2 - self.stride)


@dataclass(frozen=True)
class Config:
    """Everything that a run needs. `presets` and files fill it; see `load_config`."""

    preset: str | None = setting(None, "a method: `attentune presets` lists them")
    model: ModelConfig = field(default_factory=ModelConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    labels: LabelsConfig = field(default_factory=LabelsConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    data: DataConfig = field(default_factory=DataConfig)
