"""`attentune search`: search hyper-parameters."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attentune.cli.early_checks import check_data, check_files_of_rows, check_output_folder
from attentune.cli.flags import (
    MOST_USED,
    Parser,
    add_config_flags,
    add_executor_flags,
    add_train_file,
    executor_options,
    overrides_of,
    whole_number,
    with_section,
)
from attentune.cli.output import number, table
from attentune.config import Config, to_flat
from attentune.config.parse import coerce, did_you_mean
from attentune.errors import ConfigError

if TYPE_CHECKING:
    from attentune.execution.executor import ExecutorOptions
    from attentune.runs.search import SearchResult
    from attentune.runs.search_settings import SearchSettings
    from attentune.runs.study import TrialOutcome


def search_text(result: SearchResult) -> str:
    """Format the trials, best first, and the command that trains with the best settings."""
    from attentune.runs.search_plan import value_text

    names = list(dict.fromkeys(name for trial in result.trials for name in trial.params))
    has_spread = any(trial.std is not None for trial in result.trials)
    by_parts = result.criterion.rule == "three-parts"
    header = ["trial", *(name.split(".")[-1] for name in names), result.criterion.metric]
    header += ["std"] * has_spread + ["value"] * by_parts + ["seconds", "status"]
    rows = []
    for trial in result.trials:
        row = [trial.name, *(value_text(trial.params[name]) for name in names)]
        row.append("-" if trial.mean is None else number(trial.mean))
        row += ["-" if trial.std is None else number(trial.std)] * has_spread
        row += ["-" if trial.value is None else number(trial.value)] * by_parts
        rows.append([*row, f"{trial.seconds:.0f}", trial.status])
    lines = [table(header, rows, right=range(1, len(header) - 1)), "", *_importance_lines(result)]
    if result.best is None:
        return "\n".join([*lines, "No trial is finished, so none can be selected."]) + "\n"
    return "\n".join([*lines, *_winner_lines(result, result.best)]) + "\n"


def _importance_lines(result: SearchResult) -> list[str]:
    if result.importance is None:
        return [f"importance: {result.importance_note}."]
    shares = ", ".join(f"{name.split('.')[-1]} {share:.2f}" for name, share in result.importance.items())
    return [f"importance (share of the variance between trials): {shares}"]


def _winner_lines(result: SearchResult, best: TrialOutcome) -> list[str]:
    from attentune.training.callbacks import one_line

    by = "its mean score"
    if result.criterion.rule == "three-parts":
        sign = "-" if result.criterion.greater_is_better else "+"
        by = f"mean {sign} {result.criterion.k:g} std over three parts of the validation rows"
    where = "rows held out of train; dev was not used" if result.rows.score_on == "train" else "dev itself"
    done = sum(trial.value is not None for trial in result.trials)
    equal = sum(trial.value == best.value for trial in result.trials)
    shared = f" {equal} trials share this value; the first is selected." if equal > 1 else ""
    lines = [
        f"best: {best.name}, by {by}, on {where}.{shared}",
        f"As the best of {done}, its score is optimistically biased; expect less on new rows.",
    ]
    if result.model is None:
        return [*lines, f"train with it: attentune train --config {shlex.quote(str(result.config))}"]
    search = shlex.quote(str(result.model.parent))
    scores = f" ({one_line(result.model_scores)})" if result.model_scores else ""
    return [
        *lines,
        f"model with its settings, trained on all training rows: {result.model}{scores}",
        f"predict with it: attentune predict {search} --best --input_file FILE",
    ]


_EXAMPLES = """examples:
  attentune search --task rte --data_dir glue_data --space ssa --output_dir searches/rte
  attentune search --task cola --data_dir glue_data --preset bert --output_dir searches/cola \\
      --search training.learning_rate=log:1e-5:1e-3 --search training.num_train_epochs=3,5 --trials 30
  attentune search --train_file reviews.csv --search model.head.kind=cls,mean --output_dir searches/reviews

