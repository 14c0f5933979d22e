"""Flags that select texts: one text, a file, or a split of a dataset."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

from attentune.cli.flags import TEXT_SETTINGS, Parser, add_config_flags, config_from, overrides_of
from attentune.errors import ConfigError


def add_text_flags(made: Parser) -> None:
    """Add the flags that select texts, and those of the data settings."""
    made.add_argument("--text", help="one text")
    made.add_argument("--text_pair", help="its second text, for a model of text pairs")
    made.add_argument(
        "--input_file", help="a file of texts: .csv .tsv .json .jsonl .parquet ..., or - for standard input"
    )
    made.add_argument("--split", default="test", help="with --task or --dataset_name: the split (default: test)")
    add_config_flags(made, only=TEXT_SETTINGS)


def check_text_flags(command: str, parsed: Any, problems: list[str]) -> Any:
    """Check that exactly one source of texts is given, and return the data settings."""
    named_data = {name for name in overrides_of(parsed, []) if name in ("data.task", "data.dataset_name")}
    sources = [name for name in ("text", "input_file") if getattr(parsed, name) is not None] + sorted(named_data)
    if len(sources) != 1:
        problems.append(
            f"{command}: got {' and '.join(sources) or 'no texts'}, expected one of --text, --input_file (- for"
            " standard input), --task, --dataset_name."
        )
    if parsed.text_pair is not None and parsed.text is None:
        problems.append("--text_pair: goes with --text.")
    data = config_from(parsed, problems).data
    if data.max_eval_samples is not None and data.task is None:
        raise ConfigError(f"--max_eval_samples: goes with --task; all rows of other sources are read by {command}.")
    return data


def read_texts(parsed: Any, data: Any, saved: Any) -> Any:
    """Read the rows that the flags select, all at once."""
    from attentune.data.tables import WHOLE

    chunks = read_text_chunks(parsed, data, saved, WHOLE)
    tell_notes(chunks)
    (rows,) = chunks.read()
    return rows


def read_file_rows(path: str, data: Any, saved: Any) -> Any:
    """Read the rows to predict of a file, all at once, and tell how it was read."""
    from attentune.data.tables import WHOLE
    from attentune.data.unlabelled import unlabelled_chunks

    config = saved.with_columns(data)
    chunks = unlabelled_chunks(path, label_space=saved.label_space, is_pair=saved.is_pair, config=config, limit=WHOLE)
    tell_notes(chunks)
    (rows,) = chunks.read()
    return rows


def read_text_chunks(parsed: Any, data: Any, saved: Any, limit: Any, *, keep_columns: Sequence[str] = ()) -> Any:
    """Read the rows that the flags select, a file in chunks."""
    from attentune.data.dataset import TextRows
    from attentune.data.unlabelled import RowChunks, unlabelled_chunks, unlabelled_table

    is_pair, space = saved.is_pair, saved.label_space
    if parsed.text is not None:
        if is_pair != (parsed.text_pair is not None):
            wanted = "pairs: add --text_pair" if is_pair else "single texts: leave out --text_pair"
            raise ConfigError(f"{parsed.run}: was trained on {wanted}.")
        pairs = None if parsed.text_pair is None else (parsed.text_pair,)
        return RowChunks.of(TextRows(("0",), (parsed.text,), pairs, None, "--text"))
    if parsed.input_file is not None:
        config = saved.with_columns(data)
        return unlabelled_chunks(
            parsed.input_file,
            label_space=space,
            is_pair=is_pair,
            config=config,
            limit=limit,
            keep_columns=keep_columns,
        )
    if data.dataset_name is not None:
        from attentune.data.hub import read_split

        # A split that the dataset has is read as a file is; others are made of train.
        table = read_split(data.dataset_name, data.dataset_config_name, parsed.split)
        if table is not None:
            config = saved.with_columns(data)
            return unlabelled_table(table, label_space=space, is_pair=is_pair, config=config)
    task_data = saved.data(data, (parsed.split,))
    return RowChunks.of(next(iter(task_data.splits.values())))


def tell_cut_texts(saved: Any) -> None:
    """Say on standard error how many texts were longer than the run reads."""
    if (note := saved.read.note()) is not None:
        print(note, file=sys.stderr)


def tell_job(saved: Any) -> None:
    """Say on standard error what the run does."""
    print(f"This model {saved.job}.", file=sys.stderr)


def tell_notes(chunks: Any) -> None:
    """Say on standard error what the reader of the rows has noted."""
    for note in chunks.notes:
        print(note, file=sys.stderr)
