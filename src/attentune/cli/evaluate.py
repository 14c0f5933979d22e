"""`attentune evaluate`: score a saved run, and show what it gets wrong."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from attentune.cli.early_checks import add_best_flag, check_columns, check_named, use_best
from attentune.cli.flags import (
    ROW_SETTINGS,
    Parser,
    add_config_flags,
    add_precision_flag,
    data_from,
    overrides_of,
    whole_number,
)
from attentune.cli.output import tell_cut_texts

_EXAMPLES = """examples:
  attentune evaluate runs/cola                                   (on the validation rows of its training)
  attentune evaluate runs/mine --validation_file other.csv --text_column text --label_column label
  attentune evaluate runs/mine --split test --errors_file errors.csv
  attentune evaluate runs/mnli --task mnli --data_dir glue_data --format json
  attentune evaluate runs/mnli --suite hans                      (HANS, by heuristic: evaluate --suite hans --help)"""
# Larger confusion tables are not printed.
_MOST_CLASSES = 12
_TEXT_CHARACTERS = 90


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune evaluate",
        usage="attentune evaluate RUN [flags]",
        description="Evaluate a saved run on labelled texts: scores with intervals, by class, and the worst errors."
        " Labels are matched by name.",
        epilog=_EXAMPLES,
    )
    made.add_argument("run", metavar="RUN", help="a run folder or checkpoint")
    add_best_flag(made)
    made.add_argument("--split", help="split: validation, test or train (default: validation; test with --test_file)")
    made.add_argument("--show_errors", metavar="N", default="10", help="worst errors to print (default: 10)")
    made.add_argument("--errors_file", metavar="FILE", help="write all wrong rows to this CSV file, worst first")
    made.add_argument("--details", action="store_true", help="with --format json: also intervals, classes, confusions")
    add_precision_flag(made, predicts=True)
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format")
    add_config_flags(made, only=ROW_SETTINGS)
    return made


def run(arguments: Sequence[str]) -> int:
    """Score; return the exit status."""
    parsed, problems = parser().parse(arguments)
    shown = whole_number("--show_errors", parsed.show_errors, problems, minimum=0) or 0
    # A task alone selects the run; its rows are those of the run, unless a folder or file is named.
    given = {name for name in overrides_of(parsed, []) if name in ("data.data_dir", "data.dataset_name")}
    use_best(parsed, names_rows=not given)
    data_config = data_from(parsed, problems)
    is_test = data_config is not None and data_config.test_file is not None and data_config.validation_file is None
    parsed.split = parsed.split or ("test" if is_test else "validation")
    check_named(parsed)
    for file in () if data_config is None else (data_config.validation_file, data_config.test_file):
        check_columns(file, data_config, with_label=True)

    from attentune.data.columns import columns_notes
    from attentune.inference.predictor import Predictor, evaluate_in_detail

    saved = Predictor.load(parsed.run, None if data_config is None else data_config.task)
    found, data = evaluate_in_detail(saved, data_config, splits=(parsed.split,), precision=parsed.precision)
    tell_cut_texts(saved)
    for note in (*columns_notes(data.columns), *data.notes):
        print(note, file=sys.stderr)
    from attentune.results import to_json

    if parsed.format == "json":
        content: dict[str, Any] = {split: {m.name: m.value for m in one.metrics} for split, one in found.items()}
        if parsed.details:
            content["details"] = {split: one.to_dict() for split, one in found.items()}
            if by_phenomenon := _phenomena(found, data):
                content["details"]["phenomena"] = [one.to_dict() for one in by_phenomenon]
        print(to_json(content), end="")
    else:
        print("\n".join(_lines(found, data, shown)))
    if parsed.errors_file is not None:
        _write_errors(Path(parsed.errors_file), found, data)
    return 0


def _lines(found: Mapping[str, Any], data: Any, shown: int) -> Iterator[str]:
    from attentune.cli.output import number, table

    scores = [
        (split, metric.name, number(metric.value), _interval(metric))
        for split, one in found.items()
        for metric in one.metrics
    ]
    yield table(("split", "metric", "value", "95 % interval"), scores, right=(2,))
    for split, one in found.items():
        if one.classes:
            yield ""
            yield f"{split}: {one.rows:,} rows by class"
            yield ""
            by_class = [
                (c.name, number(c.precision), number(c.recall), number(c.f1), f"{c.rows:,}", f"{c.predicted:,}")
                for c in one.classes
            ]
            header = ("class", "precision", "recall", "f1", "rows", "predicted")
            yield table(header, by_class, right=range(1, 6))
        if one.confusion is not None and len(one.classes) <= _MOST_CLASSES:
            names = [c.name for c in one.classes]
            yield ""
            yield table(
                ("true class, predicted as", *names),
                [(name, *map(str, counts)) for name, counts in zip(names, one.confusion, strict=True)],
                right=range(1, len(names) + 1),
            )
        if one.calibration_error is not None:
            yield ""
            yield f"Expected calibration error {one.calibration_error:.4f}."
        yield from _error_lines(one, data.splits[split], shown)
    if by_phenomenon := _phenomena(found, data):
        yield ""
        yield "Matthews correlation by phenomenon; a row may have several"
        yield ""
        lines = [
            (one.category or "all", one.phenomenon or "all", f"{one.rows:,}", number(one.score), _interval(one))
            for one in by_phenomenon
        ]
        yield table(("category", "phenomenon", "rows", "value", "95 % interval"), lines, right=(2, 3))


def _phenomena(found: Mapping[str, Any], data: Any) -> tuple[Any, ...]:
    """Return the scores by phenomenon of GLUE's diagnostic set; nothing for other tasks."""
    if data.name != "ax" or "validation" not in found:
        return ()
    from attentune.suites.glue import score_rows

    return score_rows(data.splits["validation"], found["validation"].predictions)


def _interval(metric: Any) -> str:
    from attentune.cli.output import number

    return "" if metric.low != metric.low else f"{number(metric.low)} to {number(metric.high)}"


def _error_lines(one: Any, rows: Any, shown: int) -> Iterator[str]:
    if not shown or not one.errors:
        return
    yield ""
    count = "1 row is" if len(one.errors) == 1 else f"{len(one.errors):,} rows are"
    yield f"{count} wrong; the worst:" if one.classes else "The largest errors:"
    for error in one.errors[:shown]:
        text = rows.texts[error.row] if rows.pairs is None else f"{rows.texts[error.row]} | {rows.pairs[error.row]}"
        text = " ".join(text.split())
        text = text if len(text) <= _TEXT_CHARACTERS else f"{text[: _TEXT_CHARACTERS - 3]}..."
        yield f"  {error.id}: {error.prediction}, not {error.label} ({error.size:.3f}): {text}"


def _write_errors(file: Path, found: Mapping[str, Any], data: Any) -> None:
    from attentune.io.files import write_text

    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    is_pair = any(data.splits[split].pairs is not None for split in found)
    writer.writerow(["split", "id", "label", "prediction", "error", "text", *(["text_pair"] if is_pair else [])])
    count = 0
    for split, one in found.items():
        rows = data.splits[split]
        for error in one.errors:
            pair = [rows.pairs[error.row]] if is_pair else []
            texts = [rows.texts[error.row], *pair]
            writer.writerow([split, error.id, error.label, error.prediction, f"{error.size:.6f}", *texts])
            count += 1
    write_text(file, buffer.getvalue())
    print(f"{count:,} rows written to {file}", file=sys.stderr)
