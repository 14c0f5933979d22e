"""How time and memory grow with the work: over rows, tokens, rows in a batch, and layers.

    python -m benchmarks.speed.scale [--steps 8]

From one starting point each of the four is changed by itself; each point is a training run in a process of its own, on
made-up texts of exactly so many tokens and an encoder like the embedded one with random weights. Writes
results/bench/scale.json and prints a table: seconds to read and tokenise, seconds a step (the median), the rate of
products that this is, and peak memory. The rate should not fall as the work grows. What 1,000,000 texts take to
predict: benchmarks/speed/stream.py.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from attentune.config import load_config
from attentune.training.memory import peak_memory_bytes
from attentune.training.signals import StopRequest
from attentune.training.state import TrainingState
from benchmarks.common import RECORDS, built_components, command_of, one_run, random_encoder, table, write_record
from benchmarks.speed import roofline

TARGET = RECORDS / "scale.json"
START = {"rows": 1000, "tokens": 32, "batch": 32, "layers": 6}
SERIES = {
    "rows": (1000, 4000, 16000, 64000),
    "tokens": (16, 32, 64, 128, 256, 512),
    "batch": (8, 32, 128),
    "layers": (2, 6, 12),
}
WORDS = ("time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state")
COLUMNS = ("read_seconds", "step_seconds", "tokens_per_second", "gflops", "peak_memory_mib")


def write_rows(file: Path, rows: int, tokens: int) -> Path:
    """Texts of so many tokens: each word is one, and there are [CLS] and [SEP]."""
    draw = random.Random(1)
    lines = (f"{' '.join(draw.choices(WORDS, k=tokens - 2))},{row % 2}" for row in range(rows))
    file.write_text("text,label\n" + "\n".join(lines) + "\n")
    return file


def point(rows: int, tokens: int, batch: int, layers: int, steps: int) -> dict[str, Any]:
    """One training run of so many steps."""
    with tempfile.TemporaryDirectory() as name:
        file = write_rows(Path(name) / "rows.csv", rows, tokens)
        overrides = {
            "preset": "bert",
            "model.name_or_path": str(random_encoder(layers)),
            "data.train_file": str(file),
            "data.validation_share": 0.01,
            "data.max_length": 512,
            "training.per_device_train_batch_size": batch,
            "training.max_steps": steps,
            "training.save_steps": 1_000_000,
            "training.eval_strategy": "no",
            "training.use_cpu": True,
            "training.output_dir": f"{name}/run",
        }
        began = time.perf_counter()
        parts = built_components(load_config(overrides=overrides))
        read = time.perf_counter() - began
        state, times = TrainingState(), []
        for _ in parts.loop.steps(state, stop=StopRequest()):
            times.append(state.seconds - sum(times))
    step = statistics.median(times[2:])
    flops = roofline.flops_per_token(layers=layers, width=384, inner=1536, tokens=tokens)
    return {
        "read_seconds": round(read, 2),
        "step_seconds": round(step, 4),
        "tokens_per_second": round(batch * tokens / step),
        "gflops": round(batch * tokens / step * flops / 1e9),
        "peak_memory_mib": round(peak_memory_bytes(roofline.CPU) / 2**20),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--steps", type=int, default=8, help="optimiser steps at each point; the first two do not count"
    )
    parser.add_argument("--point", type=int, nargs=4, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.point is not None:
        print(json.dumps(point(*given.point, given.steps)))
        return
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for name, values in SERIES.items():
        found[name] = {}
        for value in values:
            work = START | {name: value}
            found[name][value] = one_run("benchmarks.speed.scale", "--steps", given.steps, "--point", *work.values())
        lines = [[str(value), *(str(own.get(at, "")) for at in COLUMNS)] for value, own in found[name].items()]
        print(f"\n{name}\n" + "\n".join(table([name, *COLUMNS], lines)), flush=True)
    command = command_of("benchmarks.speed.scale", sys.argv[1:])
    write_record(TARGET, {"command": command, "start": START, "series": found})


if __name__ == "__main__":
    main()
