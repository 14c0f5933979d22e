"""`attentune predict`: predict texts."""

import re
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from attentune.cli.flags import PRECISION, TEXT_SETTINGS, TEXTS, parser_of
from attentune.cli.inputs import (
    check_columns,
    check_named,
    check_text_flags,
    output_ending,
    tell,
    text_chunks,
)
from attentune.cli.output import destination, row_bar, stopped
from attentune.errors import ConfigError
from attentune.plugins import require_extra

_HELP = f"""
attentune predict RUN (--text TEXT | --input_file FILE | --task TASK) [flags]

Predict texts with a saved run: id, label (if given), prediction and probabilities of each text.

RUN  a run folder or checkpoint
--output_file FILE  output file, .csv or .jsonl (default: standard output)
--format csv|json|parquet  CSV, JSON (one object a line) or, with --output_dir, Parquet (csv if not given, json for an
    --output_file .jsonl, parquet with --output_dir)
{PRECISION}
--explain  add a column with the importance of each word as JSON, for runs that score tokens (ssa-hybrid, ...)
--keep_columns all|NAME,NAME  with --input_file: columns to copy to the output (none if not given)
{TEXTS}
--output_dir DIR  a folder or URL for the output, in files that are skipped once written
--shard I/N  with --output_dir: predict the I-th of N parts of the rows (1/1 if not given)

examples:
  attentune predict runs/cola --text "The car honked its way down the road."
  attentune predict runs/rte --text "A cat sat." --text_pair "An animal sat." --format json
  attentune predict runs/mine --input_file new.csv --keep_columns all --output_file labelled.csv
  zcat new.csv.gz | attentune predict runs/mine --input_file -
  attentune predict searches/mine/best --input_file new.csv     (the model of a search)
  attentune predict runs/mine --input_file new.csv --explain     (adds the importance of each word, from the same pass)
  attentune predict runs/cola --task cola --data_dir glue_data --split test --output_file cola-test.csv
  attentune predict runs/mine --input_file 'corpus/*.parquet' --output_dir predicted --shard 1/8     (1/8 to 8/8)

With --output_dir, --input_file may also be a folder, a quoted pattern ('corpus/*.parquet') or a URL (s3://...)."""

parser = parser_of("predict", _HELP, TEXT_SETTINGS)


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser().parse(arguments)
    number, parts = _check_part_flags(parsed, problems)
    if parsed.keep_columns is not None and parsed.input_file is None:
        problems.append("--keep_columns: goes with --input_file.")
    ending = output_ending(parsed, (".csv", ".jsonl"), problems)
    data = check_text_flags(parsed, problems)
    check_named(parsed)
    keep = tuple(parsed.keep_columns or ())
    if parsed.output_dir is not None:
        return _predict_part(arguments, parsed, data, keep, number, parts)
    check_columns(parsed.input_file, data, keep=keep)

    # Imported late, so that mistakes are reported without delay.
    from attentune.data.tables import CHUNK
    from attentune.inference.predictor import Predictor
    from attentune.inference.streaming import predictions_in_chunks

    saved = Predictor.load(parsed.run)
    chunks = text_chunks(parsed, data, saved, CHUNK, keep_columns=keep)
    tell([f"This model {saved.job}.", *chunks.notes])
    if chunks.kept:
        _check_kept(chunks.kept, saved)
    # No progress bar if the results go to the same terminal.
    is_shown = not parsed.text and (parsed.output_file is not None or not sys.stdout.isatty())
    with (
        destination(parsed.output_file) as put,
        row_bar(chunks.num_rows, least=int(CHUNK.rows)) if is_shown else nullcontext() as progress,
    ):
        options = _options(saved, parsed, progress)
        as_json = parsed.format == "json" or (parsed.format is None and ending == ".jsonl")
        for text in predictions_in_chunks(saved, chunks, as_json=as_json, **options):
            put(text)
    tell(saved.read.notes())
    if parsed.output_file is not None:
        tell([f"{chunks.num_rows} predictions written to {parsed.output_file}"])
    return 0


