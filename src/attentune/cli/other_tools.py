"""What flags of other tools are called here: of run_glue and TrainingArguments, SetFit, scikit-learn, Ludwig, fastText.

`ALIASES` are accepted, since their values mean the same. `MEANT` are flags whose values mean something else, or that
have no counterpart: the message says what to write.
"""

from __future__ import annotations

from attentune.config import Config, preset_names, to_flat

# Names that people and other tools use for our settings.
ALIASES = {
    "lr": "learning_rate",
    "batch_size": "per_device_train_batch_size",
    "train_batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size",
    "epochs": "num_train_epochs",
    "num_epochs": "num_train_epochs",
    "n_epochs": "num_train_epochs",
    "max_epochs": "num_train_epochs",
    "model": "name_or_path",
    "model_name": "name_or_path",
    "model_id": "name_or_path",
    "pretrained_model_name_or_path": "name_or_path",
    "text": "text_column",
    "text_col": "text_column",
    "x_col": "text_column",
    "text_pair": "text_pair_column",
    "label": "label_column",
    "label_col": "label_column",
    "y_col": "label_column",
    "target": "label_column",
    "target_column": "label_column",
    "task_name": "task",
    "text_column_name": "text_column",
    "text_column_names": "text_column",
    "text_pair_column_name": "text_pair_column",
    "label_column_name": "label_column",
    "train_path": "train_file",
    "train_data": "train_file",
    "val_file": "validation_file",
    "dev_file": "validation_file",
    "eval_file": "validation_file",
    "test_path": "test_file",
    "max_seq_length": "max_length",
    "max_seq_len": "max_length",
    "max_len": "max_length",
    "label_smoothing_factor": "label_smoothing",
    "evaluation_strategy": "eval_strategy",
    "metric_name": "metric_for_best_model",
    "metric": "metric_for_best_model",
    "lr_scheduler": "lr_scheduler_type",
    "scheduler": "lr_scheduler_type",
    "random_state": "seed",
    "random_seed": "seed",
    "patience": "early_stopping_patience",
    "grad_accum": "gradient_accumulation_steps",
    "output": "output_dir",
    "out_dir": "output_dir",
    "sep": "delimiter",
    "no_cuda": "use_cpu",
    "sheet": "table",
    "sheet_name": "table",
}
_AUTOMATIC = "There is no such flag here: a GPU is used where there is one; --use_cpu trains on the CPU."
_STEPS = "train always trains, scores the validation rows and saves: leave it out."
_TIME = "The time that auto may take is --time_limit, such as --time_limit 10m."
_RUN = "A checkpoint is given in the place of the run, as in `attentune predict RUN/checkpoint-100`."
_PROBABILITIES = "predict always writes the probability of each class, in the columns p_CLASS."
# From a flag to what to write instead.
MEANT = {
    "dataset": "A file is given as in `attentune train FILE`, a data set of the Hugging Face hub with --dataset_name.",
    "data": "A file is given as in `attentune train FILE`, a known task with --task and --data_dir.",
    "data_path": "A file is given as in `attentune train FILE`; --data_dir is the folder of a known task's files.",
    "data_file": "A file is given as in `attentune train FILE`.",
    "input": "predict and explain take --text or --input_file; train takes the file as in `attentune train FILE`.",
    "predict_file": "predict and explain take --input_file.",
    "file": "predict and explain take --input_file; train takes the file as in `attentune train FILE`.",
    "texts": "predict and explain take one text with --text, many in a file with --input_file.",
    "gpu": _AUTOMATIC,
    "gpus": _AUTOMATIC,
    "cuda": _AUTOMATIC,
    "device": _AUTOMATIC,
    "do_train": _STEPS,
    "do_eval": _STEPS,
    "do_predict": "`attentune predict RUN --input_file FILE` predicts with the finished run.",
    "test_size": "The share of rows to validate on is --validation_share (default 0.1).",
    "validation_split": "The share of rows to validate on is --validation_share (default 0.1).",
    "val_split": "The share of rows to validate on is --validation_share (default 0.1).",
    "n_splits": "Cross-validation is --folds N, as in `attentune compare FILE --folds 5`.",
    "cv": "Cross-validation is --folds N, as in `attentune compare FILE --folds 5`.",
    "method": "A method is a preset: --preset NAME; `attentune list presets` lists them.",
    "algorithm": "A method is a preset: --preset NAME; `attentune list presets` lists them.",
    "num_iterations": "This is SetFit's; the nearest here is --preset frozen-linear, or --num_train_epochs.",
    "body_learning_rate": "The learning rate of the encoder is --encoder_learning_rate.",
    "head_learning_rate": "The learning rate of the classifier is --learning_rate, that of the encoder"
    " --encoder_learning_rate.",
    "optimizer": "The optimiser is AdamW: --weight_decay, --adam_beta1, --adam_beta2 and --adam_epsilon set it.",
    "optim": "The optimiser is AdamW: --weight_decay, --adam_beta1, --adam_beta2 and --adam_epsilon set it.",
    "max_iter": "The length of training is --num_train_epochs or --max_steps.",
    "gamma": "The focal loss's gamma is --focal_gamma, with --loss focal.",
    "class_weight": "The weights of the classes are --class_weights, such as --class_weights balanced.",
    "num_labels": "The labels are those of the rows: leave it out.",
    "num_classes": "The labels are those of the rows: leave it out.",
    "output_directory": "The run folder is --output_dir.",
    "model_path": "A finished run is given without a flag, as in `attentune predict RUN`; the encoder to train with is"
    " --model_name_or_path.",
    "run": "A finished run is given without a flag, as in `attentune predict RUN`.",
    "config_file": "A file of settings is --config.",
    "save_dir": "The run folder is --output_dir.",
    "presets": "train trains one preset, --preset NAME; `attentune compare FILE --presets A,B` trains several.",
    "models": "One encoder is --model_name_or_path; `attentune auto FILE --encoders A,B` tries several.",
    "resume_from_checkpoint": "--resume goes on with the last checkpoint in --output_dir.",
    "lora": "Low-rank adapters are --lora_rank N.",
    "use_lora": "Low-rank adapters are --lora_rank N.",
    "quantize": "A finished run is quantized by `attentune export RUN --quantize int8`.",
    "warmup": "The warm-up is --warmup_ratio (a share of training) or --warmup_steps.",
    "time": _TIME,
    "timeout": _TIME,
    "time_budget": _TIME,
    "max_time": _TIME,
    "output_path": "predict and explain write --output_file; the run folder of train is --output_dir.",
    "checkpoint": _RUN,
    "ckpt": _RUN,
    "checkpoint_path": _RUN,
    "proba": _PROBABILITIES,
    "predict_proba": _PROBABILITIES,
    "probabilities": _PROBABILITIES,
    "return_all_scores": _PROBABILITIES,
    "top_k": _PROBABILITIES,
    "workers": "serve is one process, which puts requests into batches; for more, start several on different --port.",
    "n_jobs": "Commands that train or predict in several processes take --jobs.",
    "num_workers": "There is no such flag here: rows are prepared in the process that trains.",
    "verbose": "There is no such flag here: progress goes to standard error; --quiet turns it off.",
}


def hint(name: str) -> str | None:
    """Say what to write for a flag, given without its hyphens; None if it is of no tool that is known here."""
    if name in MEANT:
        return MEANT[name]
    if (preset := name.replace("_", "-")) in preset_names():
        return f"{preset} is a preset: --preset {preset}."
    settings = [setting for setting in to_flat(Config()) if setting.rpartition(".")[2] == name]
    if settings:
        return f"It is a setting without a flag of this command: --set {' or '.join(settings)}=VALUE."
    return None
