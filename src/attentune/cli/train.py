"""`attentune train`: train a model."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from attentune.cli.flags import MOST_USED, Parser, add_config_flags, add_train_file, config_from
from attentune.config import Config
from attentune.errors import ConfigError, DataError

# Exit status with --strict of a model that has not learnt the task, or not more than a baseline.
NOT_LEARNT = 3
_EXAMPLES = """examples:
  attentune train --task cola --data_dir glue_data --preset bert --output_dir runs/cola
  attentune train --train_file reviews.csv --text_column text --label_column stars --output_dir runs/reviews
  attentune train --tasks sst5,quora,sts --preset task-attention --multi_task --output_dir runs/three
  attentune train --resume --output_dir runs/cola            (after an interruption)
  attentune train --config runs/cola/config.yaml --seed 7 --output_dir runs/cola-7

Flags may be written with hyphens or underscores. Settings without a flag of their own: --set SECTION.KEY=VALUE."""


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune train",
        usage="attentune train [flags]",
        description="Fine-tune an encoder on labelled texts or text pairs, score it and save it.",
        epilog=_EXAMPLES,
    )
    made.add_argument(
        "--strict",
        action="store_true",
        help="exit with status 3 if the model predicts one class for nearly all rows or is not better than a baseline",
    )
    made.add_argument(
        "--fit_explainer",
        action="store_true",
        help="afterwards fit a head that explains each prediction in the same pass, as attentune explain --fit does",
    )
    made.add_argument("--quiet", action="store_true", help="no progress on standard error")
    made.add_argument("--format", choices=("text", "json"), default="text", help=argparse.SUPPRESS)
    add_train_file(made)
    add_config_flags(made, first=MOST_USED)
    return made


def run(arguments: Sequence[str]) -> int:
    """Train; return the exit status."""
    parsed, problems = parser().parse(arguments)
    config = config_from(parsed, problems)
    for name in ("strict", "fit_explainer"):
        if getattr(parsed, name) and config.data.tasks is not None:
            raise ConfigError(
                f"--{name}: works with one task; leave it out with --tasks, or train on each task by itself."
            )
    config = with_run_folder(config)
    from attentune.cli.early_checks import check_before_run
    from attentune.training.callbacks import ProgressDisplay, is_main_rank
    from attentune.training.prepare import prepare
    from attentune.training.signals import Interrupted

    config = check_before_run(config)
    # Mistakes are told before PyTorch is imported.
    prepared = None if config.data.tasks is not None else prepare(config)
    from attentune.results import to_json
    from attentune.training.run import finished_run
    from attentune.training.run import run as run_prepared
    from attentune.training.tasks import train_tasks

    try:
        with ProgressDisplay(quiet=parsed.quiet) as display:
            if config.data.tasks is not None:
                return _show_tasks(train_tasks(config, display=display), parsed.format)
            result = finished_run(config, display) if prepared is None else run_prepared(prepared, display=display)
    except Interrupted as stop:
        print(f"attentune: {stop}", file=sys.stderr)
        return 130
    if not is_main_rank():
        return 0
    if parsed.format == "json":
        print(to_json(result.metrics()), end="")
    else:
        from attentune.cli.output import baselines_table, scores_table

        print(scores_table(result.scores))
        if result.baselines is not None:
            print(f"\n{baselines_table(result.baselines)}")
    if parsed.fit_explainer:
        _fit_explainer(config, quiet=parsed.quiet)
    return NOT_LEARNT if parsed.strict and result.warnings else 0


def with_run_folder(config: Config) -> Config:
    """Return the configuration with a run folder named after the training file, if none is given, and say so.

    Several processes have to agree on the folder, so it has to be given there.
    """
    file, settings = config.data.train_file, config.training
    if settings.output_dir is not None or settings.resume or file is None or "WORLD_SIZE" in os.environ:
        return config
    stem = Path(file).name.split(".")[0] or "run"
    names = (stem if number == 1 else f"{stem}-{number}" for number in itertools.count(1))
    folder = next(folder for folder in (Path("runs") / name for name in names) if not os.path.lexists(folder))
    print(f"The run folder is {folder}, as --output_dir is not given.", file=sys.stderr)
    return replace(config, training=replace(settings, output_dir=str(folder)))


def _fit_explainer(config: Config, *, quiet: bool) -> None:
    """Fit the attribution head of the run that was trained; where that cannot be, say so: the run is saved already."""
    from attentune.cli.fit_explainer import fit_note
    from attentune.cli.output import progress_lines
    from attentune.explain.texts import fit_explainer

    folder = str(config.training.output_dir)
    try:
        facts = fit_explainer(folder, seed=config.training.seed, progress=None if quiet else progress_lines())
    except (ConfigError, DataError) as error:
        print(f"attentune: {error}", file=sys.stderr)
    else:
        print(fit_note(folder, facts), file=sys.stderr)


def _show_tasks(result: Any, form: str) -> int:
    """Print the scores of several tasks."""
    from attentune.cli.output import number, table
    from attentune.results import to_json
    from attentune.training.callbacks import is_main_rank

    if not is_main_rank():
        return 0
    if form == "json":
        print(to_json(result.to_dict()), end="")
        return 0
    rows = [
        (task, split, name, number(value))
        for task, scores in result.scores.items()
        for split, metrics in scores.items()
        for name, value in metrics.items()
    ]
    rows += [("all three", split, "leaderboard score", number(value)) for split, value in result.leaderboard.items()]
    print(table(("task", "split", "metric", "value"), rows, right=(3,)))
    return 0
