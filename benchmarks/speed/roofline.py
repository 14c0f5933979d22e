"""Peak rates of this machine: matrix products and memory bandwidth, for roofline estimates.

    python -m benchmarks.speed.roofline [--threads 2]

Writes results/bench/roofline.json. The utilisation of a run is the rate of matrix products that its non-padding tokens
need, divided by the machine's rate in that precision: `python -m benchmarks.speed.peers` puts it into its table.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from attentune.models.precision import has_fast_bf16
from benchmarks.common import RECORDS, command_of, write_record

TARGET = RECORDS / "roofline.json"
# Rows x inner x columns: the feed-forward layer of the embedded encoder, and larger ones.
SHAPES = ((2048, 384, 1536), (2048, 1536, 384), (4096, 768, 3072), (4096, 4096, 4096))
COPIED_BYTES = 512 * 1024 * 1024
CPU = torch.device("cpu")


def seconds_of(work: Callable[[], object], repeats: int = 7) -> float:
    """The median time of one call, after two that do not count."""

    def done() -> None:
        work()
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()

    for _ in range(2):
        done()
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        done()
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def product_rate(shape: tuple[int, int, int], dtype: torch.dtype, device: torch.device) -> float:
    """GFLOP/s of one matrix product; a multiplication and an addition are two operations."""
    rows, inner, columns = shape
    left = torch.randn(rows, inner, dtype=dtype, device=device)
    right = torch.randn(inner, columns, dtype=dtype, device=device)
    return 2 * rows * inner * columns / seconds_of(lambda: left @ right) / 1e9


def memory_rate(device: torch.device) -> float:
    """GB/s of copying a block that no cache holds, read and written bytes counted."""
    source = torch.zeros(COPIED_BYTES, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return 2 * COPIED_BYTES / seconds_of(lambda: target.copy_(source)) / 1e9


def flops_per_token(*, layers: int, width: int, inner: int, tokens: float) -> float:
    """The products of an encoder's forward and backward pass, a token, in texts of this many tokens.

    Per layer: four square projections, two of the feed-forward layer, scores and context of attention. The backward
    pass takes twice the forward's.
    """
    forward = layers * (2 * 4 * width * width + 2 * 2 * width * inner + 2 * 2 * width * tokens)
    return 3 * forward


def measure(device: torch.device = CPU) -> dict[str, Any]:
    """The record of this machine, without the command. bf16 only where the hardware multiplies it."""
    dtypes = (torch.float32, torch.bfloat16) if has_fast_bf16(device) else (torch.float32,)
    rates = {
        str(dtype).removeprefix("torch."): {
            "x".join(map(str, shape)): round(product_rate(shape, dtype, device)) for shape in SHAPES
        }
        for dtype in dtypes
    }
    return {
        "gflops": rates,
        "memory_gb_per_second": round(memory_rate(device), 1),
        "threads": torch.get_num_threads(),
    }


def best_rate(machine: dict[str, Any], device: torch.device = CPU) -> float:
    """The best rate of products that training there could use, of what `measure` says: GFLOP/s."""
    return float(max(machine["gflops"]["bfloat16" if has_fast_bf16(device) else "float32"].values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, help="all cores if not given")
    given = parser.parse_args()
    if given.threads:
        torch.set_num_threads(given.threads)
    record = {"command": command_of("benchmarks.speed.roofline"), **measure()}
    write_record(TARGET, record)
    print(json.dumps({key: record[key] for key in ("gflops", "memory_gb_per_second", "threads")}, indent=1))


if __name__ == "__main__":
    main()
