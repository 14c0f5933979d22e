"""From words on a command line to a configuration; the help of each command, and what it imports."""

import dataclasses
import importlib
import json
import os
import re
import shlex
import subprocess
import sys
import typing
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

import attentune.cli
from attentune.cli import explain, train
from attentune.cli.flags import ALIASES, Parser, config_from
from attentune.cli.main import COMMANDS, GROUPS
from attentune.cli.output import stopped
from attentune.config import Config, load_config, to_yaml
from attentune.config.schema import DataConfig, ModelConfig, ObjectiveConfig, TrainingConfig
from attentune.errors import ConfigError
from helpers.every_setting import every_setting, value_of
from helpers.samples import write_reviews

FLAT = {"data": DataConfig, "model": ModelConfig, "training": TrainingConfig, "objective": ObjectiveConfig}


def parsed(*words: object, parser: Parser | None = None) -> Config:
    """The configuration that these words ask for, after `attentune train`."""
    namespace, problems = (parser or train.parser()).parse([str(word) for word in words])
    return config_from(namespace, problems)


def another_value(field: dataclasses.Field, hint: Any) -> tuple[str, Any]:
    """How a user writes a value that is not the default, and what it is then."""
    default, facts = field.default, field.metadata
    if "choices" in facts:
        other = next((choice for choice in facts["choices"] if choice != default), facts["choices"][0])
        return other, other
    kinds = {kind for kind in (*typing.get_args(hint), hint) if kind is not type(None)}
    if bool in kinds:
        return str(not default).lower(), not default
    if int in kinds:
        value = int(facts.get("minimum", 0)) + 7
        return str(value), value
    if float in kinds:
        return "0.25", 0.25
    if str in kinds:
        return "some words", "some words"
    if tuple[float, ...] in kinds:
        return "0.5,2", (0.5, 2.0)
    return ("1,2", "1,2") if hint is Any else ("a,b", ("a", "b"))


# All but preset and baseline, which belong to no section.
LEAVES = {name: (field, hint) for name, hint, field in every_setting() if "." in name}
WITH_FLAG = [name for name in LEAVES if name.count(".") == 1 and name.split(".")[0] in FLAT]
# Where not every value of the type is one of the setting.
OTHER = {"model.blur.size": ("5", 5), "model.blur.layers": ("1,2", "1,2"), "data.max_windows": ("5", 5)}
OTHER["training.baselines"] = ("majority,cosine", "majority,cosine")
# What one setting alone would contradict.
NEEDS: dict[str, dict[str, str]] = {
    "training.eval_strategy": {"training.eval_steps": "5"},
    "training.lora_alpha": {"training.lora_rank": "4"},
    "training.lora_dropout": {"training.lora_rank": "4"},
    "objective.focal_gamma": {"objective.loss": "focal"},
    "training.calibrate": {"data.calibration_share": "0.1"},
    "training.thresholds": {"data.calibration_share": "0.1"},
    "data.fold": {"data.folds": "9"},
    "data.fold_seed": {"data.folds": "9", "data.fold": "2"},
    "data.calibration_share": {"training.calibrate": "temperature"},
    "data.calibration_file": {"training.calibrate": "temperature"},
    "data.extra_train_weights": {"data.extra_train_files": "a.csv,b.csv"},
}


def needed(name: str) -> list[str]:
    """The flags that go with this setting."""
    return [word for other, value in NEEDS.get(name, {}).items() for word in (f"--{other.split('.')[1]}", value)]


# labels.options is for generators of other packages: tests/test_plugins.py.
@pytest.mark.parametrize("name", [name for name in LEAVES if name != "labels.options"])
def test_every_setting_is_reached_by_set(name):
    written, value = OTHER.get(name) or another_value(*LEAVES[name])
    config = parsed("--set", f"{name}={written}", *needed(name))
    assert value_of(config, name) == value
    assert value != LEAVES[name][0].default or len(LEAVES[name][0].metadata["choices"]) == 1


