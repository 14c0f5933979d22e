"""Training speed against other trainers: same encoder, same rows, same epochs, batches of 32, side by side in one run.

    python -m benchmarks.speed.peers [--tasks cola,rte,sst2] [--rows 1000,500,8000] [--repeats 3] [--contenders ...]

Writes results/bench/peers.json and prints a table for each task: real tokens a second, seconds an epoch, peak memory,
score on the validation file. Each run has a process of its own; each repeat runs every contender once, so that a
machine whose speed drifts favours none. For a contender that is not installed, or that cannot do a task, the reason is
recorded. Texts are cut at 128 tokens, those of cfimdb (film reviews of a page) at 512.
Needs the data: $ATTENTUNE_DATA, else ../shared/data.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import RECORDS, command_of, interleaved_runs, table, write_record
from benchmarks.speed.peer_runs import CONTENDERS, EPOCHS

TARGET = RECORDS / "peers.json"
RUN_MODULE = "benchmarks.speed.peer_runs"
COLUMNS = ("tokens_per_second", "ratio", "epoch_seconds", "peak_memory_mib", "score")
REFERENCE = "Trainer at its best"


def summary(runs: dict[str, list[dict[str, Any]]]) -> dict[str, dict[str, Any]]:
    """Return each contender's medians, and the median over repeats of the ratio of its speed to the reference's."""
    made: dict[str, dict[str, Any]] = {}
    for name, own in runs.items():
        if "reason" in own[0]:
            made[name] = own[0]
            continue
        speeds = [run["tokens"] / run["seconds"] for run in own]
        reference = [run["tokens"] / run["seconds"] for run in runs[REFERENCE]]
        made[name] = {
            "tokens_per_second": round(statistics.median(speeds)),
            "ratio": round(statistics.median(a / b for a, b in zip(speeds, reference, strict=True)), 3),
            "epoch_seconds": round(statistics.median(run["seconds"] for run in own) / EPOCHS, 2),
            "peak_memory_mib": round(statistics.median(run["peak_memory_bytes"] for run in own) / 2**20),
            "score": round(statistics.median(run["score"] for run in own), 3),
        }
    return made


def print_table(task: str, facts: dict[str, dict[str, Any]], columns: Sequence[str]) -> None:
    lines = [[name, *(str(own.get(column, "")) for column in columns)] for name, own in facts.items()]
    print(f"\n{task}\n" + "\n".join(table([task, *columns], lines)))
    for name, own in facts.items():
        if "reason" in own:
            print(f"{name}: {own['reason']}")


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="cola,rte,sst2")
    parser.add_argument("--rows", default="1000,500,8000")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--contenders", default=";".join(CONTENDERS), help="names, separated by semicolons")
    parser.add_argument("--output_file", type=Path, default=TARGET, help="where the record goes")
    given = parser.parse_args(arguments)
    tasks: dict[str, Any] = {}
    for task, rows in zip(given.tasks.split(","), map(int, given.rows.split(",")), strict=True):
        runs = interleaved_runs(RUN_MODULE, given.contenders.split(";"), given.repeats, task, rows)
        tasks[task] = {"rows": rows, "contenders": summary(runs), "runs": runs}
        print_table(task, tasks[task]["contenders"], COLUMNS)
        record = {"command": command_of("benchmarks.speed.peers", arguments), "tasks": tasks}
        write_record(given.output_file, record)


if __name__ == "__main__":
    main(sys.argv[1:])
