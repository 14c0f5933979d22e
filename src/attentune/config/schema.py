"""The settings of a run, as frozen dataclasses whose field names are the keys of `config.yaml`.

Field metadata holds what the command line shows and checks: `help`, `choices`, and `minimum`/`maximum` (`open=True`
excludes the minimum itself). Names are those of transformers' `TrainingArguments` and `run_classification` where one
exists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


def setting(default: Any, help: str, **facts: Any) -> Any:
    """Make a dataclass field with a default, a help text and the metadata described in this module."""
    return field(default=default, metadata={"help": help, **facts})


@dataclass(frozen=True)
class BlurConfig:
    where: str = setting(
        "none",
        "what a Gaussian blur along the tokens is applied to, in each layer",
        choices=("none", "context", "value", "scores"),
    )
    sigma: float = setting(0.3, "standard deviation of the blur in tokens", minimum=0.001, maximum=100)
    size: int = setting(3, "window of the blur in tokens, odd", minimum=1)
    layers: str = setting("all", "the layers to blur: all, or comma-separated numbers from 1")
    learnable: str = setting(
        "no",
        "learn sigma, starting from the given value: one per layer or one per head",
        choices=("no", "layer", "head"),
    )


@dataclass(frozen=True)
class LayerMixConfig:
    kind: str = setting(
        "last",
        "which encoder layers the token vectors are computed from",
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
    ratio: int = setting(
        3, "squeeze: reduction ratio; the bottleneck has (number of layers / ratio) features", minimum=1
    )


@dataclass(frozen=True)
class TokenGateConfig:
    kind: str = setting(
        "none",
        "how tokens are weighted: ssa adds a head that scores the importance of each token",
        choices=("none", "ssa"),
    )
    beta: float = setting(
        0.5,
        "ssa: the weight of the head's vector; the importance-weighted token sum has 1 - beta (1: co-training only)",
        minimum=0,
        maximum=1,
    )
    share_weights: bool = setting(True, "ssa: one output layer for all positions; false: one per position")
    attention_threshold: float = setting(
        0.0, "ssa: tokens with an importance below this get no weight", minimum=0, maximum=1
    )


@dataclass(frozen=True)
class HeadConfig:
    kind: str = setting(
        "cls",
        "how token vectors are pooled to one vector per text; task-attention is self-attention for single texts and"
        " cross-attention for pairs",
        choices=("cls", "mean", "cls-mean", "self-attention", "cross-attention", "task-attention"),
    )
    beta: float = setting(
        0.5, "cls-mean: the weight of [CLS]; the mean of the other tokens has 1 - beta", minimum=0, maximum=1
    )
    pooler: str = setting(
        "auto",
        "dense + tanh after [CLS]: auto uses the encoder's pooler if its checkpoint has one",
        choices=("auto", "fresh", "none"),
    )
    dropout: float = setting(
        0.1, "dropout before the linear classifier, and in the head's attention blocks", minimum=0, maximum=0.99
    )
    layers: int | None = setting(
        None,
        "transformer blocks of self-attention (default: 2) or cross-attention (default: 1; 0 with bare)",
        minimum=0,
    )
    bare: bool = setting(False, "cross-attention: end with one block of attention only (no feed-forward layer)")
    init: str = setting(
        "default",
        "attention blocks: initialisation of queries, keys and values; uniform draws from 0.9 to 1",
        choices=("default", "uniform"),
    )
    attention_heads: int | None = setting(
        None, "attention blocks: number of attention heads (default: the encoder's)", minimum=1
    )
    combine: str = setting(
        "dot",
        "bi-encoder: dot product of both projected text vectors, or a linear layer on u, v, |u - v| and u * v",
        choices=("dot", "concat"),
    )
    projection: int | None = setting(
        None, "bi-encoder, dot: width of the projection (default: the encoder's width)", minimum=1
    )


@dataclass(frozen=True)
class ModelConfig:
    name_or_path: str = setting(
        "embedded",
        "encoder: embedded, a folder, or a hub name; a run folder also gives its slots, where they fit",
    )
    revision: str | None = setting(None, "hub revision of the encoder")
    dropout: float | None = setting(
        None, "dropout inside the encoder (default: as in its configuration)", minimum=0, maximum=0.99
    )
    trust_remote_code: bool = setting(
        False, "run code that comes with a hub model (only for models you trust); cannot be set in a file"
    )
    pair_encoding: str = setting(
        "cross-encoder",
        "how pairs are encoded: both texts in one sequence, or each separately (bi-encoder); ignored for single texts",
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
        "auto: cross-entropy for classes, mean squared error for scores; pearson: minus the correlation in the batch",
        choices=("auto", "cross-entropy", "binary-cross-entropy", "focal", "mse", "pearson", "corn"),
    )
    focal_gamma: float = setting(2.0, "loss focal: the focusing parameter gamma; 0 is cross-entropy", minimum=0)
    alpha: float = setting(0.7, "weight of the task loss; the token loss has 1 - alpha", minimum=0, maximum=1)
    token_loss_warmup_epochs: float = setting(
        0.0, "epochs over which the weight of the token loss rises from 0 to 1 - alpha", minimum=0
    )
    label_smoothing: float = setting(0.0, "share of the target spread over all classes", minimum=0, maximum=0.99)
    class_weights: Any = setting(None, "null, balanced, or one number per class (a list, or a mapping by label name)")
    ordinal_prediction: str = setting(
        "argmax",
        "ordinal classes: predict the most likely class, or the one nearest to the expected class number",
        choices=("argmax", "expected-value"),
    )


@dataclass(frozen=True)
class LabelsConfig:
    generator: str = setting(
        "none",
        "what is generated before each epoch: masked copies of training rows, or token labels (and by which method)",
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
        1.0, "masked rows per epoch, as a multiple of the training rows (gamma in the paper)", minimum=0, maximum=100
    )
    mask_share: float = setting(0.3, "share of the tokens of a text to mask", minimum=0, maximum=1)
    tolerance: float = setting(
        0.3, "regression: predictions that differ by at most this count as equal (in units of the scores)", minimum=0
    )
    reuse_predictions: bool = setting(
        True,
        "flip, released, classification: reuse training-time predictions as the correctness check; false: predict all"
        " rows again before each epoch",
    )
    targets: str = setting(
        "hard",
        "leave-one-out, gradient, integrated-gradients, lime: labels of 0 and 1, or values between them",
        choices=("hard", "soft"),
    )
    top_share: float = setting(
        0.3,
        "hard targets: the top share of a text's tokens, labelled 1; the bottom half is labelled 0, the rest not",
        minimum=0,
        maximum=0.5,
    )
    shuffle: bool = setting(False, "control: permute each epoch's token labels at random among the labelled tokens")
    aug_ratio_each: float = setting(
        0.2, "released: increase of the share of labelled samples per epoch", minimum=0, maximum=1
    )
    aug_threshold: float = setting(0.1, "released: probability that a token starts a masked span", minimum=0, maximum=1)
    rm_threshold: float = setting(
        0.7,
        "released: a draw above this masks 3 tokens, above 2 x this - 1 masks 2, otherwise 1",
        minimum=0,
        maximum=1,
    )
    double_ori: bool = setting(False, "released: add all original rows to the samples of each epoch")
    steps: int = setting(16, "integrated-gradients: steps on the path from the masked text to the text", minimum=1)
    samples: int = setting(64, "lime: masked copies per text", minimum=2)


@dataclass(frozen=True)
class TrainingConfig:
    output_dir: str | None = setting(None, "the run folder")
    overwrite_output_dir: bool = setting(False, "delete the content of the run folder first")
    resume: bool = setting(False, "continue from the newest intact checkpoint in the run folder")
    multi_task: bool = setting(
        False, "with data.tasks: train one shared encoder, with separate slots and classifiers per task"
    )
    task_sampling_exponent: float = setting(
        0.5, "multi_task: steps per task are proportional to (number of rows) ** exponent", minimum=0, maximum=1
    )
    learning_rate: float = setting(5e-5, "peak learning rate", minimum=0, open=True)
    encoder_learning_rate: float | None = setting(
        None, "peak learning rate of the encoder and its embeddings (default: learning_rate)", minimum=0, open=True
    )
    freeze_encoder: bool = setting(False, "train only the slots and the classifier, not the encoder")
    lora_rank: int | None = setting(
        None, "train LoRA adapters of this rank in the encoder's attention instead of the encoder", minimum=1
    )
    lora_alpha: float | None = setting(
        None,
        "LoRA outputs are scaled by lora_alpha / lora_rank (default: twice the rank)",
        minimum=0,
        open=True,
    )
    lora_dropout: float = setting(0.0, "dropout before the LoRA adapters", minimum=0, maximum=0.99)
    num_train_epochs: float = setting(
        3.0, "passes over the training rows (fractions are allowed)", minimum=0, open=True
    )
    max_steps: int = setting(
        -1, "stop after this many optimiser steps; overrides num_train_epochs (-1: off)", minimum=-1
    )
    per_device_train_batch_size: int = setting(32, "rows per training batch and device", minimum=1)
    per_device_eval_batch_size: int = setting(64, "rows per evaluation batch and device", minimum=1)
    gradient_accumulation_steps: int = setting(1, "batches per optimiser step", minimum=1)
    weight_decay: float = setting(0.01, "AdamW's weight decay (not applied to biases and norms)", minimum=0)
    adam_beta1: float = setting(0.9, "AdamW's beta 1", minimum=0, maximum=0.999999)
    adam_beta2: float = setting(0.999, "AdamW's beta 2", minimum=0, maximum=0.999999)
    adam_epsilon: float = setting(1e-8, "AdamW's epsilon", minimum=0)
    max_grad_norm: float = setting(1.0, "maximum norm for gradient clipping (0: no clipping)", minimum=0)
    lr_scheduler_type: str = setting(
        "linear",
        "learning rate schedule after the warm-up",
        choices=("linear", "cosine", "constant_with_warmup", "constant"),
    )
    warmup_ratio: float = setting(0.1, "share of the steps used for warm-up", minimum=0, maximum=1)
    warmup_steps: int = setting(0, "steps used for warm-up; overrides warmup_ratio if above 0", minimum=0)
    seed: int = setting(42, "random seed", minimum=0)
    precision: str = setting(
        "auto",
        "auto: bf16 on hardware with fast bf16 matrix products, otherwise fp32",
        choices=("auto", "fp32", "bf16", "fp16"),
    )
    use_cpu: bool = setting(False, "train on the CPU even if an accelerator is available")
    fused_layers: bool = setting(True, "use compiled kernels for BERT-like layers, on a CPU with bf16 and a C compiler")
    eval_strategy: str = setting("epoch", "when to score the validation rows", choices=("epoch", "steps", "no"))
    eval_steps: int | None = setting(None, "with eval_strategy steps: optimiser steps between evaluations", minimum=1)
    save_steps: int | None = setting(None, "optimiser steps between checkpoints (default: one per epoch)", minimum=1)
    save_total_limit: int = setting(2, "number of checkpoints to keep; the best one is always kept", minimum=1)
    load_best_model_at_end: bool = setting(False, "end with the best weights instead of the last ones")
    metric_for_best_model: str | None = setting(None, "metric that selects the best model (default: the task's first)")
    early_stopping_patience: int | None = setting(
        None, "stop after this many evaluations without improvement", minimum=1
    )
    early_stopping_threshold: float = setting(0.0, "smallest change that counts as an improvement", minimum=0)
    logging_steps: int = setting(10, "optimiser steps between lines in log.jsonl", minimum=1)
    calibrate: str = setting(
        "none",
        "at the end, fit a softmax temperature on held-out rows",
        choices=("none", "temperature"),
    )
    thresholds: str = setting(
        "none",
        "at the end, fit decision thresholds that maximise F1 on held-out rows (for binary and multi-label tasks)",
        choices=("none", "f1"),
    )
    report_to: str = setting(
        "none",
        "experiment tracker to log to; wandb is Weights & Biases",
        choices=("none", "tensorboard", "mlflow", "wandb"),
    )


@dataclass(frozen=True)
class DataConfig:
    task: str | None = setting(None, "a built-in task (`attentune tasks` lists them)")
    tasks: tuple[str, ...] | None = setting(
        None, "several built-in tasks: one run each, or one shared encoder with multi_task"
    )
    task_settings: Any = setting(
        None, "with tasks: a mapping of task-specific settings, such as {sts: {objective.loss: pearson}}"
    )
    data_dir: str | None = setting(None, "the folder with the published files of the task")
    dataset_name: str | None = setting(None, "a Hugging Face dataset: a hub name, or a folder from save_to_disk")
    dataset_config_name: str | None = setting(None, "the configuration of that dataset")
    train_file: str | None = setting(None, "your training rows: .csv .tsv .json .jsonl .parquet, also with .gz")
    validation_file: str | None = setting(None, "your validation rows (default: split off train_file)")
    test_file: str | None = setting(None, "your test rows")
    extra_train_files: tuple[str, ...] | None = setting(
        None, "additional training rows: comma-separated files, or folders from save_to_disk"
    )
    extra_train_weights: tuple[float, ...] | None = setting(
        None, "loss weight of the rows of each extra file (default: 1; 0: not used)", minimum=0
    )
    text_column: str | None = setting(None, "column of the (first) text")
    text_pair_column: str | None = setting(None, "column of the second text")
    label_column: str | None = setting(None, "column of the label")
    id_column: str | None = setting(None, "column of the row id (default: id, idx or index, otherwise the row number)")
    task_type: str | None = setting(
        None,
        "type of the labels (default: that of the built-in task; classification for custom data)",
        choices=("classification", "regression", "ordinal", "multi_label"),
    )
    label_separator: str | None = setting(None, "multi_label: separator between the labels in a cell (default: |)")
    label_names: tuple[str, ...] | None = setting(
        None, "the labels in order (ordinal: lowest first); default: the labels in the data, sorted"
    )
    validation_share: float = setting(
        0.1,
        "share of train_file to validate on if there is no validation file",
        minimum=0.001,
        maximum=0.9,
    )
    folds: int | None = setting(None, "cross-validation: number of stratified folds of train", minimum=2)
    fold: int | None = setting(None, "with folds: the validation fold, from 1; attentune compare runs all", minimum=1)
    fold_seed: int = setting(1, "with folds: the seed of the split", minimum=0)
    calibration_share: float | None = setting(
        None, "share of train that is held out for calibration", minimum=0.001, maximum=0.9
    )
    calibration_file: str | None = setting(None, "your rows for calibration, instead of a share of train")
    max_length: int = setting(
        128,
        "maximum length of a text or pair in tokens (bi-encoder: of each text); longer ones are truncated",
        minimum=4,
    )
    long_texts: str = setting(
        "cut",
        "single texts longer than max_length: truncate, or encode overlapping windows of max_length tokens",
        choices=("cut", "windows"),
    )
    stride: int = setting(32, "windows: overlap of neighbouring windows in tokens", minimum=0)
    max_windows: int = setting(8, "windows: maximum number per text; the rest is truncated", minimum=1)
    max_train_samples: int | None = setting(None, "train on a seeded, stratified sample of this many rows", minimum=1)
    max_eval_samples: int | None = setting(None, "evaluate on a seeded, stratified sample of this many rows", minimum=1)

    @property
    def extra_train(self) -> tuple[tuple[str, float], ...]:
        """The extra files with a weight above 0, and these weights."""
        files = self.extra_train_files or ()
        weights = self.extra_train_weights or (1.0,) * len(files)
        return tuple((file, weight) for file, weight in zip(files, weights, strict=True) if weight > 0)

    @property
    def longest_row(self) -> int:
        """The maximum length of a row in tokens: `max_length`, or that of all windows together."""
        if self.long_texts == "cut":
            return self.max_length
        # [CLS] and [SEP] are part of each window.
        return self.max_length + (self.max_windows - 1) * (self.max_length - 2 - self.stride)


@dataclass(frozen=True)
class Config:
    """The complete configuration of a run, filled from presets, files and overrides by `load_config`."""

    preset: str | None = setting(None, "a method: `attentune presets` lists them")
    model: ModelConfig = field(default_factory=ModelConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    labels: LabelsConfig = field(default_factory=LabelsConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    data: DataConfig = field(default_factory=DataConfig)