@pytest.mark.integration
@pytest.mark.parametrize("name", WITH_FLAG)
def test_every_plain_setting_has_a_flag_of_its_name(name):
    written, value = OTHER.get(name) or another_value(*LEAVES[name])
    flag = "model_name_or_path" if name == "model.name_or_path" else name.split(".")[1]
    for words in (
        (f"--{flag}", written),
        (f"--{flag}={written}",),
        (f"--{flag.replace('_', '-')}", written),
        (f"--{flag.replace('_', '-')}={written}",),
    ):
        config = parsed(*words, *needed(name))
        assert value_of(config, name) == value
        # Nothing else changes.
        assert config == load_config(overrides={name: written, **NEEDS.get(name, {})})


def test_flags_have_the_names_of_training_arguments():
    from transformers import TrainingArguments

    names = {field.name for field in dataclasses.fields(TrainingArguments)}
    ours = {field.name for field in dataclasses.fields(TrainingConfig)}
    assert ours - names <= {
        "overwrite_output_dir", "resume", "precision", "fused_layers",
        "early_stopping_patience", "early_stopping_threshold",
        "warmup_ratio", "encoder_learning_rate", "freeze_encoder",
            "calibrate", "reject", "thresholds", "linear_probe", "l2_sp", "baselines",
        "lora_rank", "lora_alpha", "lora_dropout",
    }  # fmt: skip
    flat = [name.split(".")[1] for name in WITH_FLAG]
    assert len(set(flat)) == len(flat), "two sections have a flag of the same name"


