"""`attentune compare RUN RUN`: compare trained runs on the same rows."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attentune.cli.flags import Parser, names_in, whole_number
from attentune.errors import AttentuneError, ConfigError

_EXAMPLES = """examples:
  attentune compare runs/bert runs/ssa
  attentune compare runs/bert runs/ssa runs/sesame --split test --metrics f1,accuracy
  attentune compare mine.csv theirs.csv --output_file changed.csv

The first run is the baseline. The tests are over rows, so they are about these trained models, not about the methods:
another seed may give the opposite result. For methods, use attentune compare --presets."""


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune compare",
        usage="attentune compare RUN RUN [RUN ...] [flags]",
        description="Compare trained runs on the same rows: scores, paired tests over rows, and rows that changed.",
        epilog=_EXAMPLES,
    )
    made.add_argument(
        "runs", metavar="RUN", nargs="+", help="run folders, or CSV files with the columns id, label and prediction"
    )
    made.add_argument("--split", default="validation", help="split of the run folders (default: validation)")
    made.add_argument("--metrics", metavar="NAME,NAME", help="metrics to test (default: those of the first run)")
    made.add_argument(
        "--task_type",
        choices=("classification", "regression", "multi_label"),
        help="for files without columns of probabilities, if it is not clear",
    )
    made.add_argument("--show", metavar="N", default="3", help="changed rows to print of each kind (default: 3)")
    made.add_argument("--output_file", metavar="FILE", help="write all rows whose prediction changed to this CSV file")
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format")
    return made


def run(arguments: Sequence[str]) -> int:
    """Compare; return the exit status."""
    parsed, problems = parser().parse(arguments)
    shown = whole_number("--show", parsed.show, problems, minimum=0) or 0
    if problems:
        raise ConfigError(problems)

    from attentune.results import to_json
    from attentune.runs.trained_runs import compare_trained_runs, read_run

    runs = [read_run(path, split=parsed.split, task_type=parsed.task_type) for path in parsed.runs]
    result = compare_trained_runs(runs, metrics=names_in(parsed.metrics))
    for note in result.notes:
        print(note, file=sys.stderr)
    # Texts are only shown, so a comparison without them is complete.
    texts = _texts(parsed, result) if parsed.output_file is not None or parsed.format == "text" else {}
    if parsed.format == "json":
        print(to_json(result.to_dict()), end="")
    else:
        print(_text(result, texts, shown), end="")
    if parsed.output_file is not None:
        _write(parsed.output_file, result, texts)
    return 0


def _texts(parsed: Any, result: Any) -> dict[str, str]:
    """Read the texts of the rows, by id, through the data settings of a run folder; none if it cannot be done."""
    if not any(len(kind) for one in result.changed for kind in (one.better, one.worse, one.both_wrong)):
        return {}
    folder = next((Path(path) for path in parsed.runs if (Path(path) / "config.yaml").is_file()), None)
    if folder is None:
        return {}
    from attentune.config import load_config
    from attentune.data.load import load_data

    try:
        config = load_config(folder / "config.yaml", as_record=True)
        data = load_data(config.data, seed=config.training.seed)
    except AttentuneError as error:
        print(f"{folder}: its texts cannot be shown ({str(error).splitlines()[0]})", file=sys.stderr)
        return {}
    rows = data.splits.get(parsed.split)
    if rows is None:
        return {}
    pairs = rows.pairs or ("",) * len(rows)
    return {
        row: f"{text} | {pair}" if pair else text for row, text, pair in zip(rows.ids, rows.texts, pairs, strict=True)
    }


def _text(result: Any, texts: Mapping[str, str], shown: int) -> str:
    """Format the scores and tests, and the changed rows."""
    from attentune.cli.output import number, table
    from attentune.report.document import format_interval, format_p, format_score

    header = ("metric", "run", "score", "difference", "95 % interval", "p", "p after Holm", "", "check")
    lines = []
    for metric in dict.fromkeys(one.metric for one in result.tests):
        tests = [one for one in result.tests if one.metric == metric]
        lines.append((metric, tests[0].first, number(tests[0].first_score), *[""] * 6))
        lines += [
            (
                "",
                one.second,
                number(one.second_score),
                format_score(one.difference, metric, sign=True),
                format_interval(one.low, one.high, metric),
                format_p(one.p),
                format_p(one.p_holm),
                one.marks,
                _check(one),
            )
            for one in tests
        ]
    parts = [
        f"{len(result.ids):,} rows. Differences to {result.runs[0].name} in points (errors in their own unit), positive"
        " where the run is better;",
        "p by the paired bootstrap over rows, * below 0.05 and ** below 0.01 after Holm's correction.",
        "",
        table(header, lines, right=(2, 3, 4, 5, 6)),
        "",
    ]
    for place, changed in enumerate(result.changed, start=1):
        parts += _changed_lines(result, place, changed, texts, shown)
    parts.append(
        "These tests are over rows: they say nothing about other seeds. attentune compare --presets tests methods."
    )
    return "\n".join(parts) + "\n"


def _check(one: Any) -> str:
    """Return the result of the second test, if the metric has one."""
    from attentune.report.document import format_p

    if one.mcnemar is not None:
        counts = f"{one.mcnemar.only_first} only {one.first}, {one.mcnemar.only_second} only {one.second} right"
        return f"McNemar p {format_p(one.mcnemar.p)} ({counts})"
    return "" if one.p_wilcoxon != one.p_wilcoxon else f"Wilcoxon p {format_p(one.p_wilcoxon)}"


def _changed_lines(result: Any, place: int, changed: Any, texts: Mapping[str, str], shown: int) -> Iterator[str]:
    nearer = "right" if result.runs[0].predictions.names else "nearer to the score"
    kinds = [
        (f"only {changed.second} is {nearer}", changed.better),
        (f"only {changed.first} is {nearer}", changed.worse),
        ("both are wrong, in different ways", changed.both_wrong),
    ]
    told = [f"rows of which {name}: {len(rows):,}" for name, rows in kinds if len(rows)]
    yield f"{changed.second} against {changed.first}: {'; '.join(told) or 'no prediction changed'}."
    for name, rows in kinds:
        if shown and len(rows):
            yield f"  {name}:"
        for row in rows[:shown]:
            row_id = result.ids[row]
            predicted = f"{result.text_of(0, row)} -> {result.text_of(place, row)}"
            text = f"  {_short(texts[row_id])}" if row_id in texts else ""
            yield f"    {row_id}: {predicted} (label {result.label_of(row)}){text}"
    yield ""


def _short(text: str, characters: int = 90) -> str:
    text = " ".join(text.split())
    return text if len(text) <= characters else f"{text[: characters - 3]}..."


def _write(path: str, result: Any, texts: Mapping[str, str]) -> None:
    """Write the rows of which any run predicts something else than the first."""
    from attentune.io.files import write_text

    changed = sorted(
        {int(row) for one in result.changed for kind in (one.better, one.worse, one.both_wrong) for row in kind}
    )
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(
        ["id", *(["text"] if texts else []), "label", *(f"prediction of {run.name}" for run in result.runs)]
    )
    for row in changed:
        text = [texts.get(result.ids[row], "")] if texts else []
        predicted = [result.text_of(place, row) for place in range(len(result.runs))]
        writer.writerow([result.ids[row], *text, result.label_of(row), *predicted])
    write_text(Path(path), buffer.getvalue())
    print(f"{len(changed):,} changed rows written to {path}", file=sys.stderr)
