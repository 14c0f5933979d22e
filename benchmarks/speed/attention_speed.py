"""Attention of a BERT layer alone, by length: our C kernels with vectors and AMX tiles, and PyTorch's.

    python -m benchmarks.speed.attention_speed [--hidden 384] [--heads 12]

Milliseconds, the median of 21 calls, on as many threads as PyTorch takes: forward with dropout 0.1, backward, and
prediction, for batches of 32 texts, fewer of long ones. PyTorch's fused attention has no dropout on a CPU, so it is
beside prediction only. Writes results/bench/attention_speed_HIDDEN.json.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

from attentune.nn.cpu import kernels
from attentune.nn.cpu.kernels import DropoutMask
from benchmarks.common import RECORDS, command_of, table, write_record
from benchmarks.speed.roofline import seconds_of

SIZES = ((32, 12), (32, 16), (32, 17), (32, 24), (32, 32), (32, 48), (32, 64), (16, 128), (8, 256), (4, 512))
COLUMNS = ("forward", "backward", "prediction")


def milliseconds(work: Callable[[], object]) -> float:
    return round(1000 * seconds_of(work, repeats=21), 3)


def measure(batch: int, length: int, hidden: int, heads: int) -> dict[str, float]:
    """Milliseconds of each program's parts."""
    generator = torch.Generator().manual_seed(1)
    projected = torch.randn(batch * length, 3 * hidden, generator=generator).bfloat16()
    biases, mask = torch.zeros(3 * hidden), torch.zeros(batch, 1, 1, length)
    drop, nothing = DropoutMask.of(0.1, 1), DropoutMask.of(0.0, 0)
    found: dict[str, float] = {}
    for name, wanted in (("vectors", False), ("tiles", True)):
        if kernels.use_amx(wanted) != wanted:
            continue
        out, log_sums = kernels.attention(projected, biases, mask, batch, heads, drop, keep=True)
        assert log_sums is not None
        works = (
            lambda: kernels.attention(projected, biases, mask, batch, heads, drop, keep=True),
            lambda: kernels.attention_back(projected, biases, mask, log_sums, out, drop),  # noqa: B023  run at once
            lambda: kernels.attention(projected, biases, mask, batch, heads, nothing, keep=False),
        )
        found |= {f"{name}, {column}": milliseconds(work) for column, work in zip(COLUMNS, works, strict=True)}
    parts = projected.view(batch, length, 3, heads, hidden // heads).permute(2, 0, 3, 1, 4)
    half = mask.bfloat16()
    own = torch.nn.functional.scaled_dot_product_attention
    return found | {"PyTorch, prediction": milliseconds(lambda: own(parts[0], parts[1], parts[2], attn_mask=half))}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hidden", type=int, default=384)
    parser.add_argument("--heads", type=int, default=12)
    given = parser.parse_args()
    measured = {f"{batch} x {length}": measure(batch, length, given.hidden, given.heads) for batch, length in SIZES}
    columns = list(next(iter(measured.values())))
    print(
        "\n".join(
            table(["texts x tokens", *columns], [[size, *map(str, ms.values())] for size, ms in measured.items()])
        )
    )
    record = {"hidden": given.hidden, "heads": given.heads, "threads": torch.get_num_threads(), "ms": measured}
    words = [f"--hidden {given.hidden} --heads {given.heads}"]
    command = command_of("benchmarks.speed.attention_speed", words)
    write_record(RECORDS / f"attention_speed_{given.hidden}.json", {"command": command, **record})


if __name__ == "__main__":
    main()
