"""`attentune evaluate --suite hans`: evaluate on HANS."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attentune.cli.early_checks import check_named
from attentune.cli.flags import Parser, add_precision_flag, whole_number
from attentune.errors import ConfigError

_EXAMPLES = """examples:
  attentune evaluate runs/mnli --suite hans --data heuristics_evaluation_set.txt
  attentune evaluate runs/bert-1 runs/bert-2 runs/ssa-1 runs/ssa-2 --suite hans --labels bert,bert,ssa,ssa
  attentune evaluate runs/rte --suite hans --data_dir hans --max_samples 3000 --format json

HANS has two classes: every class of a model but entailment counts as non-entailment. Runs with the same label are
averaged; +- is their standard deviation."""


_HEADING = "accuracy (chance is 0.5), with the 95 % interval over rows where each run has a column of its own"


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune evaluate --suite hans",
        usage="attentune evaluate RUN [RUN ...] --suite hans [flags]",
        description="Evaluate runs of an entailment task on HANS, by heuristic, gold label and subcase.",
        epilog=_EXAMPLES,
    )
    made.add_argument("runs", metavar="RUN", nargs="+", help="run folders or checkpoints")
    made.add_argument("--data", metavar="FILE", help="path of heuristics_evaluation_set.txt")
    made.add_argument("--data_dir", metavar="DIR", help="folder of the built-in task hans (default: ATTENTUNE_DATA)")
    made.add_argument("--labels", metavar="NAME,NAME,...", help="one name per run; runs with equal names are averaged")
    made.add_argument("--max_samples", metavar="N", help="use a sample of this many rows, stratified by subcase")
    made.add_argument("--seed", default="42", help="random seed of the sample (default: 42)")
    made.add_argument("--by_template", action="store_true", help="also print a line for each of the 118 templates")
    made.add_argument("--output_dir", metavar="DIR", help="also write hans.json, hans.png and predictions.txt here")
    add_precision_flag(made, predicts=True)
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format")
    return made


def run(arguments: Sequence[str]) -> int:
    """Score; return the exit status."""
    parsed, problems = parser().parse(arguments)
    max_samples = whole_number("--max_samples", parsed.max_samples, problems)
    seed = whole_number("--seed", parsed.seed, problems, minimum=0)
    labels = None if parsed.labels is None else [name.strip() for name in parsed.labels.split(",")]
    if labels is not None and (len(labels) != len(parsed.runs) or not all(labels)):
        problems.append(f"--labels: got {parsed.labels!r}, expected {len(parsed.runs)}: a name for each run.")
    if parsed.data is not None and parsed.data_dir is not None:
        problems.append("--data: got --data and --data_dir, expected one of them: a file, or the folder that holds it.")
    if parsed.output_dir is not None and Path(parsed.output_dir).is_file():
        problems.append(f"--output_dir: {parsed.output_dir} is a file, expected a folder; choose another name.")
    if problems:
        raise ConfigError(problems)
    check_named(parsed)

    from attentune.cli.output import progress_lines
    from attentune.results import to_json
    from attentune.suites.hans import score_hans

    report = score_hans(
        parsed.runs,
        parsed.data,
        data_dir=parsed.data_dir,
        methods=labels,
        max_samples=max_samples,
        seed=42 if seed is None else seed,
        precision=parsed.precision,
        progress=progress_lines(),
    )
    # Printed first, so that a full disk does not lose the scores.
    print(to_json(report.to_dict()) if parsed.format == "json" else _text(report, parsed.by_template), end="")
    if parsed.output_dir is not None:
        _write(report, Path(parsed.output_dir))
    return 0


def _text(report: Any, by_template: bool) -> str:
    from attentune.cli.output import table

    part = "" if report.rows == report.rows_in_file else f" of {report.rows_in_file:,}"
    lines = [f"{report.rows:,}{part} rows of {report.data}", ""]
    runs = [(run.name, run.method, run.entailment, ", ".join(run.non_entailment)) for run in report.runs]
    lines += [table(("run", "column", "entailment is", "non-entailment is"), runs), "", _HEADING, ""]
    header = ("heuristic", "gold label", "rows", *report.methods)
    right = range(2, len(header))
    cells = [
        (line.heuristic or "all", line.gold_label or "all", f"{line.rows:,}", *_means(line))
        for line in (*report.cells, report.overall)
    ]
    lines += [table(header, cells, right=right), ""]
    subcases = [(line.subcase, line.gold_label, f"{line.rows:,}", *_means(line)) for line in report.subcases]
    lines += [table(("subcase", *header[1:]), subcases, right=right), ""]
    if by_template:
        templates = [
            (line.subcase, line.template, line.gold_label, f"{line.rows:,}", *_means(line)) for line in report.templates
        ]
        places = range(3, 3 + len(header))
        lines += [table(("subcase", "template", *header[1:]), templates, right=places), ""]
    return "\n".join(lines)


def _means(line: Any) -> list[str]:
    from attentune.cli.output import number

    # Several runs of a method vary; a single one is uncertain over rows.
    single = iter(line.intervals) if len(line.means) == len(line.intervals) else None
    texts = []
    for mean, spread in zip(line.means, line.deviations, strict=True):
        interval = None if single is None else next(single)
        if spread is not None:
            texts.append(f"{number(mean)} +- {number(spread)}")
        elif interval is not None and interval[0] == interval[0]:
            texts.append(f"{number(mean)} [{number(interval[0], 3)}, {number(interval[1], 3)}]")
        else:
            texts.append(number(mean))
    return texts


def _write(report: Any, folder: Path) -> None:
    from attentune.io.files import storage_errors, write_text
    from attentune.report.charts import Bar, bars_figure, check_figure_file, save_figure
    from attentune.results import to_json

    for number, one in enumerate(report.runs):
        file = folder / one.name / "predictions.txt"
        with storage_errors(file.parent):
            file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, report.predictions_text(number))
    write_text(folder / "hans.json", to_json(report.to_dict()))
    if report.rows < report.rows_in_file:
        print("predictions.txt holds a sample of the rows; HANS's own scorer needs all of them.", file=sys.stderr)
    figure = folder / "hans.png"
    try:
        check_figure_file(figure)
    except ConfigError as error:
        print(f"warning: {error}", file=sys.stderr)
        print(f"written to {folder}, without the figure", file=sys.stderr)
        return
    panels: dict[str, dict[str, list[Bar]]] = {}
    for line in report.cells:
        panel = panels.setdefault(f"gold label: {line.gold_label}", {name: [] for name in report.methods})
        for name, mean, spread in zip(report.methods, line.means, line.deviations, strict=True):
            panel[name].append(Bar(mean, spread))
    groups = list(dict.fromkeys(line.heuristic.replace("_", " ") for line in report.cells))
    spread = "; error bars: standard deviation over runs" if any(report.overall.deviations) else ""
    title = f"HANS, {report.rows:,} rows{spread}"
    save_figure(bars_figure(panels, groups, chance=0.5, title=title), figure)
    print(f"written to {folder}", file=sys.stderr)
