"""The flags of commands, read from the text of their help, and those of the settings, made from `config.schema`.

Settings have the names of `TrainingArguments` and `run_classification`; the names that other tools use are read too.
"""

import argparse
import dataclasses
import itertools
import re
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from attentune.config import Config, flatten, load_config, preset_names, to_flat
from attentune.config.load import read_yaml, setting_fields
from attentune.config.parse import coerce, did_you_mean, nearest
from attentune.config.schema import DataConfig
from attentune.errors import ConfigError

# Arguments that several commands take, as lines of their help.
FILE = "[FILE]  the file of training rows, as --train_file"
FORMAT = "--format text|json  output format (default: text)"
QUIET = "--quiet  no progress on standard error"
PRECISION = "--precision VALUE  auto, fp32, bf16 or fp16; bf16 and fp16 round (fp32 if not given)"
TEXTS = """--text TEXT...  a text (repeatable)
--text_pair TEXT...  its second text, for a model of text pairs (repeatable)
--input_file FILE  a file of texts: .csv .tsv .json .jsonl .parquet ..., or - for standard input
--split NAME  with --task or --dataset_name: the split (default: test)"""
EXECUTOR = """--executor local|ray|slurm  execute runs in processes of this machine, on a Ray cluster or as SLURM jobs
    (default: local)
--jobs N  runs at a time (default: one per core, or one per GPU)
--ray_address HOST:PORT  with --executor ray: the cluster (default: the one of RAY_ADDRESS, else a new one on this
    machine)
--cpus_per_run N  with ray or slurm: cores of each (default: 1)
--gpus_per_run X  with ray or slurm: GPUs of each; with ray also 0.25 (default: 0)
--slurm NAME=VALUE...  with --executor slurm: a parameter of submitit: partition=gpu, timeout_min=120, mem_gb=8
    (repeatable)"""

