"""`attentune init`: write a commented configuration for a file of rows."""

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from attentune.cli.flags import FILE, config_from, parser_of
from attentune.cli.inputs import check_data, check_named
from attentune.config import DataConfig
from attentune.errors import ConfigError, StorageError
from attentune.training.run_folder import check_feasible

_HELP = f"""
attentune init FILE [flags]

Look at a file of labelled texts and write a commented configuration to train with.

{FILE}
--output_file FILE  the file to write (default: config.yaml)
--overwrite  replace that file if it exists
--preset NAME  a method; `attentune list presets` lists them (bert if not given)

examples:
  attentune init reviews.csv
  attentune init reviews.csv --label_column stars --output_file stars.yaml
  attentune train --config config.yaml --output_dir runs/first

The configuration has the columns, the labels and a length that fits the texts. What training chooses by itself is there
as a comment, and so is what the doctor found."""
_GIVEN = (
    *("train_file", "validation_file", "test_file", "text_column", "text_pair_column", "label_column", "id_column"),
    *("task_type", "label_separator", "label_names", "ignore_labels", "max_length", "delimiter", "sheet", "encoding"),
    *("file_format", "header", "skip_broken_rows"),
)
# What YAML does not read as text.
_WORDS = ("true", "false", "yes", "no", "on", "off", "null", "y", "n")
# Shorter lengths than the default, of which the first is taken that leaves nearly all rows whole.
_LENGTHS, _WHOLE_SHARE = (32, 64), 0.99

parser = parser_of("init", _HELP, (*(f"data.{name}" for name in _GIVEN), "model.name_or_path", "training.seed"))


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser().parse(arguments)
    config = config_from(parsed, problems)
    target = Path(parsed.output_file).expanduser()
    if config.data.train_file is None:
        raise ConfigError("attentune init: expected a file of rows, as in: attentune init reviews.csv")
    if target.exists() and not parsed.overwrite:
        raise ConfigError(f"--output_file: {target} exists. Name another one, or replace it with --overwrite.")
    check_named(parsed)
    check_data(config.data, seed=config.training.seed)
    check_feasible(config)
    text = configuration(config)
    try:
        target.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{target}: cannot be written ({error.strerror}). Name another --output_file.") from error
    command = shlex.join(["attentune", "train", "--config", str(target), "--output_dir", "runs/first"])
    print(f"written to {target}; look it over, and train with:\n  {command}")
    return 0


def configuration(config: Any) -> str:
    """Return a commented configuration for the rows of `config.data.train_file`."""
    from attentune.cli.doctor import rows_and_lengths
    from attentune.data.columns import choose_columns
    from attentune.data.doctor import examine, percent
    from attentune.data.files import read_table
    from attentune.models.build import encoder_size, is_english_only
    from attentune.training.prepare import RunSize, choose_settings

    data, _, lengths = rows_and_lengths(config)
    rows, length = lengths["train"], config.data.max_length
    if length == DataConfig().max_length:
        length = next((shorter for shorter in _LENGTHS if (rows <= shorter).mean() >= _WHOLE_SHARE), length)
    report = examine(data, token_lengths=lengths, max_length=length, english_only=is_english_only(config.model))
    table = read_table(config.data.train_file, config=config.data)
    columns, _ = choose_columns(table, config.data)
    train, validation = report.splits["train"], report.splits.get("validation")
    layers, width = encoder_size(config.model)
    size = RunSize(train.rows, float(rows.mean()), 0 if validation is None else validation.rows, layers, width)
    chosen = choose_settings(config.training, size)

    space = data.label_space
    classes = ", ".join(f"{name} ({count:,} rows)" for name, count in (train.class_counts or {}).items())
    lines = [_comment(note) for note in data.notes]
    lines += ["", f"preset: {config.preset or 'bert'}  # the method; `attentune list presets` lists them", "", "data:"]
    lines += _given(config.data, "train_file", "validation_file", "test_file")
    if config.data.validation_file is None and validation is not None:
        lines.append(f"  validation_share: {config.data.validation_share:g}  # {validation.rows:,} rows are held out")
    others = [name for name in table.names if name not in (*columns.texts, *columns.labels)]
    left = _comment(f"not used: {', '.join(others)}") if others else ""
    lines.append(f"  text_column: {_scalar(columns.text)}  {left}".rstrip())
    if columns.pair is not None:
        lines.append(f"  text_pair_column: {_scalar(columns.pair)}")
    lines.append(f"  label_column: {_scalar(columns.label)}  {_comment(classes) if classes else ''}".rstrip())
    lines.append(f"  task_type: {space.task_type}  # or classification, regression, ordinal, multi_label")
    lines += _given(config.data, "id_column", "label_separator", "label_names", "ignore_labels")
    lines += _given(config.data, "delimiter", "encoding", "sheet", "file_format")
    lines += [] if config.data.header else ["  header: false  # the first row of the file is a row"]
    lines += ["  skip_broken_rows: true  # they are left out"] if config.data.skip_broken_rows else []
    whole = percent(float((rows <= length).mean()))
    lines.append(
        f"  max_length: {length}  # tokens; {whole} of the rows have at most so many, the longest {rows.max()}"
    )
    lines += ["", "model:", f"  name_or_path: {_scalar(config.model.name_or_path)}  # the encoder"]
    lines += ["", "training:", f"  seed: {config.training.seed}"]
    lines.append("  # Chosen by the number of rows, text length and encoder; take the # away to change them:")
    for name in ("learning_rate", "num_train_epochs", "per_device_train_batch_size"):
        lines.append(f"  # {name}: {getattr(chosen, name):g}")
    if report.findings:
        lines += ["", "# What `attentune doctor` finds:"]
        for finding in report.findings:
            lines += [_comment(f"  {finding.level}: {finding.message}"), _comment(f"    {finding.cure}")]
    return "\n".join(lines).strip() + "\n"


def _given(data: DataConfig, *names: str) -> list[str]:
    return [f"  {name}: {_scalar(value)}" for name in names if (value := getattr(data, name)) is not None]


def _comment(text: str) -> str:
    return "# " + "".join(sign if sign.isprintable() else " " for sign in text)


def _scalar(value: Any) -> str:
    """Write a value for YAML; texts of which YAML could make something else are quoted."""
    plain = isinstance(value, str) and re.fullmatch(r"[A-Za-z_./][\w./-]*", value) and value.lower() not in _WORDS
    return value if plain else json.dumps(value, ensure_ascii=False)
