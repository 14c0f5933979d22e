"""The result of a search as plain-text tables."""

from __future__ import annotations

import shlex

from attentune.cli.output import number, table
from attentune.experiments.search.plan import value_text
from attentune.experiments.search.search import SearchResult
from attentune.experiments.search.selection import TrialOutcome
from attentune.training.progress import one_line


def search_text(result: SearchResult) -> str:
    """Format the trials, best first, and the command that trains with the best settings."""
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
