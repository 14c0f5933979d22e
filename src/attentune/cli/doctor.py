"""`attentune doctor`: check a dataset, and with `--labels` its labels."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attentune.cli.flags import FILE, FORMAT, config_from, overrides_of, parser_of
from attentune.cli.inputs import check_data, check_named
from attentune.cli.output import progress_lines, short, table
from attentune.errors import DataError
from attentune.training.run_folder import check_feasible

if TYPE_CHECKING:
    from attentune.labels.label_check import LabelCheck

_HELP = f"""
attentune doctor [flags]

Check a dataset for problems before training: leaks, contradictions, imbalance, truncation, size, and with --labels
wrong labels.

{FILE}
{FORMAT}
--labels  look for training rows with wrong labels (needs cleanlab)
--run RUN  with --labels: a run of attentune auto on these rows, instead of a linear model
--count N>=0  with --labels: how many rows are shown, with words (20 if not given)
--output_file FILE  with --labels: write all rows to check

examples:
  attentune doctor --task rte --data_dir glue_data
  attentune doctor --train_file train.csv --validation_file dev.csv --text_column text --label_column label
  attentune doctor train.csv --labels --output_file errors.csv   (all of them, with file and line)
  attentune doctor --labels --run best                           (by the predictions of a run of attentune auto)"""
# Rows that get words, if --count does not say it; characters of a text that are shown.
_COUNT, _TEXT_WIDTH = 20, 60
# The gain over the most frequent class, as a share of the possible gain, from which a model has learnt the labels.
_WEAK = 0.3

parser = parser_of("doctor", _HELP, ("data", "model", "training.seed"))


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser().parse(arguments)
    for flag in () if parsed.labels else ("run", "count", "output_file"):
        if getattr(parsed, flag) is not None:
            problems.append(f"--{flag}: goes with --labels.")
    count = _COUNT if parsed.count is None else parsed.count
    config = config_from(parsed, problems)
    check_named(parsed)
    if not parsed.labels:
        check_data(config.data, seed=config.training.seed, allow_doubt=True)
        check_feasible(config)

    from attentune.data.doctor import examine, full_lines
    from attentune.models.build import is_english_only
    from attentune.results import to_json

    if parsed.labels:
        config = _config_of_run(parsed, config)
        config = replace(config, data=replace(config.data, validation_share=0.0))
    data, read, lengths = rows_and_lengths(config)
    report = examine(
        read, token_lengths=lengths, max_length=config.data.longest_row, english_only=is_english_only(config.model)
    )
    content, lines = {"notes": list(data.notes), **asdict(report)}, full_lines(report)
    if parsed.labels:
        check = _check_labels(parsed, config, data, count)
        content["labels"] = asdict(check)
        lines += ["", *_label_lines(check, count, parsed.output_file)]
    if parsed.format == "json":
        print(to_json(content), end="")
    else:
        print("\n".join([*data.notes, "", *lines] if data.notes else lines))
    return 0


def rows_and_lengths(config: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Load the rows; return them, the same without ignored words, and by split each row's tokens before truncation."""
    from attentune.data.ignored_words import data_without_words
    from attentune.data.load import load_data
    from attentune.data.tokenization import encode_rows
    from attentune.models.build import load_tokenizer

    data = load_data(config.data, seed=config.training.seed, allow_doubt=True)
    tokenizer, limit = load_tokenizer(config.model), config.data.longest_row
    bi_encoder = config.model.pair_encoding == "bi-encoder"
    read = data_without_words(data, config.data.ignore_words)
    return (
        data,
        read,
        {
            name: encode_rows(rows, tokenizer, max_length=limit, bi_encoder=bi_encoder).full_lengths
            for name, rows in read.splits.items()
        },
    )


def _config_of_run(parsed: Any, config: Any) -> Any:
    """Take the data settings of the run, if there is one and no data is given."""
    if parsed.run is None or {"data.train_file", "data.task", "data.dataset_name"} & set(overrides_of(parsed, [])):
        return config
    from attentune.inference.predictor import saved_config

    return replace(config, data=saved_config(Path(parsed.run)).data)


def _check_labels(parsed: Any, config: Any, data: Any, count: int) -> LabelCheck:
    from attentune.labels.label_check import check_ending, check_labels, write_errors

    if parsed.output_file is not None:
        check_ending(parsed.output_file)
    rows = data.splits.get("train")
    if rows is None or rows.labels is None:
        raise DataError(f"{data.name}: got no labelled training rows, expected some. Give them with --train_file.")
    report = progress_lines() if len(rows) >= 2000 else None
    check = check_labels(rows, data.label_space, config=config, run=parsed.run, explained=count, progress=report)
    if parsed.output_file is not None:
        write_errors(parsed.output_file, check)
        print(f"{len(check.suspects)} rows to check written to {parsed.output_file}", file=sys.stderr)
    return check


def _label_lines(check: LabelCheck, shown: int, file: str | None) -> Iterator[str]:
    from attentune.automl.folds import share_sentence

    yield f"Labels, by {check.source}"
    yield f"  {share_sentence(check.share)}"
    if check.accuracy - check.majority < _WEAK * (1 - check.majority) or check.majority == 1:
        yield (
            f"  These predictions agree with {100 * check.accuracy:.1f} % of the labels, and always predicting the most"
            f" frequent class with {100 * check.majority:.1f} %: too weak"
        )
        yield "  a model to tell wrong labels from hard texts. A better one: attentune auto, then --run DIR."
    first, count = check.suspects[:shown], len(check.suspects)
    yield f"  {count:,} of {check.rows:,} rows to check{', the least probable label first:' if count else '.'}"
    if first:
        header = ("row", "label", "suggested", "p label", "p suggested", "words for it", "text")
        rows = [
            (
                str(one.row),
                one.label,
                one.suggested,
                f"{one.label_probability:.3f}",
                f"{one.suggested_probability:.3f}",
                ", ".join(one.words or ()),
                short(one.text if one.pair is None else f"{one.text} || {one.pair}", _TEXT_WIDTH),
            )
            for one in first
        ]
        yield ""
        yield from (f"  {line}" for line in table(header, rows, right=(0, 3, 4)).splitlines())
    if len(first) < count:
        how = "--output_file errors.csv writes all of them." if file is None else f"all are in {file}."
        yield f"\n  and {count - len(first):,} more; {how}"
