"""The settings of a run, as frozen dataclasses whose field names are the keys of `config.yaml`.

The fields' metadata has what the command line shows and checks: `help`, `choices` (with `plugins`, also the parts of
other packages in that group of `attentune.plugins`), and `minimum`/`maximum` (`open=True` excludes the bounds). Names
are those of transformers' `TrainingArguments` and `run_classification` where one exists.
"""

from dataclasses import dataclass, field
from typing import Any

# The table of `baselines.registry`, which this room cannot import.
BASELINE_NAMES = ("majority", "tfidf-linear", "columns-linear", "frozen-linear", "cosine", "token-alignment")


def setting(default: Any, help: str, **facts: Any) -> Any:
    """Return a dataclass field with this default, help text and further metadata; choices may be words in one text."""
    if isinstance(facts.get("choices"), str):
        facts["choices"] = tuple(facts["choices"].split())
    return field(default=default, metadata={"help": help, **facts})


@dataclass(frozen=True)
class BlurConfig:
    where: str = setting(
        "none", "the tensor of each layer that a Gaussian blurs along the tokens", choices="none context value scores"
    )
    sigma: float = setting(0.3, "standard deviation of the blur in tokens", minimum=0.001, maximum=100)
    size: int = setting(3, "window of the blur in tokens, odd", minimum=1)
    layers: str = setting("all", "which layers are blurred: all, or comma-separated numbers from 1")
    learnable: str = setting(
        "no", "learn sigma, initialised with the given value: one per layer, or one per head", choices="no layer head"
    )
    kind: str = setting("gaussian", "the kernel of the blur", choices="gaussian", plugins="attentune.blurs")


@dataclass(frozen=True)
class LayerMixConfig:
    kind: str = setting(
        "last",
        "which encoder layers make the token matrix",
        choices="first second second-to-last last sum-last-4 sum-all mean-all weighted concat-last-4",
        plugins="attentune.layer_mixes",
    )
    squeeze: bool = setting(False, "rescale each layer by squeeze-and-excitation first")
    ratio: int = setting(3, "squeeze: the number of layers divided by this is the width of the bottleneck", minimum=1)
    init: str = setting(
        "neutral",
        "squeeze: neutral starts with every layer as it is; original at random factors between 0 and 1, as the paper's"
        " program",
        choices="neutral original",
    )


@dataclass(frozen=True)
class TokenGateConfig:
    kind: str = setting(
        "none",
        "how tokens are weighted: ssa adds a token head that scores each token's importance",
        choices="none ssa",
        plugins="attentune.token_gates",
    )
    beta: float = setting(
        0.5,
        "ssa: the weight of the head's vector; the importance-weighted tokens have 1 - beta (1: co-training only)",
        minimum=0,
        maximum=1,
    )
    share_weights: bool = setting(True, "ssa: one last linear layer for all positions; false: one per position")
    attention_threshold: float = setting(
        0.0, "ssa: tokens whose importance is below it get weight 0", minimum=0, maximum=1
    )


@dataclass(frozen=True)
class HeadConfig:
    kind: str = setting(
        "cls",
        "how tokens are pooled into one vector per text; task-attention is self-attention for single texts,"
        " cross-attention for pairs",
        choices="cls mean cls-mean self-attention cross-attention task-attention",
        plugins="attentune.heads",
    )
    beta: float = setting(
        0.5, "cls-mean: the weight of [CLS]; the mean of the other tokens has 1 - beta", minimum=0, maximum=1
    )
    pooler: str = setting(
        "auto",
        "dense + tanh after [CLS]: auto uses that of the encoder's checkpoint (with new weights where its last training"
        " did not use it); if there is none, a new one with blur or squeeze, else none",
        choices="auto fresh none",
    )
    dropout: float = setting(
        0.1, "dropout before the linear classifier (attention blocks have the encoder's)", minimum=0, maximum=0.99
    )
    layers: int | None = setting(
        None,
        "number of full attention blocks (if not given: 2 for self-attention; for cross-attention 1, for scores 3, or"
        " with bare one less)",
        minimum=0,
    )
    bare: bool = setting(False, "cross-attention: add one block without feed-forward part after the full ones")
    init: str = setting(
        "default",
        "attention blocks: initialisation of queries, keys and values; uniform draws from 0.9 to 1",
        choices="default uniform",
    )
    attention_heads: int | None = setting(
        None, "attention blocks: number of attention heads (the encoder's number if not given)", minimum=1
    )
    combine: str = setting(
        "scaled-dot",
        "bi-encoder: dot product of both texts' vectors u and v after one linear layer, with a trained scale and offset"
        " or (dot) as it is; their cosine, scaled; a linear layer on u, v, |u-v|, u*v; or that on unit vectors, with"
        " their cosine",
        choices="dot cosine concat concat-cosine scaled-dot",
    )
    projection: int | None = setting(
        None,
        "bi-encoder, dot products: output width of the linear layer (if not given: the encoder's, for scores 4 times"
        " that)",
        minimum=1,
    )


