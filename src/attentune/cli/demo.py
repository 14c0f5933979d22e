"""`attentune demo`: the main job on real sentences."""

import shlex
from collections.abc import Sequence
from typing import Any

from attentune.cli.flags import QUIET, check, has_flag, parser_of
from attentune.cli.output import stopped, table
from attentune.config import TrainingConfig, load_preset, model_preset_names
from attentune.config.parse import parse_section
from attentune.errors import ConfigError

_HELP = f"""
attentune demo [flags]

Trains several methods on 1,600 real sentences, half about products and half about restaurants, and
scores them on 400 other ones and on 1,000 sentences about films, a domain without training sentences. Prints a
leaderboard, explains a prediction and writes a report. After an interruption, the same command resumes.

--presets NAME,NAME  presets, baselines and auto, or all (default: a telling few)
--output_dir DIR  where data and runs go (default: runs/demo)
--model_name_or_path NAME  the encoder (default: embedded)
--quick  a small one in runs/demo-quick: 400 sentences, 50 updates, 30 seconds of auto
--train_size N  number of training sentences, up to 1600 (default: 1600)
--num_train_epochs X  passes over the rows (default: 100 updates)
--time_limit TIME  time of auto: 60s, 5m (default: 40s)
--seed N>=0  seed of data and training (default: 42)
--jobs N  parallel runs (default: one per core on a CPU, else 1)
--format text|json  output format of the results (default: text)
{QUIET}

examples:
  attentune demo
  attentune demo --quick

The sentences: Kotzias et al., From Group to Individual Labels Using Deep Features, KDD 2015; UCI Machine Learning
Repository; licence CC BY 4.0."""

parser = parser_of("demo", _HELP)


def run(arguments: Sequence[str]) -> int:
    """Run the demo; return the exit status."""
    parsed, problems = parser().parse(arguments)
    options = _options(parsed, arguments, problems)
    check(problems)

    from attentune.runs.compare import ComparisonStopped

    try:
        _show_demo(parsed, options)
    except (ComparisonStopped, KeyboardInterrupt) as stop:
        return stopped(str(stop) or "stopped; what is finished is kept.", "demo", arguments)
    return 0


def _options(parsed: Any, arguments: Sequence[str], problems: list[str]) -> dict[str, Any]:
    """Return the arguments of the demo, checked before anything is written."""
    from attentune.automl.budget import parse_duration

    if parsed.quick:
        small = {"output_dir": "runs/demo-quick", "train_size": 400, "time_limit": "30s"}
        vars(parsed).update({name: value for name, value in small.items() if not has_flag(arguments, name)})

    overrides: dict[str, Any] = {"model.name_or_path": parsed.model_name_or_path}
    if parsed.num_train_epochs is not None:
        parse_section(TrainingConfig, {"num_train_epochs": parsed.num_train_epochs}, "training", problems)
        overrides["training.num_train_epochs"] = parsed.num_train_epochs
    methods = model_preset_names() if parsed.presets == ["all"] else tuple(parsed.presets or ())
    seconds = 0.0
    try:
        seconds = parse_duration(parsed.time_limit)
        for name in methods:
            if name != "auto":
                load_preset(name)
    except ConfigError as error:
        problems += error.problems
    return {
        "folder": parsed.output_dir,
        "train_size": parsed.train_size,
        "seed": parsed.seed,
        "overrides": overrides,
        "time_limit_s": seconds,
        "jobs": parsed.jobs,
        "quiet": parsed.quiet,
        **({"methods": methods} if methods else {}),
        **({"max_steps": 50} if parsed.quick else {}),
    }


def _show_demo(parsed: Any, options: dict[str, Any]) -> None:
    """Run the demo on real sentences and print its results."""
    from attentune.cli.explain import print_explanations
    from attentune.demo.leaderboard import NOTES, cells, ranked
    from attentune.demo.run import run_demo
    from attentune.results import to_json, without_nan

    result = run_demo(**options)
    if parsed.format == "json":
        content = {
            "answer": list(result.answer),
            "auto": result.auto,
            "leaderboard": [run.to_dict() for run in ranked(result.runs)],
            "explanation": {"of": result.explained.method, **result.explanation.to_dict()},
            "report": str(result.report),
        }
        print(to_json(without_nan(content)), end="")
        return
    header, rows = cells(result.runs)
    print("Which model is best for these texts?", *result.answer, "", sep="\n")
    print(table(header, rows, right=range(1, len(header))))
    print("", *([result.auto] if result.auto else []), *NOTES, sep="\n")
    print(f"\nWhy {result.explained.method} predicts what it does:\n")
    print_explanations([[result.explanation]])
    print(f"Report: {result.report}")
    predict = shlex.join(["attentune", "predict", str(result.explained.folder), "--text", "The story was not dull."])
    own = "attentune auto --train_file YOURS.csv --text_column text --label_column label --output_dir runs/mine"
    print(f"Next: {predict}", f"Your own file: {own}", sep="\n")
