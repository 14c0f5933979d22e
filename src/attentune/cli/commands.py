"""The commands: one table, by the groups of the help."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

GROUPS = ("make a model", "use it", "your data", "look things up")


class Command(NamedTuple):
    """A command, whose module is `attentune.cli.NAME`."""

    group: str  # one of GROUPS
    summary: str


_MAKE, _USE, _DATA, _LOOK = GROUPS
COMMANDS = {
    "train": Command(_MAKE, "fine-tune an encoder, evaluate it and save it; --adapt: adapt it to texts without labels"),
    "auto": Command(_MAKE, "find and train the best model for your rows within a time limit"),
    "search": Command(_MAKE, "search hyperparameters on a task, and write the best settings as a configuration"),
    "compare": Command(_MAKE, "train presets on tasks with several seeds and test their differences; or compare runs"),
    "predict": Command(_USE, "predict texts with a saved run"),
    "evaluate": Command(_USE, "evaluate a saved run on labelled texts, or on HANS (--suite hans)"),
    "explain": Command(_USE, "score how much each word contributed to a prediction; --fit: in the pass that predicts"),
    "calibrate": Command(_USE, "fit a temperature and decision thresholds of a finished run on held-out rows"),
    "serve": Command(_USE, "serve a web page and a JSON API that predict and explain texts"),
    "export": Command(_USE, "export a saved run as ONNX, or for transformers"),
    "report": Command(_USE, "report comparisons and runs: tables, verdicts and figures as HTML, Markdown or LaTeX"),
    "doctor": Command(_DATA, "check a dataset for problems before training"),
    "suggest": Command(_DATA, "choose the texts of a file whose labels would help a saved run most"),
    "init": Command(_DATA, "write a commented configuration for a file of rows"),
    "list": Command(_LOOK, "list the built-in tasks, the presets (methods), known encoders or the settings"),
    "params": Command(_LOOK, "count the parameters of a run or preset, by component"),
    "submit": Command(_LOOK, "write a zip of GLUE test predictions for the GLUE leaderboard"),
    "demo": Command(_LOOK, "train methods on real sentences of two domains and score them on a third"),
}


class Mode(NamedTuple):
    """A flag by which a command does another job, whose flags and code are in a module of their own."""

    flag: str
    choices: tuple[str, ...]  # the values of the flag; none for a switch
    module: str
    help: str


MODES = {
    "train": Mode("adapt", (), "adapt", "adapt the encoder to texts without labels instead; see train --adapt --help"),
    "evaluate": Mode(
        "suite", ("hans",), "hans", "evaluate entailment runs on HANS instead; see evaluate --suite hans --help"
    ),
    "explain": Mode(
        "fit",
        (),
        "fit_explainer",
        "fit a head that explains each prediction in the same pass instead; see explain --fit --help",
    ),
}


def module_of(command: str, words: Sequence[str]) -> str:
    """Return the name of the module in `attentune.cli` that runs a command with these arguments."""
    mode = MODES.get(command)
    if mode is not None and any(word.split("=")[0] == f"--{mode.flag}" for word in words):
        return mode.module
    runs = itertools.takewhile(lambda word: not word.startswith("-"), words)
    return "compare_runs" if command == "compare" and len(list(runs)) > 1 else command


def table_of_commands(others: dict[str, str]) -> str:
    """Format the commands by group; `others` are those of other packages, with their summaries."""
    groups: dict[str, dict[str, str]] = {
        group: {name: one.summary for name, one in COMMANDS.items() if one.group == group} for group in GROUPS
    }
    if others:
        groups["from other packages"] = others
    width = max(map(len, (*COMMANDS, *others))) + 2
    return "\n\n".join(
        f"{group}:\n" + "\n".join(f"  {name:<{width}}{summary}" for name, summary in lines.items())
        for group, lines in groups.items()
    )
