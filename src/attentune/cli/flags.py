"""Command-line flags made from the settings, under the names that `TrainingArguments` and `run_classification` use."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

from attentune.config import Config, load_config
from attentune.config.parsing import did_you_mean
from attentune.config.schema import DataConfig, ModelConfig, ObjectiveConfig, TrainingConfig
from attentune.errors import ConfigError

# Other tools' spellings of our settings.
_ALIASES = {
    "task_name": "task",
    "text_column_name": "text_column",
    "text_column_names": "text_column",
    "text_pair_column_name": "text_pair_column",
    "label_column_name": "label_column",
    "max_seq_length": "max_length",
    "label_smoothing_factor": "label_smoothing",
    "evaluation_strategy": "eval_strategy",
    "metric_name": "metric_for_best_model",
    "no_cuda": "use_cpu",
}
# Flags that stand for a setting with a value.
_SHORTHANDS = {
    "bf16": ("training.precision", "bf16"),
    "fp16": ("training.precision", "fp16"),
    "do_regression": ("data.task_type", "regression"),
}
_SECTIONS: tuple[tuple[str, type], ...] = (
    ("data", DataConfig),
    ("model", ModelConfig),
    ("training", TrainingConfig),
    ("objective", ObjectiveConfig),
)


class Parser(argparse.ArgumentParser):
    """Takes hyphens or underscores in flags; raises `ConfigError` instead of ending the program."""

    def __init__(self, **options: Any) -> None:
        super().__init__(allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **options)

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message}. See {self.prog} --help.")

    def parse(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
        """The parsed flags, and one sentence for each flag that does not exist."""
        parsed, unknown = self.parse_known_args([_normalised(argument) for argument in arguments])
        known = [flag for action in self._actions for flag in action.option_strings]
        problems = []
        for argument in unknown:
            flag = argument.split("=")[0]
            if flag.startswith("--"):
                problems.append(f"{flag}: there is no such flag.{did_you_mean(flag, known)} See {self.prog} --help.")
            elif not problems:
                problems.append(f"{argument!r}: was not expected here. See {self.prog} --help.")
        return parsed, problems


def _normalised(argument: str) -> str:
    if not argument.startswith("--") or argument == "--":
        return argument
    name, equals, value = argument[2:].partition("=")
    return f"--{name.replace('-', '_')}{equals}{value}"


def add_config_flags(parser: argparse.ArgumentParser, sections: Iterable[str] = ("data", "model", "training")) -> None:
    """Add a flag for each plain setting of these sections, with `--preset`, `--config` and `--set` if they train."""
    wanted = set(sections)
    if "training" in wanted:
        wanted.add("objective")
        group = parser.add_argument_group("method")
        group.add_argument("--preset", help="a method; `attentune presets` lists them (default: bert)")
        group.add_argument("--config", metavar="FILE", help="a YAML file of settings, such as a run's config.yaml")
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
                if field.metadata:
                    _add_flag(group, section, field)
    hidden = {**_ALIASES, **dict.fromkeys(_SHORTHANDS, "")}
    for name in hidden:
        parser.add_argument(f"--{name}", dest=f"alias:{name}", nargs="?", const="true", help=argparse.SUPPRESS)


def _add_flag(group: argparse._ArgumentGroup, section: str, field: dataclasses.Field) -> None:
    default, facts = field.default, field.metadata
    name = "model_name_or_path" if (section, field.name) == ("model", "name_or_path") else field.name
    shown = "" if default is None else f" (default: {default})"
    choices = facts.get("choices")
    group.add_argument(
        f"--{name}",
        dest=f"{section}.{field.name}",
        nargs="?" if isinstance(default, bool) else None,
        const="true" if isinstance(default, bool) else None,
        metavar="|".join(choices)
        if choices
        else ("" if isinstance(default, bool) else field.name.split("_")[-1].upper()),
        help=(facts["help"] + shown).replace("%", "%%"),
    )


def overrides_of(parsed: argparse.Namespace, problems: list[str]) -> dict[str, Any]:
    """The settings that the flags give, by dotted name; what cannot be read is added to `problems`."""
    values = vars(parsed)
    given: dict[str, Any] = {}
    for pair in values.get("set") or []:
        name, equals, value = pair.partition("=")
        if not equals or "." not in name:
            problems.append(f"--set {pair}: expected SECTION.KEY=VALUE, such as --set training.seed=1")
        else:
            given[name.strip()] = value
    given.update({name: value for name, value in values.items() if "." in name and value is not None})
    by_name = {name.split(".")[1]: name for name in values if "." in name}
    for name, value in ((name[6:], value) for name, value in values.items() if name.startswith("alias:")):
        if value is None:
            continue
        if name in _SHORTHANDS:
            setting, meaning = _SHORTHANDS[name]
            if value.lower() not in ("false", "no", "0"):
                given[setting] = meaning
        elif _ALIASES[name] in by_name:
            given[by_name[_ALIASES[name]]] = value
    _split_columns(given, values)
    return given


def _split_columns(given: dict[str, Any], values: dict[str, Any]) -> None:
    """run_classification names two text columns in one flag, with a comma between them."""
    names = values.get("alias:text_column_names")
    if names and names.count(",") == 1:
        given["data.text_column"], given["data.text_pair_column"] = (part.strip() for part in names.split(","))


def config_from(parsed: argparse.Namespace, problems: list[str]) -> Config:
    """The checked configuration that the flags ask for.

    Raises:
        ConfigError: with every problem found, those passed in included.
    """
    overrides = overrides_of(parsed, problems)
    try:
        config = load_config(getattr(parsed, "config", None), overrides, preset=getattr(parsed, "preset", None))
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    return config