SPELLINGS = yaml.safe_load(Path(__file__).with_name("spellings.yaml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("line", SPELLINGS)
def test_other_spellings(line):
    config, expected = parsed(*shlex.split(line)), SPELLINGS[line]
    for name, value in expected.items():
        assert value_of(config, name) in (value, tuple(value) if isinstance(value, list) else value)
    assert config == load_config(overrides=expected)


def test_booleans_with_and_without_a_value():
    for name in ("use_cpu", "load_best_model_at_end", "overwrite_output_dir"):
        assert not getattr(parsed().training, name)
        for words in ((f"--{name}",), (f"--{name}", "true"), (f"--{name}=Yes",), (f"--{name}", "--seed", "1")):
            assert getattr(parsed(*words).training, name), words
        for words in ((f"--{name}", "false"), (f"--{name}=0",)):
            assert not getattr(parsed(*words).training, name), words


def test_a_text_may_begin_as_a_flag_does():
    text = "-- a well-known good film"
    assert explain.parser().parse(["run", "--text", text])[0].text == [text]


def test_what_goes_before_what(tmp_path):
    """Defaults, the file's preset, the file, --preset, --set, flags: the later wins."""
    file = tmp_path / "config.yaml"
    file.write_text("preset: bert-mean\nmodel: {head: {dropout: 0.3}}\ntraining: {seed: 5, learning_rate: 0.01}\n")
    from_file = parsed("--config", file)
    assert (from_file.preset, from_file.model.head.kind, from_file.model.head.dropout) == ("bert-mean", "mean", 0.3)
    assert (from_file.training.seed, from_file.training.num_train_epochs) == (5, None)
    preset = parsed("--config", file, "--preset", "bert-cls-mean")
    assert (preset.preset, preset.model.head.kind, preset.model.head.dropout) == ("bert-cls-mean", "cls-mean", 0.3)
    by_set = parsed("--set", "model.head.kind=cls", "--config", file, "--preset", "bert-mean", "--set=training.seed=6")
    assert (by_set.model.head.kind, by_set.training.seed, by_set.training.learning_rate) == ("cls", 6, 0.01)
    by_flag = parsed("--seed", "7", "--config", file, "--set", "training.seed=6", "--learning_rate", "1e-3")
    assert (by_flag.training.seed, by_flag.training.learning_rate) == (7, 1e-3)
    assert parsed("--seed", "1", "--seed", "2").training.seed == 2
    assert parsed("--set", "training.seed=1", "--set", "training.seed=2").training.seed == 2
    again = tmp_path / "again.yaml"
    again.write_text(to_yaml(by_set))
    assert parsed("--config", again) == by_set


KNOWN_FLAGS = [flag for action in train.parser()._actions for flag in action.option_strings if "help" not in flag]
VALUES = ["", "-1", "0", "1e999", "nan", "null", "true", "a,b", "[", "{a: [", "x=y", "model.head.kind=mean", "--", "-"]
WORDS = st.one_of(
    st.sampled_from(KNOWN_FLAGS),
    st.sampled_from(VALUES),
    st.tuples(st.sampled_from(KNOWN_FLAGS), st.sampled_from(VALUES)).map("=".join),
    st.sampled_from([*KNOWN_FLAGS, "--nonsense"]).map(lambda flag: flag[:-1].replace("_", "-")),
    st.text(alphabet=st.characters(exclude_characters="\0", exclude_categories=("Cs",)), max_size=12),
    st.tuples(st.sampled_from(list(LEAVES)), st.text(max_size=6)).map(lambda pair: f"--set={pair[0]}={pair[1]}"),
)


@given(words=st.lists(WORDS, max_size=8))
@example(words=["--set", "=1"])
@example(words=["--set", ".=1"])
@example(words=["--set=training.=1", "--set=.seed=1"])
@example(words=["--set", "objective.class_weights={a: *b}"])
@example(words=["--config", "/dev/null/x"])
@example(words=["--=1"])
@example(words=["--config=--"])
@example(words=["--set=--"])
def test_no_words_raise_anything_but_a_config_error(words):
    if any(word in ("-h", "--help") or word.startswith("-h") for word in words):
        return
    problems: tuple[str, ...] = ("none",)
    try:
        parsed(*words)
    except ConfigError as error:
        problems = error.problems
    assert problems
    assert all(problem.strip() for problem in problems)


def test_the_run_folder_is_named_after_the_training_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    config = load_config(overrides={"data.train_file": "data/reviews.csv.gz"})
    assert train.with_run_folder(config).training.output_dir == str(Path("runs/reviews"))
    assert capsys.readouterr() == ("", f"The run folder is {Path('runs/reviews')}, as --output_dir is not given.\n")
    Path("runs/reviews").mkdir(parents=True)
    assert train.with_run_folder(config).training.output_dir == str(Path("runs/reviews-2"))
    for changes in ({"training.output_dir": "mine"}, {"training.resume": True}, {"data.train_file": None}):
        kept = load_config(overrides={"data.train_file": "reviews.csv", **changes})
        assert train.with_run_folder(kept) is kept
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert train.with_run_folder(config) is config


# The help of each command: the most used flags first, and no flag that the command does not obey


_FOLDER = Path(attentune.cli.__file__).parent
# Commands that train, whose settings all apply.
_TRAIN = ("train", "auto", "compare", "search")
# Settings that the commands on a finished run must not show: they are those of its training.
_OF_TRAINING = ("data.max_length", "data.long_texts", "data.stride", "data.max_windows",
                "data.extra_train_files", "data.extra_train_weights")  # fmt: skip
_ON_RUNS = ("predict", "explain", "evaluate", "calibrate")
# Of these, those that read texts and need no splits.
_ON_TEXTS = ("predict", "explain")


def parser_of(command: str, *arguments: str):
    return importlib.import_module(f"attentune.cli.{command}").parser(arguments)


def shown(command: str, *arguments: str) -> list:
    """The flags in the help of a command; a flag that is only a synonym is not shown."""
    actions = parser_of(command, *arguments, "--help_all")._actions
    return [action for action in actions if action.option_strings and action.help != "==SUPPRESS=="]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(attentune, command):
    status, out, err = attentune(command, "--help")
    assert (status, err) == (0, "")
    assert f"usage: attentune {command}" in out


@pytest.mark.parametrize(
    ("command", "arguments"),
    [*((name, ()) for name in COMMANDS), ("train", ["--adapt"]), ("evaluate", ["--suite"]), ("explain", ["--fit"])],
)
def test_every_flag_of_its_own_is_read(command, arguments):
    """Each is read from the parsed values, by the command or what checks and reads its files."""
    source = "".join((_FOLDER / f"{name}.py").read_text(encoding="utf-8") for name in (command, "flags", "inputs"))
    own = [action.dest for action in shown(command, *arguments) if "." not in action.dest]
    for name in (name for name in own if not name.startswith("help")):
        assert re.search(rf"parsed\.{name}\b|[\"']{name}[\"']", source), name


@pytest.mark.parametrize("command", _ON_RUNS)
def test_commands_on_a_run_show_no_settings_of_its_training(command):
    settings = {action.dest for action in shown(command) if "." in action.dest} - {"training.reject"}
    assert {name.split(".")[0] for name in settings} == {"data"}
    assert not settings & set(_OF_TRAINING)
    assert {"data.text_column", "data.task", "data.encoding"} <= settings
    if command in _ON_TEXTS:
        assert not {name for name in settings if name.endswith("_file") or "fold" in name or "train" in name}


@pytest.mark.parametrize("command", _TRAIN)
def test_the_most_used_come_first(command, capsys):
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
    made = parser_of(command, "--help-all")
    with pytest.raises(SystemExit):
        made.parse(["--help-all"])
    assert "--warmup_ratio" in capsys.readouterr().out


def test_a_flag_has_one_meaning():
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


def test_commands_are_in_four_groups(attentune):
    out, _ = attentune.done("--help")
    assert [line for line in out.splitlines() if line.removesuffix(":") in GROUPS] == [f"{group}:" for group in GROUPS]
    assert len(COMMANDS) == 18


def test_a_flag_that_does_another_job_has_a_help_of_its_own():
    assert parser_of("evaluate", "runs/mnli", "--suite=hans").prog == "attentune evaluate --suite hans"
    assert parser_of("evaluate", "runs/mnli").prog == "attentune evaluate"
    assert parser_of("compare", "runs/a", "runs/b").usage.startswith("attentune compare RUN RUN")
    assert parser_of("compare", "rows.csv", "--presets", "bert").usage.startswith("attentune compare --presets")


# What a command imports: `predict` no more than it needs, mistakes before PyTorch; seconds are not asserted


# Modules that predicting a text with a saved model does not need.
NOT_TO_PREDICT = (
    "datasets",
    "optuna",
    "pandas",
    "pyarrow",
    "sklearn",
    "statsmodels",
    "rich.progress",
    "attentune.training",
    "attentune.runs",
    "attentune.report",
)
_PROGRAM = """
import json, sys
from attentune.cli.main import main
status = main(sys.argv[2:])
print(json.dumps([status, [name for name in json.loads(sys.argv[1]) if name in sys.modules]]), file=sys.stderr)
"""


def imported(folder: Path, line: str, names: tuple[str, ...]) -> tuple[int, list[str], str, str]:
    """Run a command line as a program; return its status, which of the modules it imported, and its output."""
    words = [sys.executable, "-c", _PROGRAM, json.dumps(names), *shlex.split(line)]
    # Variables of torchrun would make it one of several processes.
    environment = {name: value for name, value in os.environ.items() if name not in ("LOCAL_RANK", "WORLD_SIZE")}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert "Traceback" not in done.stderr, done.stderr
    *told, last = done.stderr.splitlines()
    status, found = json.loads(last)
    return status, found, done.stdout, "\n".join(told)


@pytest.mark.integration
def test_predict_imports_what_it_needs(tiny, tmp_path, attentune):
    write_reviews(tmp_path / "train.csv", 24, seed=1)
    words = ("--model_name_or_path", tiny("bert"), "--max_steps", 1, "--baselines", "none", "--quiet", "--use_cpu")
    assert attentune("train", tmp_path / "train.csv", "--output_dir", tmp_path / "run", *words)[0] == 0
    status, found, out, told = imported(tmp_path, 'predict run --text "a dull film"', NOT_TO_PREDICT)
    assert (status, found) == (0, []), told
    assert (0, out) == attentune("predict", tmp_path / "run", "--text", "a dull film")[:2]


@pytest.mark.parametrize(
    "words",
    [
        "a.csv --overwrite_output_dir --seed 1",
        "a.csv --overwrite-output-dir=true --seed 1",
        "a.csv --overwrite_output_dir true --seed 1",
        "a.csv --seed 1 --resume false --overwrite_output_dir no",
        "a.csv --resume --seed 1",
    ],
)
def test_a_stopped_command_goes_on_without_overwriting(words, capsys):
    assert stopped("stopped.", "auto", words.split(), resume=True) == 130
    assert capsys.readouterr().err.endswith("\n  attentune auto a.csv --seed 1 --resume\n")