@dataclass(frozen=True)
class ModelConfig:
    name_or_path: str = setting(
        "embedded",
        "encoder: embedded, a folder (with a run folder its slots too, where they match), or a name on the hub",
    )
    revision: str | None = setting(None, "the hub revision of the encoder")
    dropout: float | None = setting(
        None, "dropout inside the encoder (that of its configuration if not given)", minimum=0, maximum=0.99
    )
    trust_remote_code: bool = setting(
        False, "run code that comes with a hub model (only for models that you trust); cannot be set in a file"
    )
    pair_encoding: str = setting(
        "cross-encoder",
        "how pairs are encoded: both texts in one sequence, or (bi-encoder) separately; ignored for single texts",
        choices="cross-encoder bi-encoder",
    )
    blur: BlurConfig = field(default_factory=BlurConfig)
    layer_mix: LayerMixConfig = field(default_factory=LayerMixConfig)
    token_gate: TokenGateConfig = field(default_factory=TokenGateConfig)
    head: HeadConfig = field(default_factory=HeadConfig)


@dataclass(frozen=True)
class ObjectiveConfig:
    loss: str = setting(
        "auto",
        "auto: cross-entropy for classes, mean squared error for regression (pearson for a bi-encoder's dot product);"
        " pearson: minus the batch's correlation; softmax-cross-entropy: of probabilities taken as logits",
        choices="auto cross-entropy binary-cross-entropy focal mse pearson corn softmax-cross-entropy",
        plugins="attentune.losses",
    )
    focal_gamma: float = setting(2.0, "focal loss gamma; 0 is cross-entropy", minimum=0)
    alpha: float = setting(
        0.7, "the weight of the task's loss; the token head's loss has 1 - alpha", minimum=0, maximum=1
    )
    token_loss_warmup_epochs: float = setting(
        0.0, "epochs over which the weight of the token head's loss rises from 0 to 1 - alpha", minimum=0
    )
    label_smoothing: float = setting(0.0, "share of the target spread over all classes", minimum=0, maximum=0.99)
    class_weights: Any = setting(
        None, "null, balanced, or one number per class (a list, or a mapping by label name)", yaml=True
    )
    debias: str = setting(
        "none",
        "train against shortcuts: product adds the log-probabilities of a weak linear model of frequent words to the"
        " logits in training",
        choices="none product",
    )
    ordinal_prediction: str = setting(
        "argmax",
        "ordered classes: predict the most likely class, or the one closest to the expected class number",
        choices="argmax expected-value",
    )


@dataclass(frozen=True)
class LabelsConfig:
    generator: str = setting(
        "none",
        "what is made from the training rows before each epoch: masked copies, or token labels",
        choices="none masked-rows corruption flip",
        plugins="attentune.label_generators",
    )
    ratio: float = setting(
        1.0,
        "masked rows per epoch, as a multiple of the training rows (the paper's gamma); corruption: the share of rows"
        " that are changed",
        minimum=0,
        maximum=100,
    )
    mask_share: float = setting(0.3, "masked-rows, flip: share of a text's tokens to mask", minimum=0, maximum=1)
    tolerance: float = setting(
        0.3,
        "regression: predictions that differ by at most this count as equal (on the scale of the labels)",
        minimum=0,
    )
    shuffle: bool = setting(False, "control: shuffle an epoch's labels among the labelled tokens")
    options: Any = setting(
        None, "settings of a generator of another package, a mapping such as {name: value}", yaml=True
    )