# Settings, and the names that people and other tools use for them.
_OTHER_NAMES = {
    "learning_rate": "lr",
    "per_device_train_batch_size": "batch_size train_batch_size",
    "per_device_eval_batch_size": "eval_batch_size",
    "num_train_epochs": "epochs num_epochs n_epochs max_epochs",
    "name_or_path": "model model_name model_id pretrained_model_name_or_path",
    "text_column": "text_col x_col text_column_name text_column_names",
    "text_pair_column": "text_pair_column_name",
    "label_column": "label label_col y_col target_column label_column_name",
    "task": "task_name",
    "train_file": "train_path train_data",
    "validation_file": "val_file dev_file eval_file",
    "test_file": "test_path",
    "max_length": "max_seq_length max_seq_len max_len",
    "label_smoothing": "label_smoothing_factor",
    "eval_strategy": "evaluation_strategy",
    "metric_for_best_model": "metric_name metric",
    "lr_scheduler_type": "lr_scheduler scheduler",
    "seed": "random_state random_seed",
    "early_stopping_patience": "patience",
    "gradient_accumulation_steps": "grad_accum",
    "output_dir": "output out_dir",
    "delimiter": "sep",
    "use_cpu": "no_cuda",
    "sheet": "sheet_name",
}
ALIASES = {name: setting for setting, names in _OTHER_NAMES.items() for name in names.split()}
# What to write instead of flags that other tools have.
_MEANT = {
    "The columns are --text_column, --text_pair_column for pairs, and --label_column.": "text text_pair target",
    "A file is given as in `attentune train FILE`, one of the Hugging Face hub with --dataset_name.": "dataset",
    "A file is given as in `attentune train FILE`, a known task with --task and --data_dir.": "data data_path",
    "predict and explain take --text or --input_file; train takes the file as in `attentune train FILE`.": "input file",
    "predict and explain take --input_file.": "predict_file",
    "predict and explain take each text with a --text of its own, many in a file with --input_file.": "texts",
    "There is no such flag: a GPU is used where there is one; --use_cpu trains on the CPU.": "gpu gpus cuda device",
    "train always trains, scores the validation rows and saves: leave it out.": "do_train do_eval",
    "`attentune predict RUN --input_file FILE` predicts with the finished run.": "do_predict",
    "The share of rows to validate on is --validation_share.": "test_size validation_split val_split",
    "Cross-validation is --folds N, as in `attentune compare FILE --folds 5`.": "n_splits cv",
    "A method is a preset: --preset NAME; `attentune list presets` lists them.": "method algorithm",
    "This is SetFit's; the nearest here is --preset frozen-linear, or --num_train_epochs.": "num_iterations",
    "The learning rate of the classifier is --learning_rate, that of the encoder --encoder_learning_rate.": (
        "body_learning_rate head_learning_rate"
    ),
    "The optimiser is AdamW: --weight_decay, --adam_beta1, --adam_beta2 and --adam_epsilon set it.": "optimizer optim",
    "The length of training is --num_train_epochs or --max_steps.": "max_iter",
    "The focal loss's gamma is --focal_gamma, with --loss focal.": "gamma",
    "The weights of the classes are --class_weights, such as --class_weights balanced.": "class_weight",
    "The labels are those of the rows: leave it out.": "num_labels num_classes",
    "The run folder is --output_dir.": "output_directory save_dir",
    "A finished run is given without a flag, as in `attentune predict RUN`; the encoder to train with is"
    " --model_name_or_path.": "model_path run",
    "A file of settings is --config.": "config_file",
    "train trains one preset, --preset NAME; `attentune compare FILE --presets A,B` trains several.": "presets",
    "One encoder is --model_name_or_path; `attentune auto FILE --encoders A,B` tries several.": "models",
    "One task is --task NAME; `attentune compare --tasks A,B` trains on several.": "tasks",
    "--resume goes on with the last checkpoint in --output_dir.": "resume_from_checkpoint",
    "Low-rank adapters are --lora_rank N.": "lora use_lora",
    "A finished run is quantized by `attentune export RUN --quantize int8`.": "quantize",
    "A run or an export is uploaded by `hf upload NAME FOLDER`.": "push_to_hub hub_model_id",
    "The warm-up is --warmup_ratio (a share of training) or --warmup_steps.": "warmup",
    "The time that auto may take is --time_limit, such as --time_limit 10m.": "time timeout time_budget max_time",
    "predict and explain write --output_file; the run folder of train is --output_dir.": "output_path",
    "A checkpoint is given in the place of the run, as in `attentune predict RUN/checkpoint-100`.": (
        "checkpoint ckpt checkpoint_path"
    ),
    "predict always writes the probability of each class, in the columns p_CLASS.": (
        "proba predict_proba probabilities return_all_scores top_k"
    ),
    "serve is one process, which puts requests into batches; for more, start several on different --port.": "workers",
    "Commands that train or predict in several processes take --jobs.": "n_jobs",
    "There is no such flag here: rows are prepared in the process that trains.": "num_workers",
    "There is no such flag here: progress goes to standard error; --quiet turns it off.": "verbose",
}
# Other names that the help shows.
_SHORT = ("lr", "batch_size", "epochs", "model", "label")
# The settings that the help of commands that train shows; --help-all shows the others too.
MOST_USED = (
    *("data.text_column", "data.text_pair_column", "data.label_column", "data.validation_file", "data.test_file"),
    *("data.task", "data.data_dir", "data.task_type", "data.max_length", "data.long_texts", "model.name_or_path"),
    *("training.output_dir", "training.overwrite_output_dir", "training.resume", "training.num_train_epochs"),
    *("training.learning_rate", "training.per_device_train_batch_size", "training.precision"),
    *("training.early_stopping_patience", "training.seed"),
)
# The data settings that a finished run obeys: for texts to predict, and for labelled rows. Others, such as
# `max_length`, are those of its training.
TEXT_SETTINGS = tuple(
    f"data.{name}"
    for name in (
        *("task", "data_dir", "dataset_name", "dataset_config_name", "text_column", "text_pair_column", "label_column"),
        *("id_column", "label_separator", "delimiter", "encoding", "sheet", "file_format", "header"),
        "max_eval_samples",
    )
)
_NOT_OF_RUNS = ("extra_columns", "extra_train_files", "extra_train_weights", "ignore_words",
                "max_length", "long_texts", "stride", "max_windows")  # fmt: skip
ROW_SETTINGS = tuple(f"data.{field.name}" for field in dataclasses.fields(DataConfig) if field.name not in _NOT_OF_RUNS)
# Flags that set a setting to a fixed value.
SHORTHANDS = {
    "bf16": ("training.precision", "bf16"),
    "fp16": ("training.precision", "fp16"),
    "do_regression": ("data.task_type", "regression"),
    "no_header": ("data.header", "false"),
}
_SECTIONS = ("data", "model", "training", "objective")
_ARGUMENT = re.compile(r"(\S+)(?: (\S+))? {2,}(.*)")
_NUMBER = re.compile(r"(N|X)(?:>=(\d+))?")
_NUMBER_LIKE = re.compile(r"[-+]?[0-9.,]+\s*%?")