def _check_part_flags(parsed: Any, problems: list[str]) -> tuple[int, int]:
    """Check the flags of many rows; return the number of the part, from 1, and how many there are."""
    given = parsed.input_file
    if parsed.output_dir is None:
        problems += ["--shard: goes with --output_dir."] if parsed.shard is not None else []
        problems += ["--format: parquet goes with --output_dir."] if parsed.format == "parquet" else []
        is_pattern = given is not None and re.search(r"[*?\[]", given) and not Path(given).expanduser().exists()
        if given is not None and ("://" in given or is_pattern):
            problems.append(
                f"--input_file: got {given}, expected one file. Folders, patterns and URLs are read with --output_dir."
            )
        return 1, 1
    if given is None or given == "-":
        got = "standard input, which each part would read again. Save it to a file" if given else "none"
        problems.append(f"--input_file: got {got}; expected a file, folder, pattern or URL with --output_dir.")
    if parsed.output_file is not None:
        problems.append("--output_file: does not go with --output_dir.")
    found = re.fullmatch(r"(\d+)/(\d+)", parsed.shard or "1/1")
    number, parts = (int(found[1]), int(found[2])) if found is not None else (0, 0)
    if not 1 <= number <= parts <= 99_999:
        problems.append(f"--shard: got {parsed.shard}, expected I/N from 1/N to N/N, such as 3/8.")
    if parsed.format in (None, "parquet") and not problems:
        require_extra("parquet", "pyarrow", what="--format parquet, which --output_dir writes unless it is csv or json")
    return number, parts


def _predict_part(
    arguments: Sequence[str], parsed: Any, data: Any, keep: Sequence[str], number: int, parts: int
) -> int:
    from attentune.data.unlabelled import find_sources, part_chunks
    from attentune.inference.predictor import Predictor
    from attentune.inference.streaming import check_same_parts, run_fingerprint, write_part
    from attentune.io.urls import is_there

    saved = Predictor.load(parsed.run)
    config = saved.with_columns(data)
    sources = find_sources(parsed.input_file, config)
    kind, folder = parsed.format or "parquet", parsed.output_dir.rstrip("/")
    place = f"{folder}/part-{number:05d}-of-{parts:05d}.{'jsonl' if kind == 'json' else kind}"
    request = {
        "run": run_fingerprint(saved),
        "input": [f"{one.file.path}: {one.file.bytes} bytes, {one.file.modified}" for one in sources],
        "data": {name: value for name, value in vars(config).items() if value != getattr(type(config)(), name)},
        "keep_columns": keep,
        "precision": parsed.precision,
        "explain": parsed.explain,
        "format": kind,
        "parts": parts,
    }
    check_same_parts(folder, request)
    if is_there(place):
        tell([f"{place} is already written."])
        return 0
    tell([f"This model {saved.job}."])
    sources = [source.scanned() for source in sources]
    of_run: Any = {"label_space": saved.label_space, "is_pair": saved.is_pair, "config": config}
    rows = part_chunks(sources, number, parts, keep_columns=keep, **of_run)
    tell(rows.notes)
    _check_kept([name for name in rows.kept if name not in ("label", "labels")], saved)
    check_same_parts(folder, request, record=True)
    try:
        with row_bar(rows.num_rows, least=1 << 16) as progress:
            write_part(saved, place, rows, **_options(saved, parsed, progress))
    except KeyboardInterrupt:
        return stopped("stopped, and this part is not written.", "predict", arguments)
    written = f"{rows.num_rows:,} of {sum(source.rows for source in sources):,} rows written to {place}"
    tell((*saved.read.notes(), written))
    return 0


def _check_kept(kept: Sequence[str], saved: Any) -> None:
    from attentune.inference.predictions import prediction_kinds
    from attentune.inference.streaming import further_columns

    label = "labels" if saved.label_space.is_multilabel else "label"
    own = {"id", label, *prediction_kinds(saved.label_space), *further_columns(saved, with_explanation=True)}
    if same := [name for name in kept if name in own]:
        raise ConfigError(
            f"--keep_columns: the input has {', '.join(map(repr, same))}, as the output has. List the columns to keep"
            " without it, or rename it in the input."
        )


def _options(saved: Any, parsed: Any, progress: Any) -> dict[str, Any]:
    """Return how to predict; with --explain what adds the importance of each word."""
    options = {"precision": parsed.precision, "progress": progress}
    if not parsed.explain:
        return options
    from attentune.explain.texts import predict_explained

    return {**options, "explain": lambda rows: predict_explained(saved, rows, **options)}