@dataclass(frozen=True)
class TrainingConfig:
    output_dir: str | None = setting(None, "the run folder (train FILE makes one in runs/ if not given)")
    overwrite_output_dir: bool = setting(False, "empty the run folder first if it is not empty")
    resume: bool = setting(False, "resume from the newest intact checkpoint in the run folder")
    learning_rate: float | None = setting(
        None, "peak learning rate (if not given: by the encoder's size)", minimum=0, open=True
    )
    encoder_learning_rate: float | None = setting(
        None,
        "peak learning rate of the encoder, including embeddings (learning_rate if not given)",
        minimum=0,
        open=True,
    )
    linear_probe: bool = setting(
        False,
        "LP-FT: start the classifier at a regularised linear model, fitted to the training rows before the first step",
    )
    freeze_encoder: bool = setting(False, "train the slots and the classifier only; the encoder is frozen")
    lora_rank: int | None = setting(
        None, "train low-rank adapters of this rank in the encoder's attention instead of the encoder", minimum=1
    )
    lora_alpha: float | None = setting(
        None, "the adapters' output is scaled by this over the rank (twice the rank if not given)", minimum=0, open=True
    )
    lora_dropout: float = setting(0.0, "dropout before the adapters", minimum=0, maximum=0.99)
    num_train_epochs: float | None = setting(
        None,
        "passes over the training rows, a fraction stops within one (if not given: by their number)",
        minimum=0,
        open=True,
    )
    max_steps: int = setting(-1, "stop after this many optimiser steps, regardless of the epochs (-1: off)", minimum=-1)
    per_device_train_batch_size: int | None = setting(
        None, "rows per training batch and device (if not given: 16 or 32, by their number and length)", minimum=1
    )
    per_device_eval_batch_size: int | None = setting(
        None,
        "rows per evaluation batch and device (if not given: as many as make 2,048 tokens on a CPU, 16,384 on a GPU)",
        minimum=1,
    )
    gradient_accumulation_steps: int = setting(1, "batches per optimiser step", minimum=1)
    weight_decay: float = setting(0.01, "AdamW's weight decay (not on biases and norms)", minimum=0)
    l2_sp: float = setting(
        0.0,
        "L2-SP: decay all trained weights towards their values at the start, with this strength; replaces weight_decay",
        minimum=0,
    )
    adam_beta1: float = setting(0.9, "AdamW's beta 1", minimum=0, maximum=0.999999)
    adam_beta2: float = setting(0.999, "AdamW's beta 2", minimum=0, maximum=0.999999)
    adam_epsilon: float = setting(1e-8, "AdamW's epsilon", minimum=0)
    max_grad_norm: float = setting(1.0, "gradients are clipped to this norm (0: not clipped)", minimum=0)
    lr_scheduler_type: str = setting(
        "linear", "learning rate schedule after the warm-up", choices="linear cosine constant_with_warmup constant"
    )
    warmup_ratio: float = setting(0.1, "share of the steps used for warm-up", minimum=0, maximum=1)
    warmup_steps: int = setting(0, "warm-up steps; overrides warmup_ratio if above 0", minimum=0)
    seed: int = setting(42, "the seed of every random choice", minimum=0)
    precision: str = setting(
        "auto",
        "precision of training; auto: bf16 where the hardware computes it fast, else fp32",
        choices="auto fp32 bf16 fp16",
    )
    use_cpu: bool = setting(False, "train on the CPU even where there is an accelerator")
    fused_layers: bool = setting(
        True, "train the encoder's layers with compiled C code, on a CPU with bf16 and a C compiler"
    )
    eval_strategy: str | None = setting(
        None,
        "when to score the validation rows (if not given: each epoch, or ten times in a run of more epochs)",
        choices="epoch steps no",
    )
    eval_steps: int | None = setting(None, "with eval_strategy steps: optimiser steps between scores", minimum=1)
    save_steps: int | None = setting(
        None, "optimiser steps between checkpoints (if not given: one per epoch, at most ten in a run)", minimum=1
    )
    save_total_limit: int = setting(2, "checkpoints kept: the newest, and always the best", minimum=1)
    load_best_model_at_end: bool | None = setting(
        None,
        "end with the weights that scored best, not with the last (if not given: from 100 validation rows on;"
        " never in comparisons)",
    )
    metric_for_best_model: str | None = setting(
        None, "the metric that chooses the best (the task's first if not given)"
    )
    early_stopping_patience: int | None = setting(
        None, "stop after this many scores without an improvement, with the best weights", minimum=1
    )
    early_stopping_threshold: float = setting(0.0, "the smallest change that counts as an improvement", minimum=0)
    logging_steps: int = setting(10, "optimiser steps between lines in log.jsonl", minimum=1)
    calibrate: str = setting(
        "none", "fit a softmax temperature on held-out rows at the end of the run", choices="none temperature"
    )
    thresholds: str = setting(
        "none",
        "fit decision thresholds that maximise F1 on the same rows (several labels per row, or two classes)",
        choices="none f1",
    )
    reject: float | None = setting(
        None,
        "reject texts of no class: below a score that loses at most this share of right predictions on held-out rows"
        " (0.05 if it stands without a value)",
        minimum=0.0001,
        maximum=0.5,
        bare="0.05",
    )
    baselines: str = setting(
        "auto",
        "baselines to fit on the same rows after training and to compare with: auto (all that fit the rows), none, or"
        " comma-separated names",
    )
    report_to: str = setting(
        "none", "also log for a tracker; wandb is Weights & Biases", choices="none tensorboard mlflow wandb"
    )


