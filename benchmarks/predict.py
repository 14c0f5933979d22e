"""Speed of prediction beside transformers' pipeline: same weights, same texts, from texts to labels.

    python benchmarks/predict.py [--tasks cola,rte] [--rows 1000,300] [--train_rows 1000] [--repeats 3]

Trains a `bert` run on each task first, one epoch. Writes results/bench/predict.json and prints a table for each task:
texts and real tokens a second, peak memory, score on the validation file, utilisation of the processor's rate of matrix
products. Each contender has a process of its own, and the repeats take all contenders in turn. Needs the data:
$ATTENTUNE_DATA, else ../shared/data.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import roofline
from attentune.results import versions
from attentune.training.progress import ProgressDisplay
from attentune.training.train import train
from peer_runs import settings
from peers import EMBEDDED, print_table
from places import RECORDS
from predict_runs import CONTENDERS
from turns import in_turn

TARGET = RECORDS / "predict.json"
SCRIPT = Path(__file__).with_name("predict_runs.py")
COLUMNS = ("texts_per_second", "to_default", "to_best", "tokens_per_second", "peak_memory_mib", "score", "utilisation")


def summary(runs: dict[str, list[dict[str, Any]]], rows: int, peak_gflops: float) -> dict[str, dict[str, Any]]:
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
        # The forward pass is a third of what a training step computes.
        flops = roofline.flops_per_token(**EMBEDDED, tokens=tokens / rows) / 3
        made[name] = {
            "texts_per_second": round(rows / seconds),
            "to_default": ratio(own, "pipeline"),
            "to_best": ratio(own, "pipeline at its best"),
            "tokens_per_second": round(tokens / seconds),
            "peak_memory_mib": round(statistics.median(run["peak_memory_bytes"] for run in own) / 2**20),
            "score": round(own[0]["score"], 3),
            "utilisation": round(tokens / seconds * flops / peak_gflops / 1e9, 3),
        }
    return made


def measure(task: str, rows: int, train_rows: int, repeats: int) -> dict[str, list[dict[str, Any]]]:
    """The facts of all runs on a task, by contender."""
    with tempfile.TemporaryDirectory() as folder:
        train(
            settings(task, train_rows, folder, **{"training.num_train_epochs": 1}), display=ProgressDisplay(quiet=True)
        )
        return in_turn(SCRIPT, CONTENDERS, repeats, folder, task, rows, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="cola,rte")
    parser.add_argument("--rows", default="1000,300")
    parser.add_argument("--train_rows", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    machine = roofline.measure()
    rate = roofline.best_rate(machine)
    tasks: dict[str, Any] = {}
    for task, rows in zip(given.tasks.split(","), map(int, given.rows.split(",")), strict=True):
        runs = measure(task, rows, given.train_rows, given.repeats)
        tasks[task] = {"rows": rows, "contenders": summary(runs, rows, rate), "runs": runs}
        print_table(task, tasks[task]["contenders"], COLUMNS)
        record = {"command": "python benchmarks/predict.py " + " ".join(sys.argv[1:]), "machine": machine}
        TARGET.write_text(json.dumps({**record, "tasks": tasks, "versions": versions()}, indent=1) + "\n")


if __name__ == "__main__":
    main()
