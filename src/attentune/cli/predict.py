"""`attentune predict`: predict texts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

from attentune.cli.flags import Parser, add_precision_flag
from attentune.cli.output import destination, row_bar
from attentune.cli.text_rows import add_text_flags, check_text_flags, read_text_chunks

_EXAMPLES = """examples:
  attentune predict runs/cola --text "The car honked its way down the road."
  attentune predict runs/rte --text "A cat sat." --text_pair "An animal sat."
  attentune predict runs/mine --input_file new.csv --output_file labelled.csv
  attentune predict runs/mine --input_file new.csv --explain     (adds the importance of each word, from the same pass)
  attentune predict runs/cola --task cola --data_dir glue_data --split test --output_file cola-test.csv"""


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune predict",
        usage="attentune predict RUN (--text TEXT | --input_file FILE | --task TASK) [flags]",
        description="Predict texts with a saved run: a CSV with id, label (if given), prediction and probabilities.",
        epilog=_EXAMPLES,
    )
    made.add_argument("run", metavar="RUN", help="a run folder or checkpoint")
    made.add_argument("--output_file", help="output file (default: standard output)")
    add_precision_flag(made, predicts=True)
    made.add_argument(
        "--explain",
        action="store_true",
        help="add a column with the importance of each word as JSON, for runs that score tokens (ssa-hybrid, ...)",
    )
    add_text_flags(made)
    return made


def run(arguments: Sequence[str]) -> int:
    """Predict; return the exit status."""
    parsed, problems = parser().parse(arguments)
    data = check_text_flags("predict", parsed, problems)

    from attentune.data.readers.table import CHUNK
    from attentune.inference.predictor import Predictor
    from attentune.inference.streaming import predictions_in_chunks

    saved = Predictor.load(parsed.run, data.task)
    chunks = read_text_chunks(parsed, data, saved, CHUNK)
    # No progress bar if the results go to the same terminal.
    is_shown = parsed.output_file is not None or not sys.stdout.isatty()
    with (
        destination(parsed.output_file) as put,
        row_bar(chunks.num_rows, least=int(CHUNK.rows)) if is_shown else nullcontext() as progress,
    ):
        options = _explaining(saved, parsed, progress) if parsed.explain else {}
        for text in predictions_in_chunks(saved, chunks, precision=parsed.precision, progress=progress, **options):
            put(text)
    if parsed.output_file is not None:
        print(f"{chunks.num_rows} predictions written to {parsed.output_file}", file=sys.stderr)
    return 0


def _explaining(saved: Any, parsed: Any, progress: Any) -> dict[str, Any]:
    """Return options of `predictions_in_chunks` that add the importance of each word."""
    from attentune.explain.predict_explained import EXPLANATION, predict_explained

    def predict(rows: Any) -> Any:
        logits_NC, column = predict_explained(saved, rows, precision=parsed.precision, progress=progress)
        return logits_NC, [column]

    return {"more": (EXPLANATION,), "predict": predict}
