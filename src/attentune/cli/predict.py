"""`attentune predict`: predict texts."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from attentune.cli.best import add_best_flag, use_best
from attentune.cli.early_checks import check_columns, check_named
from attentune.cli.flags import Parser, add_precision_flag
from attentune.cli.output import destination, row_bar
from attentune.cli.shards import (
    add_keep_columns,
    add_shard_flags,
    check_input,
    check_shard_flags,
    columns_to_keep,
    run_shards_of,
)
from attentune.cli.text_rows import (
    add_text_flags,
    check_text_flags,
    read_text_chunks,
    tell_cut_texts,
    tell_job,
    tell_notes,
)

_EXAMPLES = """examples:
  attentune predict runs/cola --text "The car honked its way down the road."
  attentune predict runs/rte --text "A cat sat." --text_pair "An animal sat."
  attentune predict runs/mine --input_file new.csv --output_file labelled.csv
  zcat new.csv.gz | attentune predict runs/mine --input_file -
  attentune predict searches/mine --best --input_file new.csv     (the best run of a comparison or search)
  attentune predict runs/mine --input_file new.csv --explain     (adds the importance of each word, from the same pass)
  attentune predict runs/cola --task cola --data_dir glue_data --split test --output_file cola-test.csv
  attentune predict runs/mine --input_file 'corpus/*.parquet' --output_dir predicted --keep_columns all --jobs 2"""

# Endings of files that nobody would take for CSV.
_NO_CSV = (".db", ".sqlite", ".sqlite3", ".xlsx", ".xls", ".xlsb", ".ods", ".feather", ".arrow", ".parquet")


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune predict",
        usage="attentune predict RUN (--text TEXT | --input_file FILE | --task TASK) [flags]",
        description="Predict texts with a saved run: a CSV with id, label (if given), prediction and probabilities.",
        epilog=_EXAMPLES,
    )
    made.add_argument("run", metavar="RUN", help="a run folder or checkpoint")
    add_best_flag(made)
    made.add_argument("--output_file", help="output file (default: standard output)")
    add_precision_flag(made, predicts=True)
    made.add_argument(
        "--explain",
        action="store_true",
        help="add a column with the importance of each word as JSON, for runs that score tokens (ssa-hybrid, ...)",
    )
    add_keep_columns(made)
    add_text_flags(made)
    add_shard_flags(made)
    return made


def run(arguments: Sequence[str]) -> int:
    """Predict; return the exit status."""
    parsed, problems = parser().parse(arguments)
    shards = check_shard_flags(parsed, problems)
    use_best(parsed, names_rows=parsed.text is not None or parsed.input_file is not None)
    if parsed.output_dir is not None:
        data = check_input("predict", parsed, problems)
        check_named(parsed)
        return _predict_shards(arguments, parsed, shards, data)
    if parsed.keep_columns is not None and parsed.input_file is None:
        problems.append("--keep_columns: goes with --input_file.")
    if parsed.output_file is not None and Path(parsed.output_file).suffix.lower() in _NO_CSV:
        problems.append(
            f"--output_file: got {parsed.output_file}, but predictions are written as CSV. Name it .csv; --output_dir"
            " writes Parquet, or JSON lines with --output_format jsonl."
        )
    data = check_text_flags("predict", parsed, problems)

    check_named(parsed)
    check_columns(parsed.input_file, data, keep=columns_to_keep(parsed))

    # Imported late, so that mistakes are reported without delay.
    from attentune.data.readers.table import CHUNK
    from attentune.inference.predictor import Predictor
    from attentune.inference.streaming import predictions_in_chunks

    saved = Predictor.load(parsed.run, data.task)
    chunks = read_text_chunks(parsed, data, saved, CHUNK, keep_columns=columns_to_keep(parsed))
    tell_job(saved)
    tell_notes(chunks)
    if chunks.kept:
        _check_kept(chunks.kept, saved)
    # No progress bar if the results go to the same terminal.
    is_shown = parsed.text is None and (parsed.output_file is not None or not sys.stdout.isatty())
    with (
        destination(parsed.output_file) as put,
        row_bar(chunks.num_rows, least=int(CHUNK.rows)) if is_shown else nullcontext() as progress,
    ):
        options = _explaining(saved, parsed, progress) if parsed.explain else {}
        for text in predictions_in_chunks(saved, chunks, precision=parsed.precision, progress=progress, **options):
            put(text)
    tell_cut_texts(saved)
    if parsed.output_file is not None:
        print(f"{chunks.num_rows} predictions written to {parsed.output_file}", file=sys.stderr)
    return 0


def _predict_shards(arguments: Sequence[str], parsed: Any, given: dict[str, Any], data: Any) -> int:
    from attentune.experiments.shards.task import PREDICT, predict_shard
    from attentune.inference.predictor import Predictor

    kind, task = PREDICT, predict_shard
    if parsed.explain:
        from attentune.explain.shards import PREDICT_EXPLAINED, predict_explained_shard

        kind, task = PREDICT_EXPLAINED, predict_explained_shard
    saved = Predictor.load(parsed.run)
    options = {"precision": parsed.precision, "explain": parsed.explain}
    status, _, _ = run_shards_of(
        "predict", arguments, parsed, given, saved=saved, data=data, kind=kind, task=task, options=options
    )
    return status


def _check_kept(kept: Sequence[str], saved: Any) -> None:
    from attentune.experiments.shards.plan import check_kept
    from attentune.explain.predict_explained import EXPLANATION
    from attentune.inference.predictions import output_names

    check_kept(kept, output_names(saved.label_space, (EXPLANATION,)))


def _explaining(saved: Any, parsed: Any, progress: Any) -> dict[str, Any]:
    """Return options of `predictions_in_chunks` that add the importance of each word."""
    from attentune.explain.predict_explained import EXPLANATION, predict_explained

    def predict(rows: Any) -> Any:
        logits_NC, column = predict_explained(saved, rows, precision=parsed.precision, progress=progress)
        return logits_NC, [column]

    return {"more": (EXPLANATION,), "predict": predict}
