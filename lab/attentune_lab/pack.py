"""Pack the records of a comparison into two files, and unpack them, so that `attentune report` makes the same report.

python -m attentune_lab.pack comparisons/matrix results/matrix
python -m attentune_lab.pack results/matrix comparisons/unpacked
"""

import csv
import dataclasses
import gzip
import json
import sys
from pathlib import Path
from typing import Any

from attentune.data.dataset import SEPARATOR
from attentune.errors import AttentuneError, CheckpointError
from attentune.io.files import check_new_folder, storage_errors, write_bytes
from attentune.results import without_nan
from attentune.runs.records import MANIFEST_FILE, RecordStore, Run, RunRecord, read_predictions

RUNS_FILE, PREDICTIONS_FILE = "runs.jsonl.gz", "predictions.jsonl.gz"


def pack_records(folder: Path, target: Path) -> int:
    """Pack the records of a comparison into two files; return their number.

    `runs.jsonl.gz` has one record per line. `predictions.jsonl.gz` has the labels and predictions on the scored split;
    rows that several runs share are stored once. Class probabilities and other splits are omitted.
    """
    store = RecordStore(folder)
    records = store.records()
    if not records:
        raise CheckpointError(f"{folder}: holds no records of a comparison. Expected the folder of attentune compare.")
    check_new_folder(target)
    lines: list[dict[str, Any]] = []
    known: dict[str, int] = {}
    for record in records:
        file = store.file(record.run).with_name(record.predictions.get(record.split or "", "none"))
        if not file.is_file():
            continue
        predictions = read_predictions(file)
        rows = {"names": predictions.names, "ids": predictions.ids, "labels": predictions.labels_N.tolist()}
        key = _line(rows)
        if key not in known:
            lines.append({"rows": len(known), **rows})
        number = known.setdefault(key, len(known))
        run = dataclasses.asdict(record.run)
        lines.append({"run": run, "rows": number, "predictions": predictions.predictions_N.tolist()})
    with storage_errors(target):
        target.mkdir(parents=True, exist_ok=True)
    for name, packed in ((PREDICTIONS_FILE, lines), (RUNS_FILE, [json.loads(record.to_json()) for record in records])):
        write_bytes(target / name, gzip.compress("".join(map(_line, packed)).encode(), mtime=0))
    if (folder / MANIFEST_FILE).is_file():  # of it, a report needs the order of methods and tasks
        methods = json.loads((folder / MANIFEST_FILE).read_text(encoding="utf-8"))["methods"]
        order = {"methods": {name: {"tasks": list(one["tasks"])} for name, one in methods.items()}}
        write_bytes(target / MANIFEST_FILE, _line(order).encode())
    return len(records)


def unpack_records(folder: Path, target: Path) -> int:
    """Write the records and predictions of a packed comparison as `attentune compare` does; return their number."""
    check_new_folder(target)
    store = RecordStore(target)
    texts = [text for text in _unpacked(folder / RUNS_FILE).split("\n") if text]
    for number, text in enumerate(texts, start=1):
        record = RunRecord.from_json(text, f"{folder / RUNS_FILE}, line {number}")
        file = store.file(record.run)
        with storage_errors(file):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    rows: dict[int, dict[str, Any]] = {}
    packed = _unpacked(folder / PREDICTIONS_FILE) if (folder / PREDICTIONS_FILE).is_file() else ""
    for line in map(json.loads, filter(None, packed.split("\n"))):
        if "run" not in line:
            rows[line["rows"]] = line
            continue
        file, of = store.file(Run(**line["run"])), rows[line["rows"]]
        record, names, plural = RunRecord.load(file), of["names"], "s" * isinstance(of["labels"][0], list)
        with file.with_name(record.predictions[record.split or ""]).open("w", newline="", encoding="utf-8") as stream:
            write = csv.writer(stream).writerow
            write(["id", f"label{plural}", f"prediction{plural}", *(f"p_{name}" for name in names)])
            for values in zip(of["ids"], of["labels"], line["predictions"], strict=True):
                write([values[0], *(_text(value, names) for value in values[1:]), *[""] * len(names)])
    if (folder / MANIFEST_FILE).is_file():
        write_bytes(target / MANIFEST_FILE, (folder / MANIFEST_FILE).read_bytes())
    return len(texts)


def _unpacked(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


def _text(value: Any, names: list[str]) -> str:
    """Return a label or prediction as a file of predictions has it."""
    if isinstance(value, list):
        return SEPARATOR.join(name for name, is_set in zip(names, value, strict=True) if is_set)
    return names[value] if names else "nan" if value is None else repr(value)


def _line(value: Any) -> str:
    return json.dumps(without_nan(value), ensure_ascii=False, separators=(",", ":"), allow_nan=False) + "\n"


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    source, target = map(Path, sys.argv[1:])
    try:
        number = (unpack_records if (source / RUNS_FILE).is_file() else pack_records)(source, target)
        print(f"{number} runs written to {target}")
    except AttentuneError as error:
        print(f"pack: {error}", file=sys.stderr)
        sys.exit(2)
