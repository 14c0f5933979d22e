"""The time of many runs by one `attentune compare` against as many `attentune train` commands, one after the other.

    python -m benchmarks.speed.many_runs [--runs 24] [--commands 24] [--rows 1000] [--epochs 3]

CoLA, presets `bert` and `bert-mean`, a seed for each two runs. `compare` runs one on each core, each on one thread; a
`train` command has all cores. With fewer `--commands` their time is multiplied. One run of each preset is also trained
by a `train` command on one thread, whose score must be the one that `compare` has recorded. Adds a line to
results/bench/many.jsonl. Needs the data: $ATTENTUNE_DATA, else ../shared/data.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.common import MANY, command_of, data_dir, write_line

PRESETS = ("bert", "bert-mean")


def attentune(*words: object, threads: int | None = None) -> float:
    """Run a command in a process of its own; return its seconds."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    began = time.perf_counter()
    command = [sys.executable, "-m", "attentune", *map(str, words), "--quiet"]
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - began


def shared(given: argparse.Namespace) -> list[object]:
    """Return the arguments that both commands have."""
    return [
        *("--task", "cola", "--data_dir", data_dir() / "glue_data", "--num_train_epochs", given.epochs),
        *("--load_best_model_at_end", "false"),
    ]


def train(preset: str, seed: int, folder: Path, given: argparse.Namespace, **options: int) -> float:
    words = ["train", "--preset", preset, "--seed", seed, "--max_train_samples", given.rows, "--output_dir", folder]
    return attentune(*words, *shared(given), **options)


def score_of(folder: Path) -> float:
    """Return the first score of a run folder."""
    scores = json.loads((folder / "metrics.json").read_text())["validation"]
    return float(next(iter(scores.values())))


def recorded(folder: Path) -> dict[tuple[str, int], float]:
    """Return the score of each run of a comparison, by preset and seed."""
    found: dict[tuple[str, int], float] = {}
    for file in (folder / "records").rglob("*.json"):
        record: dict[str, Any] = json.loads(file.read_text())
        found[record["run"]["method"], record["run"]["seed"]] = record["score"]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=24)
    parser.add_argument("--commands", type=int, default=24)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--epochs", type=int, default=3)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        compare_s = attentune(
            *("compare", "--presets", ",".join(PRESETS), "--seeds", given.runs // len(PRESETS)),
            *("--train_size", given.rows, "--output_dir", folder / "comparison"),
            *shared(given),
        )
        scores = recorded(folder / "comparison")
        seconds = [
            train(PRESETS[number % 2], 1 + number // 2, folder / f"run-{number}", given)
            for number in range(given.commands)
        ]
        same = {}
        for preset in PRESETS:
            train(preset, 1, folder / f"one-thread-{preset}", given, threads=1)
            same[preset] = (score_of(folder / f"one-thread-{preset}"), scores[preset, 1])
    commands_s = sum(seconds) * given.runs / given.commands
    record = {
        "command": command_of("benchmarks.speed.many_runs", sys.argv[1:]),
        "cores": os.cpu_count(),
        "runs": given.runs,
        "commands": given.commands,
        "compare_seconds": round(compare_s, 1),
        "commands_seconds": round(commands_s, 1),
        "ratio": round(compare_s / commands_s, 3),
        "scores_alone_and_compared": same,
    }
    write_line(MANY, record)
    print(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
