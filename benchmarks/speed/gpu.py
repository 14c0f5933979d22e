"""`peers.py` on a CUDA device: training speed beside the peers, the same contenders, rows and epochs.

    python -m benchmarks.speed.gpu [--tasks cola,rte,sst2] [--rows 1000,500,8000] [--repeats 3]

Writes results/bench/gpu.json and prints a table for each task. Where there is no CUDA device it says so and writes
nothing.
"""

from __future__ import annotations

import os
import sys

import torch

from benchmarks.common import RECORDS
from benchmarks.speed import peers

TARGET = RECORDS / "gpu.json"


def main() -> None:
    if not torch.cuda.is_available():
        print("benchmarks.speed.gpu: skipped, as PyTorch finds no CUDA device here")
        return
    os.environ["ATTENTUNE_BENCH_DEVICE"] = "cuda"
    peers.main(sys.argv[1:], torch.device("cuda"), TARGET)


if __name__ == "__main__":
    main()
