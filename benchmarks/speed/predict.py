"""Speed of prediction against transformers' pipeline: same weights, same texts, from texts to labels.

    python -m benchmarks.speed.predict [--tasks cola,rte] [--rows 1000,300] [--train_rows 1000] [--repeats 3]

Trains a `bert` run on each task first, one epoch. Writes results/bench/predict.json and prints a table for each task:
texts and real tokens a second, peak memory, score on the validation file. Each run has a process of its own, and each
repeat runs every contender once. Needs the data:
$ATTENTUNE_DATA, else ../shared/data.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from typing import Any

from attentune.training.progress import ProgressDisplay
from attentune.training.train import train
from benchmarks.common import RECORDS, command_of, interleaved_runs, write_record
from benchmarks.speed.peer_runs import settings
from benchmarks.speed.peers import print_table
from benchmarks.speed.predict_runs import CONTENDERS

TARGET = RECORDS / "predict.json"
RUN_MODULE = "benchmarks.speed.predict_runs"
COLUMNS = ("texts_per_second", "to_default", "to_best", "tokens_per_second", "peak_memory_mib", "score")


def summary(runs: dict[str, list[dict[str, Any]]], rows: int) -> dict[str, dict[str, Any]]:
    """For each contender the medians of its runs, and the median ratios of its speed to the pipelines' in its turn."""

    def ratio(own: list[dict[str, Any]], reference: str) -> float:
        pairs = zip(own, runs[reference], strict=True)
        return round(statistics.median(theirs["seconds"] / mine["seconds"] for mine, theirs in pairs), 2)

    made: dict[str, dict[str, Any]] = {}
    for name, own in runs.items():
        if "reason" in own[0]:
            made[name] = own[0]
            continue
        seconds, tokens = statistics.median(run["seconds"] for run in own), own[0]["tokens"]
        made[name] = {
            "texts_per_second": round(rows / seconds),
            "to_default": ratio(own, "pipeline"),
            "to_best": ratio(own, "pipeline at its best"),
            "tokens_per_second": round(tokens / seconds),
            "peak_memory_mib": round(statistics.median(run["peak_memory_bytes"] for run in own) / 2**20),
            "score": round(own[0]["score"], 3),
        }
    return made


def measure(task: str, rows: int, train_rows: int, repeats: int) -> dict[str, list[dict[str, Any]]]:
    """The facts of all runs on a task, by contender."""
    with tempfile.TemporaryDirectory() as folder:
        train(
            settings(task, train_rows, folder, **{"training.num_train_epochs": 1}), display=ProgressDisplay(quiet=True)
        )
        return interleaved_runs(RUN_MODULE, CONTENDERS, repeats, folder, task, rows, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="cola,rte")
    parser.add_argument("--rows", default="1000,300")
    parser.add_argument("--train_rows", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    tasks: dict[str, Any] = {}
    for task, rows in zip(given.tasks.split(","), map(int, given.rows.split(",")), strict=True):
        runs = measure(task, rows, given.train_rows, given.repeats)
        tasks[task] = {"rows": rows, "contenders": summary(runs, rows), "runs": runs}
        print_table(task, tasks[task]["contenders"], COLUMNS)
        command = command_of("benchmarks.speed.predict", sys.argv[1:])
        write_record(TARGET, {"command": command, "tasks": tasks})


if __name__ == "__main__":
    main()
