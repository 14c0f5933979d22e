"""Speed and memory of `attentune predict --output_dir` (shards, several processes) against one process.

    python -m benchmarks.speed.many_rows [--rows 20000,200000,1000000] [--jobs 2] [--kind parquet] [--run RUN]
                                         [--repeats 1] [--only_shards]

For each number of rows it makes a file of short texts, and predicts it with `--output_file` in one process with one
thread, and in shards with so many processes of one thread each, in turn. Seconds are those of the whole command, start
included. `per_core` is the rate of shards divided by the number of processes and by the rate of one process;
`cpu_ratio` is the same for processor time, which other programs on the machine disturb less. Memory is the peak of the
largest process. Without --run the model is a random encoder of the embedded one's size. Writes
results/bench/many.jsonl. Linux only.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.common import MANY, ROOT, command_of, write_line
from benchmarks.speed.stream import write_texts

_TICKS = os.sysconf("SC_CLK_TCK")
_LOOK_S = 0.1


class ProcessTree:
    """A program and all processes that descend from it, read from the system while they run."""

    def __init__(self, root: int) -> None:
        self._root = root
        self.peak_mib: dict[int, float] = {}
        self.cpu_s: dict[int, float] = {}

    def watch(self, ended: threading.Event) -> None:
        """Look ten times a second."""
        while not ended.wait(_LOOK_S):
            self._look(self._root)

    def _look(self, process: int) -> None:
        folder = Path(f"/proc/{process}")
        try:
            status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
            times = (folder / "stat").read_text().rsplit(")", 1)[1].split()[11:13]
            children = (folder / "task" / str(process) / "children").read_text().split()
        except OSError:  # it has ended
            return
        self.cpu_s[process] = sum(map(int, times)) / _TICKS
        if "VmHWM" in status:
            self.peak_mib[process] = int(status["VmHWM"].split()[0]) / 1024
        for child in children:
            self._look(int(child))


def saved_run(folder: Path) -> Path:
    """Save a run with a random encoder of the embedded one's size; in another process, so that this one stays small."""
    made = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r})\n"
        "from pathlib import Path\n"
        "from attentune.models.saving import save_model\n"
        "from benchmarks.common import random_encoder\n"
        "from helpers.tiny_models import build\n"
        f"save_model(*build(random_encoder(6)), Path({str(folder)!r}))\n"
    )
    folder.mkdir()
    subprocess.run([sys.executable, "-c", made], check=True, cwd=ROOT)
    return folder


def measure(rows: int, *words: object) -> dict[str, Any]:
    """Run a command line with one thread a process."""
    command = [sys.executable, "-m", "attentune.cli.main", "predict", *map(str, words)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    began, ended = time.perf_counter(), threading.Event()
    child = subprocess.Popen(command, env=environment)
    tree = ProcessTree(child.pid)
    watcher = threading.Thread(target=tree.watch, args=(ended,))
    watcher.start()
    status = child.wait()
    seconds = time.perf_counter() - began
    ended.set()
    watcher.join()
    if status != 0:
        raise SystemExit(f"the prediction ended with status {status}")
    return {
        "seconds": round(seconds, 2),
        "rows_per_second": round(rows / seconds, 1),
        "cpu_seconds": round(sum(tree.cpu_s.values()), 2),
        "peak_rss_mib": round(max(tree.peak_mib.values())),
        "driver_peak_rss_mib": round(tree.peak_mib[child.pid]),
        "processes": len(tree.peak_mib),
    }


def compare(
    run: Path, rows: int, kind: str, jobs: int, shards: int | None, repeats: int, *, only_shards: bool = False
) -> dict[str, Any]:
    """Measure one process and shards in turn, or shards only."""
    single, sharded = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / f"texts.{kind}"
        write_texts(path, rows)
        for repeat in range(repeats):
            if not only_shards:
                single.append(measure(rows, run, "--input_file", path, "--output_file", folder / "one.csv"))
            out = ["--output_dir", folder / f"shards-{repeat}", "--jobs", jobs]
            more = [] if shards is None else ["--shards", shards]
            sharded.append(measure(rows, run, "--input_file", path, *out, *more))
    if only_shards:
        return {"rows": rows, "shards": sharded}
    rate = statistics.median(
        many["rows_per_second"] / jobs / one["rows_per_second"] for one, many in zip(single, sharded, strict=True)
    )
    work = statistics.median(
        one["cpu_seconds"] / many["cpu_seconds"] for one, many in zip(single, sharded, strict=True)
    )
    return {
        "rows": rows,
        "one_process": single,
        "shards": sharded,
        "per_core": round(rate, 3),
        "cpu_ratio": round(work, 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="20000,200000,1000000")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--shards", type=int, help="default: that of the command, one per 65,536 rows")
    parser.add_argument("--kind", choices=("csv", "jsonl", "parquet"), default="parquet")
    parser.add_argument("--run", type=Path, help="a run folder (default: a random encoder of the embedded one's size)")
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--only_shards", action="store_true", help="leave out the single process for the most rows")
    parser.add_argument("--output", type=Path, default=MANY)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        run = given.run or saved_run(Path(name) / "run")
        found = []
        sizes = [int(rows) for rows in given.rows.split(",")]
        for rows in sizes:
            only = given.only_shards and rows == max(sizes)
            found.append(compare(run, rows, given.kind, given.jobs, given.shards, given.repeats, only_shards=only))
            print(json.dumps(found[-1], indent=1))
            model = str(given.run or "random encoder of the embedded one's size")
            facts = {"model": model, "kind": given.kind, "jobs": given.jobs, "cores": os.cpu_count()}
            command = command_of("benchmarks.speed.many_rows", sys.argv[1:])
            write_line(given.output, {"command": command, **facts, "measured": found})


if __name__ == "__main__":
    main()
