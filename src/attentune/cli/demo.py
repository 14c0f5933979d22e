"""`attentune demo`: train methods on synthetic reviews with a shortcut."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from attentune.cli.flags import Parser
from attentune.cli.output import number, table
from attentune.config import TrainingConfig, load_preset, preset_names
from attentune.config.parse import parse_section
from attentune.errors import ConfigError

_DESCRIPTION = """Trains several methods on synthetic film reviews with a shortcut: a cinema's name that agrees with the
label in training and validation, and contradicts it in a challenge set. A method that attends to the relevant words
scores high on both; one that relies on the shortcut drops on the challenge set. After an interruption, the same command
resumes."""

_FOOTNOTE = """validation: the cinema's name agrees with the label, as in training; challenge: it contradicts it.
Accuracy on 600 reviews each, with one seed: another seed can change the order; `attentune compare` runs several."""


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(prog="attentune demo", usage="attentune demo [flags]", description=_DESCRIPTION)
    made.add_argument("--presets", default="", help="names with commas between, or all (default: a telling few)")
    made.add_argument("--output_dir", default="runs/demo", help="where data and runs go (default: runs/demo)")
    made.add_argument("--model_name_or_path", default="embedded", help="the encoder (default: embedded)")
    made.add_argument("--num_train_epochs", default="3", help="passes over the reviews (default: 3)")
    made.add_argument("--seed", default="42", help="seed of the reviews and of training (default: 42)")
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format of the table")
    made.add_argument("--quiet", action="store_true", help="no progress on standard error")
    return made


def run(arguments: Sequence[str]) -> int:
    """Run the demo; return the exit status."""
    parsed, problems = parser().parse(arguments)
    presets = _chosen(parsed.presets, problems)
    training = _training(parsed, problems)
    if problems:
        raise ConfigError(problems)

    from pathlib import Path

    from attentune.demo import DEFAULT_PRESETS, run_demo
    from attentune.results import to_json
    from attentune.training.progress import ProgressDisplay
    from attentune.training.signals import Interrupted

    display = ProgressDisplay(quiet=parsed.quiet)
    try:
        lines = list(
            run_demo(
                presets or DEFAULT_PRESETS,
                Path(parsed.output_dir),
                seed=training.seed,
                model=parsed.model_name_or_path,
                epochs=training.num_train_epochs,
                display=display,
            )
        )
    except Interrupted:
        print("attentune: stopped and saved; the same command resumes.", file=sys.stderr)
        return 130
    if parsed.format == "json":
        print(to_json([dataclasses.asdict(line) for line in lines]), end="")
        return 0
    rows = [
        (
            line.preset,
            number(line.validation, 3),
            number(line.challenge, 3),
            number(line.validation - line.challenge, 3),
            number(line.seconds, 0),
        )
        for line in lines
    ]
    print(table(("preset", "validation", "challenge", "fall", "seconds"), rows, right=(1, 2, 3, 4)))
    print(f"\n{_FOOTNOTE}\nData and runs: {parsed.output_dir}")
    print(f'Next: attentune predict {lines[0].folder} --text "The story was not dull at all."')
    return 0


def _chosen(names: str, problems: list[str]) -> tuple[str, ...]:
    if names.strip() == "all":
        return preset_names()
    chosen = tuple(name.strip() for name in names.split(",") if name.strip())
    for name in chosen:
        try:
            load_preset(name)
        except ConfigError as error:
            problems += error.problems
    return chosen


def _training(parsed: Any, problems: list[str]) -> TrainingConfig:
    """Parse seed and epochs, before anything is written."""
    given = {"seed": parsed.seed, "num_train_epochs": parsed.num_train_epochs}
    return parse_section(TrainingConfig, given, "training", problems)
