"""Compare the training losses of our C kernels with those of PyTorch's operations, step by step, over seeds.

    python -m benchmarks.speed.attention_curves [--of attention] [--task cfimdb] [--rows 96] [--epochs 3] [--seeds 3]

`--of layers` compares layers in C with PyTorch's operations, `--of attention` attention alone, without the former.
The two draw different dropout masks, so their losses differ as between seeds, and not on average. Writes
results/bench/attention_curves.json (layers_curves.json) and prints the mean loss of each third of training, with its
standard deviation over the seeds. Needs the data: $ATTENTUNE_DATA, else ../shared/data.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from unittest import mock

from attentune.training.progress import ProgressDisplay
from attentune.training.train import train
from benchmarks.common import RECORDS, command_of, table, write_record
from benchmarks.speed.peer_runs import settings


def losses(of: str, task: str, rows: int, epochs: int, seed: int, *, ours: bool) -> list[float]:
    """The loss of each step."""
    changes = {
        "training.fused_layers": of == "layers" and ours,
        "training.num_train_epochs": epochs,
        "training.seed": seed,
        "training.eval_strategy": "no",
        "training.logging_steps": 1,
        "training.per_device_train_batch_size": 8,
        "data.max_eval_samples": 16,
    }
    with tempfile.TemporaryDirectory() as folder:
        config = settings(task, rows, folder, **changes)
        if ours or of == "layers":
            train(config, display=ProgressDisplay(quiet=True))
        else:
            with mock.patch("attentune.training.components.use_own_attention"):
                train(config, display=ProgressDisplay(quiet=True))
        lines = [json.loads(line) for line in (Path(folder) / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--of", choices=("attention", "layers"), default="attention")
    parser.add_argument("--task", default="cfimdb")
    parser.add_argument("--rows", type=int, default=96)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    curves = {
        name: [
            losses(given.of, given.task, given.rows, given.epochs, seed, ours=ours)
            for seed in range(1, given.seeds + 1)
        ]
        for name, ours in (("PyTorch's", False), ("ours", True))
    }
    rows = []
    for name, own in curves.items():
        third = len(own[0]) // 3
        parts = [[statistics.mean(curve[at : at + third]) for curve in own] for at in (0, third, 2 * third)]
        rows.append([name, *(f"{statistics.mean(part):.4f} ± {statistics.stdev(part):.4f}" for part in parts)])
    print("\n".join(table(["program", "first third", "second", "last"], rows)))
    command = command_of("benchmarks.speed.attention_curves", sys.argv[1:])
    write_record(RECORDS / f"{given.of}_curves.json", {"command": command, "losses": curves})


if __name__ == "__main__":
    main()
