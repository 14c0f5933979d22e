"""`attentune label`: list token labels."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from attentune.cli.flags import (
    PRECISION,
    ROW_SETTINGS,
    Parser,
    add_config_flags,
    config_from,
    overrides_of,
    whole_number,
)
from attentune.cli.inputs import check_named, read_file_rows

SUMMARY = "list the token labels that a run was trained on, and the importance it predicts"
_EXAMPLES = """examples:
  attentune label runs/cola --output_file labels.jsonl           (its training rows, with their token labels)
  attentune label runs/cola --split validation --max_samples 20
  attentune label runs/mine --input_file new.csv

Each line of JSON: {"id", "text", "gold", "predicted", "tokens": [{"text", "start", "end", "in", "label", "score"}]}.
label: the token label of the last epoch, from 0 (not important) to 1 (important); null without a label.
score: the importance predicted by the trained token head, from 0 to 1."""


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune label",
        usage="attentune label RUN [flags]",
        description="List, as JSON lines, the token labels that a run was trained on and the importance it predicts.",
        epilog=_EXAMPLES,
    )
    made.add_argument("run", metavar="RUN", help="a run folder or checkpoint")
    made.add_argument(
        "--input_file", help="a file of texts: .csv .tsv .json .jsonl .parquet ..., or - for standard input"
    )
    made.add_argument("--split", default="train", help="split: train, validation or test (default: train)")
    made.add_argument("--max_samples", help="use only the first N rows")
    made.add_argument("--output_file", help="output file (default: standard output)")
    made.add_lines(PRECISION)
    add_config_flags(made, only=ROW_SETTINGS)
    return made


def run(arguments: Sequence[str]) -> int:
    """List tokens; return the exit status."""
    parsed, problems = parser().parse(arguments)
    named_data = overrides_of(parsed, [])
    if parsed.input_file is not None and ({"data.task", "data.dataset_name"} & set(named_data)):
        problems.append("label: got --input_file and a task or data set; expected one of them, or none.")
    max_samples = whole_number("--max_samples", parsed.max_samples, problems)
    config = config_from(parsed, problems)
    check_named(parsed)

    from attentune.inference.predictor import Predictor
    from attentune.io.files import write_text
    from attentune_lab.token_list import list_tokens

    saved = Predictor.load(parsed.run)
    rows = _rows(parsed, config.data if named_data else None, saved)
    listed = list_tokens(saved, rows, max_samples=max_samples, precision=parsed.precision)
    lines = _lines(listed)
    if parsed.output_file is None:
        sys.stdout.writelines(lines)
        return 0
    text = list(lines)
    write_text(parsed.output_file, "".join(text))
    print(f"{len(text)} rows written to {parsed.output_file}", file=sys.stderr)
    return 0


def _lines(rows: Iterator[dict[str, Any]]) -> Iterator[str]:
    import json

    from attentune.results import without_nan

    return (json.dumps(without_nan(row), ensure_ascii=False) + "\n" for row in rows)


def _rows(parsed: Any, data: Any, saved: Any) -> Any:
    """Return the rows given by the flags; None for the training rows of the run."""
    if parsed.input_file is not None:
        return read_file_rows(parsed.input_file, data or saved.config.data, saved)
    if data is None and parsed.split == "train":
        return None
    return next(iter(saved.data(data, (parsed.split,)).splits.values()))
