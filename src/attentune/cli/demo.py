"""`attentune demo`: the main job on real sentences."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import Any

from attentune.cli.flags import Parser, names_in, whole_number
from attentune.cli.output import table
from attentune.config import TrainingConfig, load_preset, model_preset_names
from attentune.config.parse import parse_section
from attentune.errors import ConfigError

_DESCRIPTION = """Trains several methods on 1,600 real sentences, half about products and half about restaurants, and
scores them on 400 other ones and on 1,000 sentences about films, a domain without training sentences. Prints a
leaderboard, explains a prediction and writes a report. After an interruption, the same command resumes."""

_EPILOG = """examples:
  attentune demo
  attentune demo --train_size 400 --output_dir runs/demo-400

The sentences: Kotzias et al., From Group to Individual Labels Using Deep Features, KDD 2015; UCI Machine Learning
Repository; licence CC BY 4.0."""


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(prog="attentune demo", usage="attentune demo [flags]", description=_DESCRIPTION, epilog=_EPILOG)
    made.add_argument("--presets", default="", help="presets, baselines and auto, or all (default: a telling few)")
    made.add_argument("--output_dir", help="where data and runs go (default: runs/demo)")
    made.add_argument("--model_name_or_path", default="embedded", help="the encoder (default: embedded)")
    made.add_argument("--train_size", help="number of training sentences, up to 1600 (default: 1600)")
    made.add_argument("--num_train_epochs", help="passes over the rows (default: 300 updates)")
    made.add_argument("--time_limit", metavar="TIME", help="time of auto: 60s, 5m (default: 90s)")
    made.add_argument("--seed", default="42", help="seed of data and training")
    made.add_argument("--jobs", metavar="N", help="parallel runs (default: one per core on a CPU, else 1)")
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format of the results")
    made.add_argument("--quiet", action="store_true", help="no progress on standard error")
    return made


def run(arguments: Sequence[str]) -> int:
    """Run the demo; return the exit status."""
    parsed, problems = parser().parse(arguments)
    options = _options(parsed, problems)
    train_size = whole_number("--train_size", parsed.train_size, problems)
    time_limit_s = _time_limit(parsed.time_limit, problems)
    if problems:
        raise ConfigError(problems)

    from attentune.runs.compare import ComparisonStopped

    try:
        sizes = {"train_size": train_size, "time_limit_s": time_limit_s}
        _show_demo(parsed, options | {name: value for name, value in sizes.items() if value is not None})
    except (ComparisonStopped, KeyboardInterrupt) as stop:
        again = shlex.join(["attentune", "demo", *arguments])
        print(f"attentune: {stop or 'stopped; what is finished is kept.'} Resume with:\n  {again}", file=sys.stderr)
        return 130
    return 0


def _time_limit(text: str | None, problems: list[str]) -> float | None:
    if text is None:
        return None
    from attentune.automl.budget import parse_duration

    try:
        return parse_duration(text)
    except ConfigError as error:
        problems += error.problems
        return None


def _options(parsed: Any, problems: list[str]) -> dict[str, Any]:
    """Return the arguments of the demo, checked before anything is written."""
    given = {"seed": parsed.seed}
    if parsed.num_train_epochs is not None:
        given["num_train_epochs"] = parsed.num_train_epochs
    training = parse_section(TrainingConfig, given, "training", problems)
    overrides: dict[str, Any] = {"model.name_or_path": parsed.model_name_or_path}
    if parsed.num_train_epochs is not None:
        overrides["training.num_train_epochs"] = training.num_train_epochs
    methods = _chosen(parsed.presets, problems)
    return {
        "folder": parsed.output_dir or "runs/demo",
        "seed": training.seed,
        "overrides": overrides,
        "jobs": whole_number("--jobs", parsed.jobs, problems),
        "quiet": parsed.quiet,
        **({"methods": methods} if methods else {}),
    }


def _chosen(names: str, problems: list[str]) -> tuple[str, ...]:
    if names.strip() == "all":
        return model_preset_names()
    chosen = tuple(names_in(names))
    for name in chosen:
        if name == "auto":
            continue
        try:
            load_preset(name)
        except ConfigError as error:
            problems += error.problems
    return chosen


def _show_demo(parsed: Any, options: dict[str, Any]) -> None:
    """Run the demo on real sentences and print its results."""
    from attentune.cli.explain_tables import print_explanations
    from attentune.demo.leaderboard import NOTES, cells, ranked, strongest_word
    from attentune.demo.run import run_demo
    from attentune.results import to_json, without_nan

    result = run_demo(**options)
    if parsed.format == "json":
        content = {
            "answer": list(result.answer),
            "leaderboard": [line.to_dict() for line in ranked(result.lines)],
            "explanation": {"of": result.explained.method, **result.explanation.to_dict()},
            "report": str(result.report),
        }
        print(to_json(without_nan(content)), end="")
        return
    header, rows = cells(result.lines)
    print("\n".join(result.answer) + "\n")
    print(table(header, rows, right=range(1, len(header))))
    print("\n" + "\n".join(NOTES))
    print(f"\nWhy {result.explained.method} predicts what it does:\n")
    print_explanations([[result.explanation]])
    print(strongest_word(result.explanation))
    print(f"Report: {result.report}")
    print(f'Next: attentune predict {result.explained.folder} --text "The story was not dull at all."')