VALUES of --search: a,b,c; LOW:HIGH; LOW:HIGH:STEP; log:LOW:HIGH. By default trials are scored on held-out rows of
train, so that dev stays unseen. After an interruption, the same command resumes."""


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune search",
        usage="attentune search --space NAME --output_dir DIR [flags]",
        description="Search hyper-parameters on a task, in parallel, and train a model with the best ones.",
        epilog=_EXAMPLES,
    )
    _add_search_flags(made)
    _add_work_flags(made)
    add_train_file(made)
    add_config_flags(made, first=MOST_USED)
    return made


def _add_search_flags(made: Parser) -> None:
    made.add_argument(
        "--space",
        metavar="NAME|FILE",
        help="a paper's grid (bert, sesame, ssa, task-attention), or a YAML file",
    )
    made.add_argument(
        "--search", action="append", default=[], metavar="NAME=VALUES", help="a setting to vary, and its values"
    )
    made.add_argument(
        "--sampler",
        metavar="grid|random|tpe",
        help="how trials are sampled (default: grid for lists of values, else tpe)",
    )
    made.add_argument("--trials", metavar="N", help="number of trials (default: the whole grid; else 20)")
    made.add_argument("--seeds", default="1", help="runs of each trial, with different seeds (default: 1)")
    made.add_argument(
        "--choose",
        metavar="score|three-parts",
        default="score",
        help="rank by the mean score, or by mean - k std over three parts of the rows scored (default: score)",
    )
    made.add_argument("--k", default="1", help="three-parts: the weight of the standard deviation (default: 1)")
    made.add_argument(
        "--score_on",
        metavar="train|dev",
        default="train",
        help="score trials on held-out rows of train, or on dev itself (default: train)",
    )
    made.add_argument(
        "--search_share", default="0.2", help="share of train that is held out to score on (default: 0.2)"
    )
    made.add_argument(
        "--pruner",
        metavar="none|median|halving",
        help="stop trials that score worse than others (default: median with tpe, else none)",
    )
    made.add_argument(
        "--startup",
        default="5",
        help="finished trials before tpe models and the median pruner prunes (default: 5)",
    )


def _add_work_flags(made: Parser) -> None:
    made.add_argument("--plan", action="store_true", help="print the number of runs and the expected hours, and end")
    made.add_argument("--retry_failed", action="store_true", help="repeat trials that are recorded as failed")
    made.add_argument(
        "--settings_only", action="store_true", help="write the best settings, but do not train a model with them"
    )
    add_executor_flags(made)
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format of the table")
    made.add_argument("--quiet", action="store_true", help="no progress on standard error")


def run(arguments: Sequence[str]) -> int:
    """Search; return the exit status."""
    from attentune.runs.search_settings import SearchSettings

    parsed, problems = parser().parse(arguments)
    options = _settings(parsed, problems)
    where = executor_options(parsed, problems)
    folder = options["overrides"].pop("training.output_dir", None)
    if folder is None:
        problems.append("--output_dir: is missing; name the search's folder: --output_dir searches/first")
    if problems:
        raise ConfigError(problems)
    check_files_of_rows(options["overrides"])
    check_output_folder(folder, "search.json", "search")
    settings = SearchSettings(**options)
    _check_settings(settings)
    # Imported late, so that errors in flags are reported without delay.
    from attentune.results import to_json
    from attentune.runs.progress import ComparisonProgress
    from attentune.runs.search import ComparisonStopped, search
    from attentune.training.signals import Interrupted

    display = ComparisonProgress(quiet=parsed.quiet)
    if parsed.plan:
        print(_plan_text(folder, settings, where, display), end="")
        return 0
    try:
        result = search(
            folder,
            executor=where,
            retry_failed=parsed.retry_failed,
            train_best=not parsed.settings_only,
            display=display,
            **options,
        )
    except ComparisonStopped as stop:
        again = shlex.join(["attentune", "search", *arguments])
        print(f"attentune: {stop} Resume with:\n  {again}", file=sys.stderr)
        return 130
    except Interrupted as stop:
        again = shlex.join(["attentune", "search", *arguments])
        print(
            f"attentune: all trials are done, the model with the best settings is not: {stop}\nor:\n  {again}",
            file=sys.stderr,
        )
        return 130
    print(to_json(result.to_dict()) if parsed.format == "json" else search_text(result), end="")
    failed = [trial for trial in result.trials if trial.status == "failed"]
    if failed:
        print(
            f"attentune: {len(failed)} of {len(result.trials)} trials failed, {failed[0].name} with:"
            f" {failed[0].message} The same command with --retry_failed repeats them.",
            file=sys.stderr,
        )
    return 0 if result.best is not None else 2


def _check_settings(settings: SearchSettings) -> None:
    """Check space, settings and rows before PyTorch is imported."""
    from attentune.runs.search_settings import check_search

    checked = check_search(settings)
    check_data(checked.trials.config({}).data, seed=checked.sampling.seed)


def _plan_text(folder: str, settings: SearchSettings, where: ExecutorOptions, display: Any) -> str:
    """Format the number of runs and their expected time."""
    from attentune.execution.executor import default_slots
    from attentune.runs.search import plan_search
    from attentune.runs.timing import time_left

    planned = plan_search(folder, settings, display.info)
    jobs = default_slots([dict(settings.overrides or {})], where.jobs).count
    trials = f"{len(planned)} trials with {settings.seeds} seed{'s' * (settings.seeds > 1)} each"
    return (
        f"{trials}, {sum(one.done for one in planned)} of their runs recorded.\n{time_left(planned, jobs)} So does the"
        " model with the best settings; pruned trials take less.\n"
    )


def _settings(parsed: Any, problems: list[str]) -> dict[str, Any]:
    """Return the fields of `SearchSettings`; append errors to `problems`."""
    from attentune.runs.space import dimension_of

    overrides = overrides_of(parsed, problems)
    dimensions = [dimension_of(with_section(text), problems) for text in parsed.search]
    known = to_flat(Config())
    for one in dimensions:
        if one is not None and one.name not in known:
            near = did_you_mean(one.name.rpartition(".")[2], [name.rpartition(".")[2] for name in known])
            problems.append(f"--search {one.name}: there is no such setting.{near}")
    if not dimensions and parsed.space is None:
        problems.append("search: got nothing to vary, expected --space NAME or --search NAME=VALUES.")
    return {
        "space": parsed.space,
        "vary": [dimension for dimension in dimensions if dimension is not None],
        "sampler": parsed.sampler,
        "trials": whole_number("--trials", parsed.trials, problems),
        "seeds": whole_number("--seeds", parsed.seeds, problems),
        "choose": parsed.choose,
        "k": _number("--k", parsed.k, problems),
        "score_on": parsed.score_on,
        "search_share": _number("--search_share", parsed.search_share, problems),
        "pruner": parsed.pruner,
        "startup": whole_number("--startup", parsed.startup, problems),
        "preset": parsed.preset,
        "config": parsed.config,
        "overrides": overrides,
    }


def _number(flag: str, text: str, problems: list[str]) -> float:
    try:
        return float(coerce(text, float))
    except ValueError as error:
        problems.append(f"{flag}: got {text!r}, expected {error}")
        return 0.0
