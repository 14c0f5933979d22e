"""The help of each command: the most used flags first, and no flag that the command does not obey."""

import importlib
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

import attentune.cli
from attentune.cli.flags import ALIASES
from attentune.cli.main import COMMANDS, GROUPS

_FOLDER = Path(attentune.cli.__file__).parent
# Commands that train, whose settings all apply.
_TRAIN = ("train", "auto", "compare", "search")
# Settings that the commands on a finished run must not show: they are those of its training.
_OF_TRAINING = ("data.max_length", "data.long_texts", "data.stride", "data.max_windows", "data.tasks",
                "data.task_settings", "data.extra_train_files", "data.extra_train_weights")  # fmt: skip
_ON_RUNS = ("predict", "explain", "evaluate", "calibrate")
# Of these, those that read texts and need no splits.
_ON_TEXTS = ("predict", "explain")


def parser_of(command: str, *arguments: str):
    return importlib.import_module(f"attentune.cli.{command}").parser(arguments)


def shown(command: str, *arguments: str) -> list:
    """The flags in the help of a command; a flag that is only a synonym is not shown."""
    actions = parser_of(command, *arguments)._actions
    return [action for action in actions if action.option_strings and action.help != "==SUPPRESS=="]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(attentune, command: str) -> None:
    status, out, err = attentune(command, "--help")
    assert (status, err) == (0, "")
    assert f"usage: attentune {command}" in out


@pytest.mark.parametrize(
    ("command", "arguments"),
    [*((name, ()) for name in COMMANDS), ("train", ["--adapt"]), ("evaluate", ["--suite"]), ("explain", ["--fit"])],
)
def test_every_flag_of_its_own_is_read(command: str, arguments: Sequence[str]) -> None:
    """Each is read from the parsed values, by the command or what checks and reads its files."""
    source = "".join((_FOLDER / f"{name}.py").read_text(encoding="utf-8") for name in (command, "flags", "inputs"))
    own = [action.dest for action in shown(command, *arguments) if "." not in action.dest]
    for name in (name for name in own if not name.startswith("help")):
        assert re.search(rf"parsed\.{name}\b|[\"']{name}[\"']", source), name


@pytest.mark.parametrize("command", _ON_RUNS)
def test_commands_on_a_run_show_no_settings_of_its_training(command: str) -> None:
    settings = {action.dest for action in shown(command) if "." in action.dest}
    assert {name.split(".")[0] for name in settings} == {"data"}
    assert not settings & set(_OF_TRAINING)
    assert {"data.text_column", "data.task", "data.encoding"} <= settings
    if command in _ON_TEXTS:
        assert not {name for name in settings if name.endswith("_file") or "fold" in name or "train" in name}


@pytest.mark.parametrize("command", _TRAIN)
def test_the_most_used_come_first(command: str) -> None:
    made = parser_of(command)
    titles = [group.title for group in made._action_groups if group._group_actions]
    assert titles[:3] == ["positional arguments", "options", "most used"]
    (group,) = (group for group in made._action_groups if group.title == "most used")
    flags = [action.option_strings[0] for action in group._group_actions]
    assert len(flags) == 20
    assert {"--text_column", "--label_column", "--output_dir", "--learning_rate", "--seed"} <= set(flags)
    every = [flag for action in made._actions for flag in action.option_strings]
    assert len(every) == len(set(every))
    assert "; also --lr" in " ".join(made.format_help().split())
    assert "--warmup_ratio" not in made.format_help()
    with pytest.raises(SystemExit):
        made.parse(["--help-all"])
    assert "--warmup_ratio" in made.format_help()


def test_a_flag_has_one_meaning() -> None:
    """What is a switch in one command takes no value in another; a flag and a setting of one name are the same."""
    makes = [(name, ()) for name in COMMANDS]
    makes += [("train", ("--adapt",)), ("evaluate", ("--suite", "hans")), ("explain", ("--fit",)), ("compare", "ab")]
    kinds: dict[str, set[bool]] = {}
    for command, arguments in makes:
        for action in shown(command, *arguments):
            kinds.setdefault(action.option_strings[-1], set()).add(action.nargs == 0)
    assert not {flag for flag, found in kinds.items() if len(found) > 1}
    assert not set(ALIASES) & {flag.removeprefix("--") for flag in kinds}
    assert {"--method", "--format", "--folds"} <= set(kinds)
    assert not {"--methods", "--cv_folds", "--output_format"} & set(kinds)


def test_commands_are_in_four_groups(attentune) -> None:
    status, out, _ = attentune("--help")
    assert status == 0
    assert [line for line in out.splitlines() if line.removesuffix(":") in GROUPS] == [f"{group}:" for group in GROUPS]
    assert len(COMMANDS) == 18


def test_a_flag_that_does_another_job_has_a_help_of_its_own() -> None:
    assert parser_of("evaluate", "runs/mnli", "--suite=hans").prog == "attentune evaluate --suite hans"
    assert parser_of("evaluate", "runs/mnli").prog == "attentune evaluate"
    assert parser_of("compare", "runs/a", "runs/b").usage.startswith("attentune compare RUN RUN")
    assert parser_of("compare", "rows.csv", "--presets", "bert").usage.startswith("attentune compare --presets")
