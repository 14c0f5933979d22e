"""Memory and speed of `attentune predict` on one long file of short texts.

    python -m benchmarks.speed.stream [--rows 1000000] [--kind csv] [--run RUN] [--explain]

Makes the file in a temporary folder, predicts it in a process of its own, reads that process's memory from the system
while it runs, and writes a line of results/bench/many.jsonl: rows, seconds, rows a second, memory after each tenth of
the rows.
Without --run the model is a random BERT of 1 layer, 32 wide: memory is then as with any encoder of its size, speed is
not. Seconds are those of the whole command, start and both readings of the file included. Linux only.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.common import MANY, ROOT, command_of, write_line

WORDS = "the a film story was is not never so quite very good bad dull fine great awful music plot end"
_DONE = re.compile(r"predicted: ([\d,]+) of")


def texts(rows: int) -> Iterator[str]:
    """So many made-up short texts, of 3 to 12 words and a number each."""
    generator, words = random.Random(0), WORDS.split()
    for row in range(rows):
        yield f"{' '.join(generator.choices(words, k=generator.randint(3, 12)))} {row}"


def write_texts(path: Path, rows: int) -> None:
    """A file of texts with ids, of the kind that its name says."""
    records = ({"id": f"text-{row}", "text": text} for row, text in enumerate(texts(rows)))
    if path.suffix == ".parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(list(records)), path)
        return
    with path.open("w", newline="", encoding="utf-8") as file:
        if path.suffix == ".jsonl":
            file.writelines(json.dumps(record) + "\n" for record in records)
        else:
            writer = csv.writer(file)
            writer.writerow(["id", "text"])
            writer.writerows(record.values() for record in records)


def tiny_run(folder: Path) -> Path:
    """A saved run over a random encoder; made in another process, so that this one stays small."""
    made = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r})\n"
        "from pathlib import Path\n"
        "from attentune.config.schema import TokenGateConfig\n"
        "from attentune.models.saving import save_model\n"
        "from attentune.testing.tiny import build_tiny\n"
        "from helpers.tiny_models import build\n"
        f"encoder = build_tiny('bert', {str(folder / 'encoder')!r}, layers=1)\n"
        "model, tokenizer = build(encoder, token_gate=TokenGateConfig(kind='ssa'))\n"
        f"save_model(model, tokenizer, Path({str(folder / 'run')!r}))\n"
    )
    (folder / "run").mkdir()
    subprocess.run([sys.executable, "-c", made], check=True)
    return folder / "run"


class Memory:
    """What a process holds, read from the system while it runs."""

    def __init__(self, process: int) -> None:
        self._status = Path(f"/proc/{process}/status")
        self.peak_mib = 0.0

    def now_mib(self) -> float:
        """What it holds now; its peak is kept."""
        facts = dict(line.split(":", 1) for line in self._status.read_text().splitlines())
        if "VmHWM" in facts:
            self.peak_mib = int(facts["VmHWM"].split()[0]) / 1024
        return int(facts.get("VmRSS", "0 kB").split()[0]) / 1024

    def watch(self, ended: threading.Event) -> None:
        """Look ten times a second."""
        while not ended.wait(0.1):
            self.now_mib()


def measure(run: Path, path: Path, output: Path, rows: int, *, explain: bool) -> dict[str, Any]:
    """Predict the file in a process of its own."""
    command = [sys.executable, "-m", "attentune.cli.main", "predict", str(run), "--input_file", str(path)]
    command += ["--output_file", str(output), *(["--explain"] if explain else [])]
    began, ended = time.perf_counter(), threading.Event()
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    memory = Memory(child.pid)
    watcher = threading.Thread(target=memory.watch, args=(ended,))
    watcher.start()
    after: dict[str, float] = {}
    assert child.stderr is not None
    for line in child.stderr:
        print(line, end="", file=sys.stderr)
        if done := _DONE.search(line):
            after[f"{round(100 * int(done[1].replace(',', '')) / rows)} %"] = round(memory.now_mib(), 1)
        ended_well = "predictions written" in line
    ended.set()
    watcher.join()
    if child.wait() != 0 or not ended_well:
        raise SystemExit(f"the prediction ended with status {child.returncode}")
    seconds = time.perf_counter() - began
    with output.open(encoding="utf-8") as file:
        assert sum(1 for _ in file) == rows + 1
    return {
        "rows": rows,
        "file_mib": round(path.stat().st_size / 2**20, 1),
        "seconds": round(seconds, 1),
        "rows_per_second": round(rows / seconds),
        "rss_mib_after": after,
        "peak_rss_mib": round(memory.peak_mib, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--kind", choices=("csv", "jsonl", "parquet"), default="csv")
    parser.add_argument("--run", type=Path, help="a run folder (default: a tiny random encoder)")
    parser.add_argument("--explain", action="store_true", help="with each word's importance")
    parser.add_argument("--output", type=Path, default=MANY)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / f"texts.{given.kind}"
        write_texts(path, given.rows)
        run = given.run or tiny_run(folder)
        found = measure(run, path, folder / "labelled.csv", given.rows, explain=given.explain)
    model = str(given.run) if given.run else "random BERT, 1 layer, 32 wide: memory counts here, not speed"
    threads = int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)
    facts = {"model": model, "kind": given.kind, "explain": given.explain, "threads": threads, **found}
    print(json.dumps(facts, indent=1))
    write_line(given.output, {"command": command_of("benchmarks.speed.stream", sys.argv[1:]), **facts})


if __name__ == "__main__":
    main()
