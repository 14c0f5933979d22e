"""The plan of a folder of shards, `shards.json`: what is predicted, by which run, and which rows are in which shard."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from attentune.config.schema import DataConfig
from attentune.data.columns import Columns, choose_columns, columns_notes, require
from attentune.data.guesses import with_guessed_columns
from attentune.data.names import IDS
from attentune.data.ranges import RowRange, RowSource, SourceScan, divide, first_rows, scan
from attentune.data.readers.table import BLOCK_ROWS, RowStart
from attentune.data.unlabelled import ALL, prediction_columns
from attentune.data.writers import OutputColumn
from attentune.errors import CheckpointError, ConfigError, DataError
from attentune.inference.ensemble import EnsemblePredictor
from attentune.inference.predictor import Predictor
from attentune.io.files import sha256_of
from attentune.io.urls import OutputFolder
from attentune.results import to_json, versions

PLAN_FILE = "shards.json"
# The rows of a shard if their number is not given.
SHARD_ROWS = 1 << 16
_FORMAT = 1
_PART = "part-"
# Notes on how files are read that are shown.
_NOTES = 5
# Files of a run folder that do not change what the run predicts.
_RECORDS = {
    "metrics.json",
    "run.json",
    "calibration.json",
    "labels.safetensors",
    "manifest.json",
    "heldout.safetensors",
}
_WEIGHTS_AND_SETTINGS = {".safetensors", ".json", ".yaml", ".txt", ".model"}


@dataclass(frozen=True)
class ShardRequest:
    """What a command asks for; it has to be the same when the command is repeated on a folder."""

    command: str  # "predict", "explain" or "evaluate"
    run: str  # the absolute path of the run
    run_fingerprint: str  # a SHA-256 of its weights and settings
    sources: tuple[RowSource, ...]  # the input
    data: DataConfig  # the data settings with the columns
    keep_columns: tuple[str, ...]  # the columns to copy, or `(ALL,)`
    output_format: str  # one of `data.writers.FORMATS`
    options: dict[str, Any]  # further settings of the command, ready for JSON

    def to_dict(self) -> dict[str, Any]:
        """Return what has to be the same, ready for JSON."""
        data = {name: value for name, value in asdict(self.data).items() if value != getattr(DataConfig(), name)}
        return {
            "command": self.command,
            "run": self.run_fingerprint,
            "input": [f"{one.name}: {one.bytes} bytes, {one.modified}" for one in self.sources],
            "data": data,
            "keep_columns": list(self.keep_columns),
            "output_format": self.output_format,
            "options": self.options,
        }


@dataclass(frozen=True)
class ShardPlan:
    """The shards of a folder."""

    request: ShardRequest  # what is computed
    columns: Columns  # the columns of texts, labels and ids
    kept: tuple[str, ...]  # the columns that are copied
    source_rows: tuple[int, ...]  # the number of rows of each source
    shards: tuple[tuple[RowRange, ...], ...]  # the rows of each shard

    @property
    def rows(self) -> int:
        """The number of all rows."""
        return sum(self.source_rows)

    def rows_of(self, shard: int) -> int:
        """The number of rows of a shard."""
        return sum(part.rows for part in self.shards[shard])

    def first_row(self, part: RowRange) -> int:
        """The number of the first row of a range, counted over all sources from 0."""
        return sum(self.source_rows[: part.source]) + part.start.row

    def file_name(self, shard: int) -> str:
        """The name of a shard's file."""
        return f"{_PART}{shard:05d}-of-{len(self.shards):05d}.{self.request.output_format}"

    def missing(self, output: OutputFolder) -> list[int]:
        """The shards whose files are not there."""
        there = output.names()
        return [shard for shard in range(len(self.shards)) if self.file_name(shard) not in there]

    def to_json(self) -> str:
        """Return the content of `shards.json`."""
        sources = zip(self.request.sources, self.source_rows, strict=True)
        content = {
            "format": _FORMAT,
            "request": self.request.to_dict(),
            "rows": self.rows,
            "block_rows": BLOCK_ROWS,
            "run": self.request.run,
            "sources": [asdict(one) | {"rows": rows} for one, rows in sources],
            "columns": asdict(self.columns),
            "kept": list(self.kept),
            "shards": [
                [[part.source, part.start.row, part.rows, part.start.byte, part.start.line] for part in ranges]
                for ranges in self.shards
            ],
            "versions": versions(),
        }
        return to_json(content)


