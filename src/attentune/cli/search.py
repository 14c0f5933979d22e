"""`attentune search`: search hyper-parameters."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from attentune.cli.flags import EXECUTOR, FILE, FORMAT, QUIET, check, overrides_of, parser_of, with_section
from attentune.cli.inputs import check_data, check_files_of_rows, executor_options
from attentune.cli.output import number, stopped, table
from attentune.config import Config, to_flat
from attentune.config.parse import did_you_mean

if TYPE_CHECKING:
    from attentune.runs.search import SearchResult
    from attentune.runs.trials import TrialOutcome

_HELP = f"""
attentune search --search NAME=VALUES --output_dir DIR [flags]

Search hyper-parameters on a task, in parallel, and train a model with the best ones.

{FILE}
--search NAME=VALUES...  a setting to vary, and its values
--sampler grid|random|tpe  how trials are sampled (default: grid for lists of values, else tpe)
--trials N  number of trials (default: the whole grid; else 20)
--seeds N  runs of each trial, with different seeds (default: 1)
--choose score|three-parts  rank by the mean score, or by mean - k std over three parts of the rows scored
    (default: score)
--k X  three-parts: the weight of the standard deviation (default: 1)
--score_on train|dev  score trials on held-out rows of train, or on dev itself (default: train)
--search_share X  share of train that is held out to score on (default: 0.2)
--pruner none|median  stop trials that score worse than others (default: median with tpe, else none)
--startup N  finished trials before tpe models and the median pruner prunes (default: 5)
--retry_failed  repeat trials that are recorded as failed
--settings_only  write the best settings, but do not train a model with them
{EXECUTOR}
{FORMAT}
{QUIET}

examples:
  attentune search --task rte --data_dir glue_data --preset sesame --search model.blur.sigma=0.01,0.1,0.3,0.5 \\
      --output_dir searches/rte
  attentune search --task cola --data_dir glue_data --preset bert --output_dir searches/cola \\
      --search training.learning_rate=log:1e-5:1e-3 --search training.num_train_epochs=3,5 --trials 30
  attentune search --train_file reviews.csv --search model.head.kind=cls,mean --output_dir searches/reviews

VALUES of --search: a,b,c; LOW:HIGH; log:LOW:HIGH. By default trials are scored on held-out rows of
train, so that dev stays unseen. After an interruption, the same command resumes."""

parser = parser_of("search", _HELP, None)


def run(arguments: Sequence[str]) -> int:
    from attentune.runs.search_settings import SearchSettings, check_search

    parsed, problems = parser(arguments).parse(arguments)
    options = _settings(parsed, problems)
    where = executor_options(parsed, problems)
    folder = options["overrides"].pop("training.output_dir", None)
    if folder is None:
        problems.append("--output_dir: is missing; name the search's folder: --output_dir searches/first")
    check(problems)
    check_files_of_rows(options["overrides"])
    checked = check_search(SearchSettings(**options))
    check_data(checked.config({}).data, seed=checked.seed)
    # Imported late, so that errors in flags are reported without delay.
    from attentune.results import to_json
    from attentune.runs.progress import ComparisonProgress
    from attentune.runs.search import ComparisonStopped, search
    from attentune.training.run_folder import Interrupted

    try:
        result = search(
            folder,
            executor=where,
            retry_failed=parsed.retry_failed,
            train_best=not parsed.settings_only,
            display=ComparisonProgress(quiet=parsed.quiet),
            **options,
        )
    except ComparisonStopped as stop:
        return stopped(stop, "search", arguments)
    except Interrupted as stop:
        return stopped(f"all trials are done, the model with the best settings is not: {stop}.", "search", arguments)
    print(to_json(result.to_dict()) if parsed.format == "json" else _text(result), end="")
    failed = [trial for trial in result.trials if trial.status == "failed"]
    if failed:
        print(
            f"attentune: {len(failed)} of {len(result.trials)} trials failed, {failed[0].name} with:"
            f" {failed[0].message} The same command with --retry_failed repeats them.",
            file=sys.stderr,
        )
    return 0 if result.best is not None else 2


def _settings(parsed: Any, problems: list[str]) -> dict[str, Any]:
    """Return the fields of `SearchSettings`."""
    from attentune.runs.search_settings import dimension_of

    overrides = overrides_of(parsed, problems)
    dimensions = [dimension_of(with_section(text), problems) for text in parsed.search]
    known = to_flat(Config())
    for one in dimensions:
        if one is not None and one.name not in known:
            near = did_you_mean(one.name.rpartition(".")[2], [name.rpartition(".")[2] for name in known])
            problems.append(f"--search {one.name}: there is no such setting.{near}")
    names = ("sampler", "trials", "seeds", "choose", "k", "score_on", "search_share", "pruner", "startup", "preset",
             "config")  # fmt: skip
    space = [dimension for dimension in dimensions if dimension is not None]
    return {**{name: getattr(parsed, name) for name in names}, "space": space, "overrides": overrides}


def _text(result: SearchResult) -> str:
    from attentune.runs.trials import value_text

    names = list(dict.fromkeys(name for trial in result.trials for name in trial.params))
    scores = ["mean"]
    scores += ["std"] if any(trial.std is not None for trial in result.trials) else []
    scores += ["value"] if result.search.options.choose == "three-parts" else []
    header = ["trial", *(name.split(".")[-1] for name in names), result.search.metric, *scores[1:]]
    rows = []
    for trial in result.trials:
        shown = ("-" if (score := getattr(trial, name)) is None else number(score) for name in scores)
        values = (value_text(trial.params[name]) for name in names)
        rows.append([trial.name, *values, *shown, f"{trial.seconds:.0f}", trial.status])
    header += ["seconds", "status"]
    lines = [table(header, rows, right=range(1, len(header) - 1)), ""]
    if result.best is None:
        return "\n".join([*lines, "No trial is finished, so none can be selected."]) + "\n"
    return "\n".join([*lines, *_winner_lines(result, result.best)]) + "\n"


def _winner_lines(result: SearchResult, best: TrialOutcome) -> list[str]:
    from attentune.training.callbacks import one_line

    by = "its mean score"
    if result.search.options.choose == "three-parts":
        sign = "-" if result.search.greater_is_better else "+"
        by = f"mean {sign} {result.search.options.k:g} std over three parts of the validation rows"
    where = "rows held out of train; dev was not used" if result.search.options.score_on == "train" else "dev itself"
    done = sum(trial.value is not None for trial in result.trials)
    equal = sum(trial.value == best.value for trial in result.trials)
    shared = f" {equal} trials share this value; the first is selected." if equal > 1 else ""
    lines = [
        f"best: {best.name}, by {by}, on {where}.{shared}",
        f"As the best of {done}, its score is optimistically biased; expect less on new rows.",
    ]
    if result.model is None:
        return [*lines, f"train with it: attentune train --config {shlex.quote(str(result.config))}"]
    scores = f" ({one_line(result.model_scores)})" if result.model_scores else ""
    return [
        *lines,
        f"model with its settings, trained on all training rows: {result.model}{scores}",
        f"predict with it: attentune predict {shlex.quote(str(result.model))} --input_file FILE",
    ]
