"""`attentune stress`: measure robustness to changed texts."""

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

from attentune.cli.flags import PRECISION, ROW_SETTINGS, Parser, add_config_flags, data_from
from attentune.cli.inputs import check_named
from attentune.errors import ConfigError

SUMMARY = "measure robustness: how much scores drop on changed texts"
_EXAMPLES = """examples:
  attentune stress runs/reviews                                  (on the validation rows of its training)
  attentune stress runs/bert runs/sesame                         (which of two is less robust?)
  attentune stress runs/mine --validation_file other.csv --text_column text --label_column label --format json

drop: the score on the original rows minus the score on the changed rows, with a 95 % bootstrap interval over the rows.
With two runs, difference is the drop of the second minus that of the first; above 0 the second is less robust."""


def parser() -> Parser:
    made = Parser(
        prog="attentune stress",
        usage="attentune stress RUN [OTHER_RUN] [flags]",
        description="Measure how much the score of a run drops on changed texts, and on which rows it is low.",
        epilog=_EXAMPLES,
    )
    made.add_argument("runs", metavar="RUN", nargs="+", help="one run folder or checkpoint, or two to compare")
    made.add_argument("--split", default="validation", help="split: validation, test or train (default: validation)")
    made.add_lines(PRECISION)
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format")
    add_config_flags(made, only=ROW_SETTINGS)
    return made


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser().parse(arguments)
    if len(parsed.runs) > 2:
        problems.append(f"stress: got {len(parsed.runs)} runs, expected one, or two to compare.")
    data_config = data_from(parsed, problems)
    check_named(parsed)

    from attentune.inference.predictor import Predictor
    from attentune.results import to_json
    from attentune_lab.robustness import stress

    saved = [Predictor.load(folder) for folder in parsed.runs]
    _check_same_task(saved)
    data = saved[0].data(data_config, (parsed.split,))
    report = stress(
        saved,
        data,
        training_rows=_training_rows(saved[0]),
        precision=parsed.precision,
        progress=lambda what: print(f"scoring the rows: {what}", file=sys.stderr),
    )
    print(to_json(dataclasses.asdict(report)) if parsed.format == "json" else _text(report), end="")
    return 0


def _check_same_task(saved: list[Any]) -> None:
    spaces = [run.label_space for run in saved]
    if len(saved) == 2 and (spaces[0] != spaces[1] or saved[0].is_pair != saved[1].is_pair):
        raise ConfigError(
            f"{saved[1].folder}: predicts {', '.join(spaces[1].names) or 'scores'}, {saved[0].folder}"
            f" {', '.join(spaces[0].names) or 'scores'}; expected two runs of the same task."
        )


def _training_rows(saved: Any) -> Any:
    """Return the training rows of the run, to find label-indicative words; None if they cannot be read."""
    from attentune.errors import AttentuneError

    try:
        return saved.data(None, ("train",)).splits.get("train")
    except AttentuneError as error:
        print(f"label-indicative words are taken from the evaluated rows: {error}", file=sys.stderr)
        return None


def _text(report: Any) -> str:
    from attentune.cli.output import table

    two = len(report.runs) == 2
    lines = [f"{report.metric} on {report.changes[0].rows} original rows:"]
    lines += [f"  {run}: {_interval(score)}" for run, score in zip(report.runs, report.original, strict=True)]
    names = [f"run {number + 1}" if two else "run" for number in range(len(report.runs))]
    extra = ["difference"] if two else []
    header = ["change", *(part for name in names for part in (name, f"drop of {name}")), *extra]
    rows = []
    for line in report.changes:
        pairs = zip(line.scores, line.falls, strict=True)
        cells = [part for score, fall in pairs for part in (f"{score.value:.4f}", _interval(fall))]
        rows.append([line.name, *cells, *([_interval(line.difference)] if two else [])])
    parts = [
        [line.name, str(line.rows), *map(_interval, line.scores), *([_interval(line.difference)] if two else [])]
        for line in report.parts
    ]
    left_out = ", ".join(report.label_indicative_words) or "none"
    return (
        "\n".join(lines)
        + f"\n\n{table(header, rows)}\n\n{table(['rows', 'count', *names, *extra], parts, right=(1,))}\n\n"
        + f"Label-indicative words that were excluded: {left_out}\n"
    )


def _interval(interval: Any) -> str:
    return f"{interval.value:.4f} [{interval.low:.4f}, {interval.high:.4f}]"
