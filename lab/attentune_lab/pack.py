"""Pack the records of a comparison into two files, from which `attentune report` makes the same report.

python -m attentune_lab.pack comparisons/matrix results/matrix
"""

import dataclasses
import gzip
import json
import sys
from pathlib import Path
from typing import Any

from attentune.errors import AttentuneError, CheckpointError
from attentune.io.files import storage_errors, write_bytes
from attentune.results import without_nan
from attentune.runs.records import (
    MANIFEST_FILE,
    PACKED_PREDICTIONS_FILE,
    PACKED_RUNS_FILE,
    is_packed,
    read_packed_predictions,
    read_predictions,
    read_records,
    record_file,
)


def pack_records(folder: Path, target: Path) -> int:
    """Pack the records of a comparison into two files, from which `attentune report` writes the same report.

    `runs.jsonl.gz` has one record per line. `predictions.jsonl.gz` has the labels and predictions on the scored split;
    rows that several runs share are stored once. Class probabilities and other splits are omitted. Of
    `compare.json` the order of methods is kept.
    """
    records = [record for record, _ in read_records(folder)]
    if not records:
        raise CheckpointError(f"{folder}: holds no records of a comparison. Expected the folder of attentune compare.")
    if (target / "records").exists():
        raise CheckpointError(f"{target}: is the folder of a comparison. Name another folder.")
    lines: list[dict[str, Any]] = []
    known: dict[str, int] = {}
    packed = read_packed_predictions(folder) if is_packed(folder) else {}
    for record in records:
        predictions, name = packed.get(record.run), record.predictions.get(record.split or "")
        if name is not None and (file := record_file(folder, record.run).with_name(name)).is_file():
            predictions = read_predictions(file)
        if predictions is None:
            continue
        rows = {"names": predictions.names, "ids": predictions.ids, "labels": predictions.labels_N.tolist()}
        key = _line(rows)
        if key not in known:
            lines.append({"rows": len(known), **rows})
        number = known.setdefault(key, len(known))
        run = dataclasses.asdict(record.run)
        lines.append({"run": run, "rows": number, "predictions": predictions.predictions_N.tolist()})
    manifest = folder / MANIFEST_FILE
    order = _order_of_methods(manifest.read_bytes()) if manifest.is_file() else None
    with storage_errors(target):
        target.mkdir(parents=True, exist_ok=True)
    write_bytes(target / PACKED_PREDICTIONS_FILE, _compressed(lines))
    if order is not None:
        write_bytes(target / MANIFEST_FILE, order)
    # Written last: this file marks the packed comparison as complete.
    lines = [json.loads(record.to_json()) for record in records]
    write_bytes(target / PACKED_RUNS_FILE, _compressed(lines))
    return len(records)


def _order_of_methods(manifest: bytes) -> bytes:
    """Keep of a manifest the names of methods and their tasks, by which a report is ordered."""
    try:
        methods = json.loads(manifest)["methods"]
        return _line({"methods": {name: {"tasks": list(one["tasks"])} for name, one in methods.items()}}).encode()
    except (ValueError, KeyError, TypeError, AttributeError):
        return manifest


def _compressed(lines: list[dict[str, Any]]) -> bytes:
    return gzip.compress("".join(map(_line, lines)).encode(), mtime=0)


def _line(value: Any) -> str:
    return json.dumps(without_nan(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        print(f"{pack_records(Path(sys.argv[1]), Path(sys.argv[2]))} runs packed into {sys.argv[2]}")
    except AttentuneError as error:
        print(f"pack: {error}", file=sys.stderr)
        sys.exit(2)
