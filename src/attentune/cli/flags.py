"""Command-line flags generated from the settings, with the names of `TrainingArguments` and `run_classification`."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import yaml

from attentune.cli.commands import MODES
from attentune.config import Config, load_config, preset_names, to_flat
from attentune.config.parse import coerce, did_you_mean, nearest
from attentune.config.schema import DataConfig, ModelConfig, ObjectiveConfig, TrainingConfig
from attentune.errors import ConfigError
from attentune.execution.executor import EXECUTORS, ExecutorOptions


def add_executor_flags(made: Parser) -> None:
    """Add the flags of the executor."""
    made.add_argument(
        "--executor",
        metavar="|".join(EXECUTORS),
        default="local",
        help="execute runs in processes of this machine, on a Ray cluster or as SLURM jobs (default: local)",
    )
    made.add_argument("--jobs", metavar="N", help="runs at a time (default: one per core, or one per GPU)")
    made.add_argument(
        "--ray_address",
        metavar="HOST:PORT",
        help="with --executor ray: the cluster (default: the one of RAY_ADDRESS, else a new one on this machine)",
    )
    made.add_argument("--cpus_per_run", metavar="N", default="1", help="with ray or slurm: cores of each (default: 1)")
    made.add_argument(
        "--gpus_per_run",
        metavar="N",
        default="0",
        help="with ray or slurm: GPUs of each; with ray also 0.25 (default: 0)",
    )
    made.add_argument(
        "--processes_per_run",
        metavar="N",
        default="1",
        help="with ray or slurm: processes that train a run together, by torchrun (default: 1)",
    )
    made.add_argument(
        "--slurm",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="with --executor slurm: a parameter of submitit: partition=gpu, timeout_min=120, mem_gb=8 (repeatable)",
    )


def executor_options(parsed: Any, problems: list[str]) -> ExecutorOptions:
    """Return the options that the flags give; append errors to `problems`."""
    try:
        gpus = float(parsed.gpus_per_run)
    except ValueError:
        gpus = 0.0
        problems.append(f"--gpus_per_run: got {parsed.gpus_per_run!r}, expected a number such as 1 or 0.25.")
    slurm = []
    for text in parsed.slurm:
        name, equals, value = text.partition("=")
        if not equals or not name.isidentifier():
            problems.append(f"--slurm: got {text!r}, expected NAME=VALUE such as partition=gpu.")
        else:
            slurm.append((name, yaml.safe_load(value) if value else ""))
    options = ExecutorOptions(
        executor=parsed.executor,
        jobs=whole_number("--jobs", parsed.jobs, problems),
        ray_address=parsed.ray_address,
        cpus_per_run=whole_number("--cpus_per_run", parsed.cpus_per_run, problems) or 1,
        gpus_per_run=gpus,
        processes_per_run=whole_number("--processes_per_run", parsed.processes_per_run, problems) or 1,
        slurm=tuple(slurm),
    )
    try:
        options.check()
    except ConfigError as error:
        problems += error.problems
    return options


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
    "sheet_name": "sheet",
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


# Those that the help shows.
_SHORT = ("lr", "batch_size", "epochs", "model", "text", "label")
# The settings that the help of commands that train shows; --help-all shows the others too.
MOST_USED = (
    "data.text_column",
    "data.text_pair_column",
    "data.label_column",
    "data.validation_file",
    "data.test_file",
    "data.task",
    "data.data_dir",
    "data.task_type",
    "data.max_length",
    "data.long_texts",
    "model.name_or_path",
    "training.output_dir",
    "training.overwrite_output_dir",
    "training.resume",
    "training.num_train_epochs",
    "training.learning_rate",
    "training.per_device_train_batch_size",
    "training.precision",
    "training.early_stopping_patience",
    "training.seed",
)
_SOURCE = ("task", "data_dir", "dataset_name", "dataset_config_name")
_COLUMNS = ("text_column", "text_pair_column", "label_column", "id_column", "label_separator")
# The data settings that a finished run obeys: for texts to predict, and for labelled rows. Others, such as
# `max_length`, are those of its training.
TEXT_SETTINGS = tuple(
    f"data.{name}"
    for name in (*_SOURCE, *_COLUMNS, "delimiter", "encoding", "sheet", "file_format", "header", "max_eval_samples")
)
_NOT_OF_RUNS = ("tasks", "task_settings", "extra_train_files", "extra_train_weights", "max_length", "long_texts",
                "stride", "max_windows")  # fmt: skip
ROW_SETTINGS = tuple(f"data.{field.name}" for field in dataclasses.fields(DataConfig) if field.name not in _NOT_OF_RUNS)
# The name of the file of training rows that is given without a flag.
_FILE = "FILE"
# The attribute of parsed arguments that has the name of the command.
_COMMAND = "command"
# Flags that set a setting to a fixed value.
_SHORTHANDS = {
    "bf16": ("training.precision", "bf16"),
    "fp16": ("training.precision", "fp16"),
    "do_regression": ("data.task_type", "regression"),
    "no_header": ("data.header", "false"),
}
# Settings with several values, which may be written as YAML.
_LISTS = (
    "objective.class_weights",
    "data.label_column",
    "data.label_names",
    "data.ignore_labels",
    "data.extra_train_files",
    "data.extra_train_weights",
)
_SECTIONS: tuple[tuple[str, type], ...] = (
    ("data", DataConfig),
    ("model", ModelConfig),
    ("training", TrainingConfig),
    ("objective", ObjectiveConfig),
)


# The commands that use a finished run, and obey no settings of training. Like doctor and suggest they read rows once.
_OF_RUNS = ("predict", "evaluate", "explain", "calibrate", "stress", "label", "layers", "faithfulness")


class _HelpOnAll(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *given: Any, **options: Any) -> NoReturn:
        if isinstance(parser, Parser):
            parser.less_used = []
        parser.print_help()
        parser.exit()


class Parser(argparse.ArgumentParser):
    """An argument parser that accepts hyphens or underscores, and raises `ConfigError` instead of exiting."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self._command = next(iter(self.prog.split()[1:]), "")
        self.less_used: list[argparse.Action] = []  # flags that only --help-all shows
        if (mode := MODES.get(self._command)) is not None:
            takes: dict[str, Any] = {"choices": mode.choices} if mode.choices else {"action": "store_true"}
            self.add_argument(f"--{mode.flag}", help=mode.help, **takes)

    def format_help(self) -> str:
        """Format the help, without the flags of `less_used`."""
        texts = [action.help for action in self.less_used]
        for action in self.less_used:
            action.help = argparse.SUPPRESS
        try:
            return super().format_help()
        finally:
            for action, text in zip(self.less_used, texts, strict=True):
                action.help = text

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith("?") else "."
        raise ConfigError([*self._unknown(), f"{message}{end} See {self.prog} --help."])

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            said = f"got {value!r}, expected one of {', '.join(known)}.{did_you_mean(value, known)}"
            raise argparse.ArgumentError(action, said.removesuffix("."))

    def _known(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings]

    def _unknown(self) -> list[str]:
        """Return a message for each unknown flag of the command line, for where argparse stops at another mistake."""
        known = self._known()
        flags = [word.split("=")[0] for word in self._words if word.startswith("--") and " " not in word.split("=")[0]]
        return [self._unknown_flag(flag, known) for flag in flags if flag not in (*known, "--")]

    def _unknown_flag(self, flag: str, known: Sequence[str]) -> str:
        return f"{flag}: unknown flag.{self._hint(flag, known)} See {self.prog} --help."

    def _hint(self, flag: str, known: Sequence[str]) -> str:
        """Return what is meant by an unknown flag, if that can be told."""
        if self._command in _OF_RUNS:
            if flag in ("--output", "--out", "--out_file", "--save_to") and "--output_file" in known:
                return " The file to write is --output_file."
            setting = _setting_of(flag)
            if setting is not None:
                return f" It is a setting of training ({setting}), which a finished run keeps."
        known_elsewhere = hint(flag.removeprefix("--"))
        return did_you_mean(flag, known) if known_elsewhere is None else f" {known_elsewhere}"

    def _place(self, argument: str, words: Sequence[str]) -> str:
        """Return where an argument that stands in no place belongs, if that can be told."""
        known = {flag: action for action in self._actions for flag in action.option_strings}
        before = next((word for word in reversed(words[: words.index(argument)]) if word.startswith("--")), None)
        if argument.startswith("-"):
            such = nearest(f"-{argument}".split("=")[0], known) or "--output_dir"
            return f" Flags have two hyphens and a whole word, such as {such}."
        if before in known and "," in str(known[before].metavar):
            first = words[words.index(before) + 1]
            return f" Several values have commas between them; did you mean {before} {first},{argument}?"
        has_run = any(action.dest == "run" for action in self._actions)
        is_file = bool(Path(argument).suffix) and not any(sign.isspace() for sign in argument)
        if is_file and (self.prog.endswith("evaluate") or "--input_file" in known):
            flag = "--validation_file" if self.prog.endswith("evaluate") else "--input_file"
            return f" Did you mean {flag} {argument}?"
        if "--text" in known and has_run:
            return f" Did you mean --text {shlex.quote(argument)}?"
        return ""

    def parse(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Parse the arguments; return the values and one message for each unknown flag."""
        # argparse replaces a value of "--" by an empty list.
        empty = [argument for argument in arguments if argument.startswith("--") and argument.endswith("=--")]
        if empty:
            raise ConfigError([f"{argument}: expected a value after the equals sign." for argument in empty])
        self._words = words = [_normalised(argument) for argument in arguments]
        parsed, unknown = self.parse_known_args(words)
        file = getattr(parsed, _FILE.lower(), None)
        if any(before in unknown and word == file for before, word in itertools.pairwise(words)):
            setattr(parsed, _FILE.lower(), None)  # the value of an unknown flag, not a file
        known = self._known()
        setattr(parsed, _COMMAND, self._command)
        problems = []
        for argument in unknown:
            flag = argument.split("=")[0]
            if flag.startswith("--"):
                problems.append(self._unknown_flag(flag, known))
            elif not problems:
                problems.append(
                    f"{argument!r}: unexpected argument.{self._place(argument, words)} See {self.prog} --help."
                )
        return parsed, problems


def _setting_of(flag: str) -> str | None:
    """Return the dotted name of the setting of a flag; None if it is that of no setting."""
    name = flag.removeprefix("--")
    name = "name_or_path" if name == "model_name_or_path" else ALIASES.get(name, name)
    sections = (section for section, cls in _SECTIONS if name in {field.name for field in dataclasses.fields(cls)})
    return next((f"{section}.{name}" for section in sections), None)


def with_section(text: str) -> str:
    """Complete NAME=VALUES to SECTION.NAME=VALUES where the name alone, or a synonym, tells the setting."""
    name, equals, values = text.partition("=")
    setting = None if "." in name else _setting_of(f"--{name.strip().replace('-', '_')}")
    return text if setting is None or not equals else f"{setting}={values}"


def _near_setting(name: str) -> str | None:
    """Return the dotted name of the setting that is nearest to a name without a section; None if none is near."""
    settings = {setting.rpartition(".")[2]: setting for setting in reversed(to_flat(Config()))}
    near = nearest(name.strip().replace("-", "_"), settings)
    return None if near is None else settings[near]


def _elsewhere(name: str) -> str | None:
    """Return the setting of the same name in another section, where the named section has none such."""
    section, _, key = name.partition(".")
    own = next((cls for known, cls in _SECTIONS if known == section), None)
    if own is None or key in {field.name for field in dataclasses.fields(own)}:
        return None
    return _setting_of(f"--{key.replace('-', '_')}")


def _normalised(argument: str) -> str:
    if not argument.startswith("--") or argument == "--":
        return argument
    name, equals, value = argument[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


def add_config_flags(
    parser: Parser,
    sections: Iterable[str] = ("data", "model", "training"),
    *,
    only: Collection[str] | None = None,
    first: Sequence[str] = (),
) -> None:
    """Add a flag for each setting of these sections, and `--preset`, `--config` and `--set` for "training".

    With `only`, dotted names, add the flags of these settings and no others. With `first`, the help shows these, and
    all with --help-all.
    """
    wanted = set(sections)
    known = {f"{section}.{field.name}": field for section, cls in _SECTIONS for field in dataclasses.fields(cls)}
    if first:
        parser.add_argument("--help_all", action=_HelpOnAll, nargs=0, help="show the flags of all settings and exit")
        group = parser.add_argument_group("most used")
        for name in first:
            _add_flag(group, name.split(".")[0], known[name])
    if "training" in wanted and only is None:
        wanted.add("objective")
        group = parser.add_argument_group("method")
        group.add_argument("--preset", help="a method; `attentune list presets` lists them (default: bert)")
        group.add_argument("--config", metavar="FILE", help="a YAML file of settings, such as the config.yaml of a run")
        group.add_argument(
            "--set",
            action="append",
            default=[],
            metavar="SECTION.KEY=VALUE",
            help="any setting, such as model.head.kind=mean",
        )
    for section, cls in _SECTIONS:
        if section in wanted:
            group = parser.add_argument_group(section)
            for field in dataclasses.fields(cls):
                name = f"{section}.{field.name}"
                if field.metadata and name not in first and (only is None or name in only):
                    added = _add_flag(group, section, field)
                    parser.less_used += [added] if first else []
    shown = {action.dest.split(".")[-1] for action in parser._actions if "." in action.dest}
    meant = {**ALIASES, **{name: setting.split(".")[1] for name, (setting, _) in _SHORTHANDS.items()}}
    taken = {flag for action in parser._actions for flag in action.option_strings}
    for name in (name for name, setting in meant.items() if setting in shown and f"--{name}" not in taken):
        takes_none: dict[str, Any] = {"nargs": "?", "const": "true"} if name in (*_SHORTHANDS, "no_cuda") else {}
        parser.add_argument(f"--{name}", dest=f"alias:{name}", help=argparse.SUPPRESS, **takes_none)


def add_train_file(parser: argparse.ArgumentParser) -> None:
    """Add the file of training rows as an argument without a flag: `attentune train reviews.csv`."""
    parser.add_argument(
        _FILE.lower(),
        metavar=_FILE,
        nargs="?",
        help="the file of training rows, as --train_file",
    )


def _add_flag(group: argparse._ArgumentGroup, section: str, field: dataclasses.Field) -> argparse.Action:
    default, facts = field.default, field.metadata
    name = "model_name_or_path" if (section, field.name) == ("model", "name_or_path") else field.name
    shown, is_switch = "" if default is None else f" (default: {default})", _is_switch(field)
    also = [f"--{short}" for short in _SHORT if ALIASES[short] == field.name]
    shown = f"; also {', '.join(also)}{shown}" if also else shown
    return group.add_argument(
        f"--{name}",
        dest=f"{section}.{field.name}",
        nargs="?" if is_switch else None,
        const="true" if is_switch else None,
        metavar=_metavar(field),
        help=(facts["help"] + shown).replace("%", "%%"),
    )


def _is_switch(field: dataclasses.Field) -> bool:
    """Return whether the setting is true or false, so that its flag may stand without a value."""
    return str(field.type).startswith("bool")


def _metavar(field: dataclasses.Field) -> str:
    if _is_switch(field):
        return "true|false"
    return "|".join(field.metadata.get("choices") or (field.name.split("_")[-1].upper(),))


def add_precision_flag(parser: argparse.ArgumentParser, *, predicts: bool = False) -> None:
    """Add `--precision` to a command that uses finished runs; commands that only predict accept more values."""
    more = ", bf16-true, int8 (on a CPU)" if predicts else ""
    parser.add_argument("--precision", help=f"precision, if not that of training: auto, fp32, bf16, fp16{more}")


def overrides_of(parsed: argparse.Namespace, problems: list[str]) -> dict[str, Any]:
    """Collect the settings given as flags, by dotted name; invalid ones are appended to `problems`.

    The flag of a setting overrides `--set`; two flags with different values for one setting are a problem.
    """
    values = vars(parsed)
    given: dict[str, Any] = {}
    for pair in values.get("set") or []:
        name, equals, value = pair.partition("=")
        if not equals or "." not in name:
            meant = with_section(pair)
            if meant == pair and equals and (near := _near_setting(name)) is not None:
                meant = f"{near}={value}"
            such = f"Did you mean --set {meant}?" if meant != pair else "such as --set training.seed=1"
            problems.append(f"--set {pair}: expected SECTION.KEY=VALUE{'.' if meant != pair else ','} {such}")
        elif (near := _elsewhere(name.strip())) is not None:
            problems.append(f"--set {name.strip()}: there is no such setting. Did you mean {near!r}?")
        else:
            given[name.strip()] = value
    flags = {name: value for name, value in values.items() if "." in name and value is not None}
    by_name = {name.split(".")[1]: name for name in values if "." in name}
    file = values.get(_FILE.lower())
    if file is not None and flags.setdefault("data.train_file", file) != file:
        problems.append(f"{file}: is given, and so is --train_file {flags['data.train_file']}. Give one.")
    for name, value in ((name[6:], value) for name, value in values.items() if name.startswith("alias:")):
        if value is not None:
            for setting, meaning in _meant(name, value, by_name, problems).items():
                if flags.setdefault(setting, meaning) != meaning:
                    problems.append(
                        f"--{name}: sets {setting} = {meaning}, but another flag sets {flags[setting]}. Give one."
                    )
    command = values.get(_COMMAND, "")
    if command not in (*_OF_RUNS, "doctor", "suggest"):
        problems += _standard_input(command, {**given, **flags})
    return {name: _listed(value) if name in _LISTS else value for name, value in {**given, **flags}.items()}


def _meant(name: str, value: str, by_name: dict[str, str], problems: list[str]) -> dict[str, str]:
    """Translate a flag of another tool to our settings, by dotted name."""
    if name in _SHORTHANDS:
        setting, meaning = _SHORTHANDS[name]
        try:
            return {setting: meaning} if coerce(value, bool) else {}
        except ValueError as error:
            problems.append(f"--{name}: got {value!r}, expected {error}")
            return {}
    if name == "text_column_names" and value.count(",") == 1:
        # run_classification names two text columns in one flag.
        first, second = (part.strip() for part in value.split(","))
        return {"data.text_column": first, "data.text_pair_column": second}
    return {by_name[ALIASES[name]]: value}


def _listed(value: Any) -> Any:
    """Parse a value written as a YAML list or mapping; return other values unchanged."""
    if not isinstance(value, str) or value.strip()[:1] not in ("[", "{"):
        return value
    import yaml

    from attentune.config.yaml_files import parse_yaml

    try:
        return parse_yaml(value)
    except (yaml.YAMLError, ValueError, ConfigError):
        return value


def config_from(parsed: argparse.Namespace, problems: list[str]) -> Config:
    """Build the checked configuration from the flags."""
    overrides = overrides_of(parsed, problems)
    try:
        config = load_config(getattr(parsed, "config", None), overrides, preset=getattr(parsed, "preset", None))
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    return config


def _standard_input(command: str, overrides: Mapping[str, Any]) -> list[str]:
    """Return a problem for each file that is standard input, for a command that reads files again."""
    return [
        f"--{name.partition('.')[2]}: got -, which is standard input, but {command} reads its rows again, to resume and"
        f" to score. Save them to a file: ... > rows.csv; attentune {command} rows.csv ..."
        for name, value in overrides.items()
        if name.endswith(("_file", "_files")) and "-" in str(value).split(",")
    ]


def data_from(parsed: argparse.Namespace, problems: list[str]) -> DataConfig | None:
    """Build the data settings from the flags; None if no flag is given, which means the data of the run."""
    config = config_from(parsed, problems)
    return config.data if overrides_of(parsed, []) else None


def whole_number(flag: str, text: str | None, problems: list[str], *, minimum: int = 1) -> int | None:
    """Parse a whole number; None if it is not given, or invalid, which is appended to `problems`."""
    try:
        value = None if text is None else coerce(text, int)
        if value is None or value >= minimum:
            return value
        problems.append(f"{flag}: got {text!r}, expected a whole number of at least {minimum}.")
    except ValueError as error:
        problems.append(f"{flag}: got {text!r}, expected {error}")
    return None


def names_in(text: str | None) -> list[str]:
    """Return the values of a comma-separated list, without empty ones; none if it is not given."""
    return [name for name in (part.strip() for part in (text or "").split(",")) if name]


def seed_numbers(text: str, problems: list[str]) -> int | list[int]:
    """Parse `--seeds`: a number of seeds, or a list of them; invalid values are appended to `problems`."""
    parts = names_in(text)
    if "," not in text:
        return whole_number("--seeds", text, problems) or 1
    return [whole_number("--seeds", part, problems, minimum=0) or 0 for part in parts]