def read_plan(output: OutputFolder) -> ShardPlan:
    """Read `shards.json`."""
    try:
        content = output.read_json(PLAN_FILE)
        if content["format"] != _FORMAT or content["block_rows"] != BLOCK_ROWS:
            raise ValueError(f"its format is {content['format']} with {content['block_rows']} rows in a block")
        request = content["request"]
        sources = [dict(one) for one in content["sources"]]
        rows = tuple(int(one.pop("rows")) for one in sources)
        ranges = [
            tuple(RowRange(source, RowStart(row, byte, line), count) for source, row, count, byte, line in shard)
            for shard in content["shards"]
        ]
        return ShardPlan(
            ShardRequest(
                request["command"],
                content["run"],
                request["run"],
                tuple(RowSource(**one) for one in sources),
                _data_config(request["data"]),
                tuple(request["keep_columns"]),
                request["output_format"],
                request["options"],
            ),
            Columns(**content["columns"]),
            tuple(content["kept"]),
            rows,
            tuple(ranges),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CheckpointError(
            f"{output.place(PLAN_FILE)}: is not the plan of shards of this version of Attentune ({error}). Name another"
            " --output_dir."
        ) from error


def _data_config(content: dict[str, Any]) -> DataConfig:
    values: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in content.items()}
    return DataConfig(**values)


def make_plan(
    output: OutputFolder,
    request: ShardRequest,
    saved: Predictor,
    columns: Sequence[OutputColumn],
    *,
    shards: int | None,
    processes: int = 1,
    reads_labels: bool,
    log: Callable[[str], None],
) -> ShardPlan:
    """Return the plan in a folder; if there is none, count the rows of the input, divide them, and write it."""
    names = output.names()
    if PLAN_FILE in names:
        plan = read_plan(output)
        _check_same(output, plan, request, shards)
        return plan
    if any(name.startswith(_PART) for name in names):
        raise CheckpointError(
            f"{output.path}: has files named {_PART}..., but no {PLAN_FILE} that says what they are. Name another"
            " --output_dir, or empty this one."
        )
    output.create()
    scans = [scan(source) for source in request.sources]
    notes = [note for one in scans for note in one.notes]
    for note in notes[:_NOTES]:
        log(note)
    if len(notes) > _NOTES:
        log(f"{len(notes) - _NOTES:,} more notes on how files are read.")
    shards = shards or default_shards(sum(one.rows for one in scans), processes)
    plan = _new_plan(request, saved, columns, scans, shards, reads_labels, log)
    files = "1 source" if len(scans) == 1 else f"{len(scans):,} sources"
    log(f"{plan.rows:,} rows in {files}, {len(plan.shards):,} shards.")
    if empty := sum(not ranges for ranges in plan.shards):
        log(
            f"{empty:,} of the shards have no rows: rows are divided after each {BLOCK_ROWS:,} of a file, and"
            " compressed files and .json are not divided."
        )
    with output.write(PLAN_FILE) as stream:
        stream.write(plan.to_json().encode())
    return plan