class Parser(argparse.ArgumentParser):
    """An argument parser that accepts hyphens or underscores, and raises `ConfigError` instead of exiting."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)
        self.numbers: dict[str, int | None] = {}  # flags with a whole number: the smallest; None for any number
        self.lists: list[str] = []  # flags with several values

    @property
    def _is_of_run(self) -> bool:
        return any(action.dest in ("run", "runs") and not action.option_strings for action in self._actions)

    def add_lines(self, text: str) -> None:
        """Add the arguments of the lines of a help text, see `command_parser`."""
        for line in text.replace("\n    ", " ").splitlines():
            _add_argument(self, line)

    def error(self, message: str) -> NoReturn:
        end = "" if message.endswith("?") else "."
        # argparse stops at its first mistake; unknown flags are told besides.
        flags = [word.split("=")[0] for word in self._words if word.startswith("--") and " " not in word.split("=")[0]]
        unknown = [self._unknown_flag(flag) for flag in flags if flag not in (*self._known(), "--")]
        raise ConfigError([*unknown, f"{message}{end} See {self.prog} --help."])

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            said = f"got {value!r}, expected one of {', '.join(known)}.{did_you_mean(value, known)}"
            raise argparse.ArgumentError(action, said.removesuffix("."))

    def _known(self) -> list[str]:
        return [flag for action in self._actions for flag in action.option_strings]

    def _unknown_flag(self, flag: str) -> str:
        return f"{flag}: unknown flag.{self._hint(flag)} See {self.prog} --help."

    def _hint(self, flag: str) -> str:
        """Return what is meant by an unknown flag, if that can be told."""
        name, known = flag.removeprefix("--"), self._known()
        if self._is_of_run:
            if name in ("output", "out", "out_file", "save_to") and "--output_file" in known:
                return " The file to write is --output_file."
            if (setting := _setting_of(name)) is not None:
                return f" It is a setting of training ({setting}), which a finished run keeps."
        if (meant := next((text for text, names in _MEANT.items() if name in names.split()), None)) is not None:
            return f" {meant}"
        if (preset := name.replace("_", "-")) in preset_names():
            return f" {preset} is a preset: --preset {preset}."
        if settings := [setting for setting in to_flat(Config()) if setting.rpartition(".")[2] == name]:
            return f" It is a setting without a flag of this command: --set {' or '.join(settings)}=VALUE."
        return did_you_mean(flag, known)

    def _place(self, argument: str) -> str:
        """Return where an argument that stands in no place belongs, if that can be told."""
        words, known = self._words, {flag: action for action in self._actions for flag in action.option_strings}
        before = next((word for word in reversed(words[: words.index(argument)]) if word.startswith("--")), None)
        if argument.startswith("-"):
            such = nearest(f"-{argument}".split("=")[0], known) or "--output_dir"
            return f" Flags have two hyphens and a whole word, such as {such}."
        if before in known and "," in str(known[before].metavar):
            first = words[words.index(before) + 1]
            return f" Several values have commas between them; did you mean {before} {first},{argument}?"
        is_file = bool(Path(argument).suffix) and not any(sign.isspace() for sign in argument)
        if is_file and (self.prog.endswith("evaluate") or "--input_file" in known):
            flag = "--test_file" if self.prog.endswith("evaluate") else "--input_file"
            return f" Did you mean {flag} {argument}?"
        return f" Did you mean --text {shlex.quote(argument)}?" if "--text" in known and self._is_of_run else ""

    def parse(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """Parse the arguments; return the values, and messages for unknown flags and what should be numbers."""
        # argparse replaces a value of "--" by an empty list.
        if empty := [argument for argument in arguments if argument.startswith("--") and argument.endswith("=--")]:
            raise ConfigError([f"{argument}: expected a value after the equals sign." for argument in empty])
        self._words = words = [_normalised(argument) for argument in arguments]
        problems = self._part_taken_words(words)
        parsed, unknown = self.parse_known_args(words)
        parsed.command = next(iter(self.prog.split()[1:]), "")
        file = getattr(parsed, "file", None)
        if any(before in unknown and word == file for before, word in itertools.pairwise(words)):
            parsed.file = None  # the value of an unknown flag, not a file
        for argument in unknown:
            if argument.startswith("--"):
                problems.append(self._unknown_flag(argument.split("=")[0]))
            elif not problems:
                problems.append(f"{argument!r}: unexpected argument.{self._place(argument)} See {self.prog} --help.")
        for name, minimum in self.numbers.items():
            setattr(parsed, name, number_from(f"--{name}", getattr(parsed, name), problems, minimum=minimum))
        for name in self.lists:
            if (value := getattr(parsed, name)) is not None:
                setattr(parsed, name, names_in(value))
        return parsed, problems

    def _part_taken_words(self, words: list[str]) -> list[str]:
        """Give flags that may stand alone the value for it, if the next word can be none of theirs; return problems."""
        problems, alone = [], {flag: one for one in self._actions if one.nargs == "?" for flag in one.option_strings}
        for place, (flag, word) in enumerate(itertools.pairwise(words)):
            if flag not in alone or word.startswith("-") or _NUMBER_LIKE.fullmatch(word):
                continue
            kind, what = (bool, "true or false") if alone[flag].const == "true" else (float, "a number")
            try:
                coerce(word, kind | None)
            except ValueError:
                words[place] = f"{flag}={alone[flag].const}"
                problems.append(
                    f"{flag}: took {word!r} as its value, expected {what}. If it is a file or a run, put it first, or"
                    f" write {words[place]}."
                )
        return problems


def command_parser(
    name: str, text: str, settings: Collection[str] | None = (), arguments: Sequence[str] = ()
) -> Parser:
    """Build the parser of a command from its help: usage, description, arguments, and what is shown below them.

    An argument is a line `NAME  help` or `--name VALUE  help`, which indented lines continue. VALUE is the type:
    none is a switch, `a|b` in lower case a choice, `N` a whole number of at least 1, `N>=0` of at least 0, `X` a
    number, `A,B` a list; `...` is repeatable. A single word after `default:` is the default. `settings` are the dotted
    names, or sections, of the settings that have flags; None for all, as in commands that train, whose help shows
    the most used ones, and all if `arguments` have `--help_all`.
    """
    usage, description, lines, *below = text.strip().split("\n\n")
    made = Parser(prog=f"attentune {name}", usage=usage, description=description, epilog="\n\n".join(below))
    made.add_lines(lines)
    if settings is None:
        add_config_flags(made, first=MOST_USED, with_help=has_flag(arguments, "help_all"))
    elif settings:
        add_config_flags(made, only=settings)
    return made


def parser_of(name: str, text: str, settings: Collection[str] | None = ()) -> Callable[..., Parser]:
    """Return the function `parser` of a command with one help, whatever its arguments are; see `command_parser`."""
    return lambda arguments=(): command_parser(name, text, settings, arguments)


def _add_argument(made: Parser, line: str) -> None:
    found = _ARGUMENT.fullmatch(line)
    assert found is not None, line
    name, value, text = found.groups()
    default = re.search(r"\(default: ([^\s)]+)\)", text)
    options: dict[str, Any] = {"help": text.replace("%", "%%"), "default": default and default[1]}
    shown = value or ""
    if shown.endswith("...") and name.startswith("--"):
        options |= {"action": "append", "default": [], "metavar": shown[:-3]}
    elif number := _NUMBER.fullmatch(shown):
        made.numbers[name.removeprefix("--")] = None if number[1] == "X" else int(number[2] or 1)
        options["metavar"] = number[1]
    elif shown and shown == shown.lower():
        options |= {"choices": shown.split("|"), "metavar": shown}
    elif shown:
        options["metavar"] = shown
        made.lists += [name.removeprefix("--")] if "," in shown else []
    if name.startswith("--"):
        made.add_argument(name, **(options if value else {"action": "store_true", "help": options["help"]}))
        return
    bare, is_optional, are_several = name.strip("[]").removesuffix("..."), name.startswith("["), "..." in name
    options["metavar"] = bare
    if is_optional or are_several:
        options["nargs"] = ("*" if is_optional else "+") if are_several else "?"
    made.add_argument(bare.lower().split("|")[0] + "s" * are_several, **options)


def has_flag(arguments: Sequence[str], name: str) -> bool:
    return any(_normalised(word).split("=")[0] == f"--{name}" for word in arguments)


def _setting_of(name: str) -> str | None:
    """Return the dotted name of the setting that a flag of this name sets; None if there is none."""
    name = name.strip().replace("-", "_")
    name = "name_or_path" if name == "model_name_or_path" else ALIASES.get(name, name)
    return next((f"{section}.{name}" for section in _SECTIONS if f"{section}.{name}" in setting_fields()), None)


def with_section(text: str) -> str:
    """Complete NAME=VALUES to SECTION.NAME=VALUES where the name alone, or a synonym, tells the setting."""
    name, equals, values = text.partition("=")
    key = name.strip().replace("-", "_")
    such = [setting for setting in to_flat(Config()) if setting.endswith(f".{key}")]
    setting = _setting_of(key) or (such[0] if len(such) == 1 else None)
    return text if "." in name or setting is None or not equals else f"{setting}={values}"


def _normalised(argument: str) -> str:
    name, equals, value = argument[2:].partition("=")
    if not argument.startswith("--") or re.search(r"\s", name):  # a text
        return argument
    return f"--{name.replace('-', '_')}{equals}{value}"


def add_config_flags(
    parser: Parser, *, only: Collection[str] | None = None, first: Sequence[str] = (), with_help: bool = True
) -> None:
    """Add a flag for each setting, `--preset`, `--config` and `--set`; or those of the names and sections in `only`."""
    known = {name: field for name, field in setting_fields().items() if name.rpartition(".")[0] in _SECTIONS}
    if first:
        parser.add_argument("--help_all", action="help", help="show the flags of all settings and exit")
        group = parser.add_argument_group("most used")
        for name in first:
            _add_flag(group, name.split(".")[0], known[name])
    if only is None:
        group = parser.add_argument_group("method")
        group.add_argument("--preset", help="a method; `attentune list presets` lists them (default: bert)")
        group.add_argument("--config", metavar="FILE", help="a YAML file of settings, such as the config.yaml of a run")
        such = "any setting, such as model.head.kind=mean"
        group.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE", help=such)
    groups = {section: parser.add_argument_group(section) for section in _SECTIONS}
    own = {flag.removeprefix("--") for flag in parser._known()}  # such as --folds of auto
    for name, field in known.items():
        section = name.split(".")[0]
        is_shown = field.metadata and name not in first and field.name not in own
        if is_shown and (only is None or {name, section} & set(only)):
            _add_flag(groups[section], section, field, with_help=with_help)
    shown = {action.dest.split(".")[-1] for action in parser._actions if "." in action.dest}
    meant = {**ALIASES, **{name: setting.split(".")[1] for name, (setting, _) in SHORTHANDS.items()}}
    taken = set(parser._known())
    for name in (name for name, setting in meant.items() if setting in shown and f"--{name}" not in taken):
        takes_none: dict[str, Any] = {"nargs": "?", "const": "true"} if name in (*SHORTHANDS, "no_cuda") else {}
        parser.add_argument(f"--{name}", dest=f"alias:{name}", help=argparse.SUPPRESS, **takes_none)


def _add_flag(
    group: argparse._ArgumentGroup, section: str, field: dataclasses.Field, *, with_help: bool = True
) -> None:
    default, facts = field.default, field.metadata
    name = "model_name_or_path" if (section, field.name) == ("model", "name_or_path") else field.name
    bare = "true" if field.type in (bool, bool | None) else facts.get("bare")  # the value of a flag without one
    shown = "" if default is None else f" (default: {default})"
    also = [f"--{short}" for short in _SHORT if ALIASES[short] == field.name]
    shown = f"; also {', '.join(also)}{shown}" if also else shown
    choices = facts.get("choices") or (field.name.split("_")[-1].upper(),)
    group.add_argument(
        f"--{name}",
        dest=f"{section}.{field.name}",
        nargs=None if bare is None else "?",
        const=bare,
        metavar="true|false" if bare == "true" else "|".join(choices),
        help=(facts["help"] + shown).replace("%", "%%") if with_help else argparse.SUPPRESS,
    )


def overrides_of(parsed: argparse.Namespace, problems: list[str]) -> dict[str, Any]:
    """Collect the settings given as flags, which override `--set`, by dotted name; append errors to `problems`."""
    values = vars(parsed)
    given: dict[str, Any] = {}
    for pair in values.get("set") or []:
        name, equals, value = with_section(pair).partition("=")
        section, _, key = name.strip().partition(".")
        if not equals or "." not in name:
            hint = did_you_mean(name, sorted({setting.rpartition(".")[2] for setting in to_flat(Config())} - {name}))
            problems.append(f"--set {pair}: expected SECTION.KEY=VALUE, such as training.seed=1.{hint}")
        elif section in _SECTIONS and name.strip() not in setting_fields() and (near := _setting_of(key)) is not None:
            problems.append(f"--set {name.strip()}: there is no such setting. Did you mean {near!r}?")
        else:
            given[name.strip()] = value
    flags = {name: value for name, value in values.items() if "." in name and value is not None}
    by_name = {name.split(".")[1]: name for name in values if "." in name}
    file = values.get("file")
    if file is not None and flags.setdefault("data.train_file", file) != file:
        problems.append(f"{file}: is given, and so is --train_file {flags['data.train_file']}. Give one.")
    for name, value in ((name[6:], value) for name, value in values.items() if name.startswith("alias:")):
        if value is not None:
            for setting, meaning in _meant(name, value, by_name, problems).items():
                if flags.setdefault(setting, meaning) != meaning:
                    problems.append(
                        f"--{name}: sets {setting} = {meaning}, but another flag sets {flags[setting]}. Give one."
                    )
    if "run" not in values:  # commands of a run, and the doctor, read rows once
        problems += _standard_input(values.get("command", ""), {**given, **flags})
    return {**given, **flags}


def _meant(name: str, value: str, by_name: dict[str, str], problems: list[str]) -> dict[str, str]:
    if name in SHORTHANDS:
        setting, meaning = SHORTHANDS[name]
        try:
            return {setting: meaning} if coerce(value, bool) else {}
        except ValueError as error:
            problems.append(f"--{name}: got {value!r}, expected {error}")
            return {}
    return {by_name[ALIASES[name]]: value}


def config_from(parsed: argparse.Namespace, problems: list[str]) -> Config:
    overrides = overrides_of(parsed, problems)
    try:
        config = load_config(getattr(parsed, "config", None), overrides, preset=getattr(parsed, "preset", None))
    except ConfigError as error:
        typed = _typed_flags(parsed)
        named = [typed.get(problem.partition(": ")[0], "") + problem for problem in error.problems]
        raise ConfigError([*problems, *named]) from None
    check(problems)
    return config


def _typed_flags(parsed: argparse.Namespace) -> dict[str | None, str]:
    """Return the flags of settings that were typed, each before a colon, by the dotted names of the settings."""
    given = [name for name, value in vars(parsed).items() if value is not None]
    by_alias = {_setting_of(name[6:]): f"--{name[6:]}: " for name in given if name.startswith("alias:")}
    return {name: f"--{name.partition('.')[2]}: " for name in given if "." in name} | by_alias


def given_settings(parsed: argparse.Namespace) -> dict[str, Any]:
    """Return the preset and the settings that checked flags and `--config` give, by dotted name, without defaults."""
    in_file = {} if parsed.config is None else flatten(read_yaml(parsed.config))
    return in_file | ({} if parsed.preset is None else {"preset": parsed.preset}) | overrides_of(parsed, [])


def check(problems: list[str]) -> None:
    if problems:
        raise ConfigError(problems)


def _standard_input(command: str, overrides: Mapping[str, Any]) -> list[str]:
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


def number_from(flag: str, text: Any, problems: list[str], *, minimum: int | None = 1) -> Any:
    """Parse a number, whole where there is a minimum; an invalid one is appended to `problems`, and 1 returned."""
    try:
        value = None if text is None else coerce(text, float if minimum is None else int)
        if value is None or minimum is None or value >= minimum:
            return value
        problems.append(f"{flag}: got {text!r}, expected a whole number of at least {minimum}.")
    except ValueError as error:
        problems.append(f"{flag}: got {text!r}, expected {error}")
    return 1


def names_in(text: str | None) -> list[str]:
    return [name for name in (part.strip() for part in (text or "").split(",")) if name]


def seed_numbers(text: str, problems: list[str]) -> int | list[int]:
    """Parse `--seeds`: a number of seeds, or a list of them; invalid values are appended to `problems`."""
    if "," not in text:
        return number_from("--seeds", text, problems)
    return [number_from("--seeds", part, problems, minimum=0) for part in names_in(text)]