@dataclass(frozen=True)
class DataConfig:
    task: str | None = setting(None, "a known task (`attentune list tasks` lists them)")
    data_dir: str | None = setting(None, "the folder of the task's files, as they were published")
    dataset_name: str | None = setting(
        None, "a Hugging Face data set: a hub name, or a folder from save_to_disk or of files"
    )
    dataset_config_name: str | None = setting(None, "the configuration of that data set")
    train_file: str | None = setting(
        None, "your training rows: .csv .tsv .json .jsonl, also with .gz; .parquet .xlsx .xls .ods"
    )
    validation_file: str | None = setting(None, "your validation rows (a part of train_file is split off if not given)")
    test_file: str | None = setting(None, "your test rows")
    extra_train_files: tuple[str, ...] | None = setting(
        None,
        "additional training rows, mixed into train: comma-separated files",
        yaml=True,
    )
    extra_train_weights: tuple[float, ...] | None = setting(
        None, "the loss weight of each extra file's rows (1 each if not given; 0: not used)", minimum=0, yaml=True
    )
    text_column: str | None = setting(
        None,
        "the column of the (first) text; several, comma-separated, are joined with their names, a line each",
        columns=True,
    )
    text_pair_column: str | None = setting(None, "the column of the second text")
    label_column: str | None = setting(
        None,
        "the column of the label; several, comma-separated, are labels of 0 and 1 (multi_label), probabilities of"
        " classes, or classes that annotators chose",
        columns=True,
        yaml=True,
    )
    extra_columns: tuple[str, ...] | None = setting(
        None,
        "auto: columns of numbers or categories beside the text, comma-separated; their kind is found, or said as in"
        " price:number,zip:category",
    )
    id_column: str | None = setting(None, "the column of the row's id (else id, idx or index, else the row's number)")
    task_type: str | None = setting(
        None,
        "the type of the labels (default: that of the known task; classification for your own data)",
        choices="classification regression ordinal multi_label",
    )
    label_separator: str | None = setting(
        None, "multi_label: the separator of labels in a text, such as ; or \\n (found if not given, else |)"
    )
    label_names: tuple[str, ...] | None = setting(
        None, "the labels in order (ordinal: lowest first); default: those in the data, sorted", yaml=True
    )
    ignore_labels: tuple[str, ...] | None = setting(
        None,
        'labels that mean no label: their rows are left out (comma-separated, "" for empty ones; default: - in NLI)',
        words=True,
        yaml=True,
    )
    ignore_words: tuple[str, ...] | None = setting(
        None,
        "words, marks or phrases that the model never sees: they are left out of all texts, whatever their case"
        " (comma-separated, or a file with one a line)",
        words=True,
        file=True,
        yaml=True,
    )
    validation_share: float = setting(
        0.1, "share of train_file that is split off if there is no validation file (0: none)", minimum=0, maximum=0.9
    )
    folds: int | None = setting(None, "cross-validation: the number of stratified folds of train", minimum=2)
    fold: int | None = setting(None, "with folds: the fold to score on, from 1; compare runs all", minimum=1)
    fold_seed: int = setting(1, "with folds: the seed of the split", minimum=0)
    calibration_share: float | None = setting(
        None, "share of train that is held out for calibration", minimum=0.001, maximum=0.9
    )
    calibration_file: str | None = setting(None, "your rows for calibration, instead of a part of train")
    max_length: int = setting(
        128,
        "maximum tokens of a text or pair (bi-encoder: of each text of a pair); longer ones are truncated",
        minimum=4,
    )
    long_texts: str = setting(
        "cut",
        "single texts longer than max_length: truncate them, or read them in overlapping windows of max_length tokens",
        choices="cut windows",
    )
    stride: int = setting(32, "windows: tokens that a window shares with the previous one", minimum=0)
    max_windows: int = setting(8, "windows: the maximum number per text; longer texts are truncated", minimum=1)
    max_train_samples: int | None = setting(None, "train on a seeded, stratified sample of this many rows", minimum=1)
    max_eval_samples: int | None = setting(
        None, "score on a stratified sample of this many rows, equal for all seeds", minimum=1
    )
    delimiter: str | None = setting(None, "the separator of fields in .csv and .tsv files (found if not given)")
    encoding: str | None = setting(
        None, "the encoding of .csv and .tsv files that are not UTF-8, such as cp1252 (found if not given)"
    )
    sheet: str | None = setting(None, "the sheet of a spreadsheet, if it has several (found if not given)")
    file_format: str | None = setting(
        None,
        "the format of files whose names do not say it, and of standard input, where it is found if not given (txt: one"
        " text a line)",
        choices="csv tsv json jsonl parquet txt",
    )
    header: bool = setting(
        True,
        "whether the first row of .csv, .tsv and spreadsheets has the column names; without it (--no_header) the"
        " columns are column_1, column_2, ...",
    )
    skip_broken_rows: bool = setting(
        False,
        "leave out rows with a wrong number of fields, without a label, or that repeat the header; they are written to"
        " FILE.left_out.jsonl",
    )

    @property
    def extra_train(self) -> tuple[tuple[str, float], ...]:
        """The extra files with a weight above 0, each with its weight."""
        files = self.extra_train_files or ()
        weights = self.extra_train_weights or (1.0,) * len(files)
        return tuple((file, weight) for file, weight in zip(files, weights, strict=True) if weight > 0)

    @property
    def longest_row(self) -> int:
        """The length in tokens at which a row is truncated: `max_length`, or the end of the last window."""
        if self.long_texts == "cut":
            return self.max_length
        # Each window has its own [CLS] and [SEP].
        return self.max_length + (self.max_windows - 1) * (self.max_length - 2 - self.stride)


@dataclass(frozen=True)
class Config:
    """All settings of a run, filled from presets, files and overrides by `load_config`."""

    preset: str | None = setting(None, "a method: `attentune list presets` lists them")
    baseline: str | None = setting(
        None,
        "fit this baseline instead of fine-tuning an encoder; presets of the same names set it",
        choices=BASELINE_NAMES,
    )
    model: ModelConfig = field(default_factory=ModelConfig)
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    labels: LabelsConfig = field(default_factory=LabelsConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    data: DataConfig = field(default_factory=DataConfig)