def default_shards(rows: int, processes: int) -> int:
    """Return one shard per `SHARD_ROWS` rows, rounded up to a multiple of the processes if there are blocks enough."""
    needed = -(-rows // SHARD_ROWS)
    rounded = -(-needed // processes) * processes
    return rounded if rounded * BLOCK_ROWS <= rows else needed


def _new_plan(
    request: ShardRequest,
    saved: Predictor,
    columns: Sequence[OutputColumn],
    scans: Sequence[SourceScan],
    shards: int,
    reads_labels: bool,
    log: Callable[[str], None],
) -> ShardPlan:
    first, names = request.sources[0].name, scans[0].names
    data = _with_columns(request, scans[0], reads_labels, log)
    if reads_labels:
        read, _ = choose_columns(names, data, first)
    else:
        read = prediction_columns(names, first, saved.is_pair, data)
        read = Columns(read.text, read.pair, None, read.id)
    if read.id is None:
        read = Columns(read.text, read.pair, read.label, next((name for name in names if name.lower() in IDS), None))
    if saved.is_pair != (read.pair is not None):
        raise DataError(
            f"the run was trained on {'pairs of texts' if saved.is_pair else 'single texts'}; name"
            f" {'both with --text_column and --text_pair_column' if saved.is_pair else 'one with --text_column'}.",
            path=first,
        )
    flags = {read.text: "--text_column", read.pair: "--text_pair_column", read.label: "--label_column"}
    flags |= {request.data.id_column: "--id_column"} if request.data.id_column else {}
    for source, one in zip(request.sources, scans, strict=True):
        for name, flag in flags.items():
            if name is not None and source.kind not in (".jsonl", ".ndjson"):  # their rows may differ
                require(one.names, name, source.name, flag)
    for note in columns_notes(read.settings()):
        log(note)
    kept = _kept_columns(request, names, read, columns)
    ranges = divide(scans, shards)
    return ShardPlan(request, read, kept, tuple(one.rows for one in scans), tuple(map(tuple, ranges)))


def _with_columns(
    request: ShardRequest, found: SourceScan, reads_labels: bool, log: Callable[[str], None]
) -> DataConfig:
    """Choose columns by what they hold, where their names do not tell; rows are only read for that."""
    source = request.sources[0]
    if not source.has_header:
        try:
            choose_columns(found.names, request.data, source.name, want_label=reads_labels)
            return request.data
        except DataError:
            pass
    data, notes = with_guessed_columns(first_rows(source, found), request.data, want_label=reads_labels)
    for note in notes:
        log(note)
    return data


def _kept_columns(
    request: ShardRequest, names: Sequence[str], read: Columns, computed: Sequence[OutputColumn]
) -> tuple[str, ...]:
    if request.keep_columns == (ALL,):
        kept = [name for name in names if name != read.id]
    else:
        kept = [require(names, name, request.sources[0].name, "--keep_columns") for name in request.keep_columns]
        kept = [name for name in kept if not name == read.id == "id"]
    check_kept(kept, [column.name for column in computed])
    return tuple(dict.fromkeys(kept))


def check_kept(kept: Sequence[str], computed: Sequence[str]) -> None:
    """Check that no column to keep has the name of one that is computed."""
    if same := [name for name in kept if name in computed]:
        raise ConfigError(
            f"--keep_columns: the input has {', '.join(map(repr, same))}, as the output has. List the columns to keep"
            " without it, or rename it in the input."
        )


def _check_same(output: OutputFolder, plan: ShardPlan, request: ShardRequest, shards: int | None) -> None:
    """Refuse to go on with a folder whose shards were made by another call."""
    before = {**plan.request.to_dict(), **plan.request.options}
    now = {**request.to_dict(), **request.options}
    problems = []
    for key in dict.fromkeys([*before, *now]):
        if key == "options" or before.get(key) == now.get(key):
            continue
        if key == "run":
            problems.append(f"the run's weights or settings: now {request.run}, before {plan.request.run} as it was")
        elif key == "input":
            problems.append(f"the input: {_changes(before[key], now[key])}")
        else:
            problems.append(f"{key}: now {now.get(key)!r}, before {before.get(key)!r}")
    if shards is not None and shards != len(plan.shards):
        problems.append(f"--shards: now {shards}, before {len(plan.shards)}")
    if problems:
        raise CheckpointError(
            f"{output.place(PLAN_FILE)}: --output_dir has the shards of another call, which differs in"
            f" {'; '.join(problems)}. Repeat that call to go on with it, or name another --output_dir."
        )


def _changes(before: Sequence[str], now: Sequence[str]) -> str:
    gone = [name for name in before if name not in now]
    new = [name for name in now if name not in before]
    shown = [f"now {name}" for name in new[:2]] + [f"before {name}" for name in gone[:2]]
    more = len(new) + len(gone) - len(shown)
    return ", ".join(shown or ["other order"]) + (f" and {more} more" if more else "")


def run_fingerprint(saved: Predictor) -> str:
    """Return a SHA-256 of the weights and settings of a run, and of the members of an ensemble."""
    folders = [saved.folder]
    if isinstance(saved, EnsemblePredictor):
        folders += [saved.folder / name for member in saved.members for name in member.folders]
    digest = hashlib.sha256()
    for folder in folders:
        for file in sorted(Path(folder).iterdir()):
            if file.suffix in _WEIGHTS_AND_SETTINGS and file.name not in _RECORDS and file.is_file():
                digest.update(f"{file.name} {sha256_of(file)}\n".encode())
    return digest.hexdigest()
