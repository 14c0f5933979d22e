"""Training speed beside the peers: same encoder, same rows, same epochs, batches of 32, side by side in one run.

    python benchmarks/peers.py [--tasks cola,rte,sst2] [--rows 1000,500,8000] [--repeats 3] [--contenders ...]

Writes results/bench/peers.json and prints a table for each task: real tokens a second, seconds an epoch, peak memory,
score on the validation file, utilisation of the processor's rate of matrix products. Each run has a process of its own;
each repeat takes all contenders in turn, so that a machine whose speed drifts favours none. A contender that is not
installed, or that cannot take a task, stands with that reason. Texts are cut at 128 tokens, those of cfimdb (film
reviews of a page) at 512. Needs the data: $ATTENTUNE_DATA, else ../shared/data.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

import roofline
from attentune.results import versions
from peer_runs import CONTENDERS, EPOCHS
from places import RECORDS
from tables import table
from turns import in_turn

TARGET = RECORDS / "peers.json"
SCRIPT = Path(__file__).with_name("peer_runs.py")
COLUMNS = ("tokens_per_second", "ratio", "epoch_seconds", "peak_memory_mib", "score", "utilisation")
REFERENCE = "Trainer at its best"
EMBEDDED = {"layers": 6, "width": 384, "inner": 1536}


def summary(runs: dict[str, list[dict[str, Any]]], rows: int, peak_gflops: float) -> dict[str, dict[str, Any]]:
    """For each contender the medians of its runs, and the median ratio of its speed to the reference's in its turn."""
    made: dict[str, dict[str, Any]] = {}
    for name, own in runs.items():
        if "reason" in own[0]:
            made[name] = own[0]
            continue
        speeds = [run["tokens"] / run["seconds"] for run in own]
        reference = [run["tokens"] / run["seconds"] for run in runs[REFERENCE]]
        mean_tokens = own[0]["tokens"] / EPOCHS / rows
        flops = roofline.flops_per_token(**EMBEDDED, tokens=mean_tokens)
        made[name] = {
            "tokens_per_second": round(statistics.median(speeds)),
            "ratio": round(statistics.median(a / b for a, b in zip(speeds, reference, strict=True)), 3),
            "epoch_seconds": round(statistics.median(run["seconds"] for run in own) / EPOCHS, 2),
            "peak_memory_mib": round(statistics.median(run["peak_memory_bytes"] for run in own) / 2**20),
            "score": round(statistics.median(run["score"] for run in own), 3),
            "utilisation": round(statistics.median(speeds) * flops / peak_gflops / 1e9, 3),
        }
    return made


def print_table(task: str, facts: dict[str, dict[str, Any]], columns: Sequence[str]) -> None:
    lines = [[name, *(str(own.get(column, "")) for column in columns)] for name, own in facts.items()]
    print(f"\n{task}\n" + "\n".join(table([task, *columns], lines)))
    for name, own in facts.items():
        if "reason" in own:
            print(f"{name}: {own['reason']}")


def main(arguments: Sequence[str], device: torch.device = roofline.CPU, target: Path = TARGET) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default="cola,rte,sst2")
    parser.add_argument("--rows", default="1000,500,8000")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--contenders", default=";".join(CONTENDERS), help="names, between semicolons")
    parser.add_argument("--output_file", type=Path, default=target, help="where the record goes")
    given = parser.parse_args(arguments)
    machine = roofline.measure(device)
    rate = roofline.best_rate(machine, device)
    tasks: dict[str, Any] = {}
    for task, rows in zip(given.tasks.split(","), map(int, given.rows.split(",")), strict=True):
        runs = in_turn(SCRIPT, given.contenders.split(";"), given.repeats, task, rows)
        tasks[task] = {"rows": rows, "contenders": summary(runs, rows, rate), "runs": runs}
        print_table(task, tasks[task]["contenders"], COLUMNS)
        command = f"python benchmarks/{Path(sys.argv[0]).name} " + " ".join(arguments)
        record = {"command": command.strip(), "machine": machine, "tasks": tasks}
        given.output_file.write_text(json.dumps({**record, "versions": versions()}, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
