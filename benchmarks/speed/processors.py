"""Speed on kinds of processors against transformers' Trainer and pipeline at their best, side by side in one run.

    python -m benchmarks.speed.processors [--kinds amx,avx512-bf16,avx512,avx2] [--tasks cola,rte,sst2,cfimdb]
        [--rows 300,100,300,40] [--repeats 2] [--threads 1] [--clock elapsed|cpu] [--only training|prediction]

oneDNN, MKL and PyTorch are told which instructions they may use, and our C code is compiled for these, so one machine
stands for older ones; clock rates, caches and memory stay its own. Contenders compute in bf16 for `amx` and
`avx512-bf16`, in float32 for the others. `--clock cpu` measures processor time, on one thread, where other programs
use the machine. Adds a line for each kind to results/bench/processors.jsonl and prints a table. Texts are cut at 128
tokens, those of cfimdb at 512. Needs the data: $ATTENTUNE_DATA, else ../shared/data.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from typing import Any

from attentune.nn.compiled.native import processor_name
from attentune.training.progress import ProgressDisplay
from attentune.training.train import train
from benchmarks.common import RECORDS, command_of, compared, interleaved_runs, table, write_line
from benchmarks.speed.peer_runs import settings

TARGET = RECORDS / "processors.jsonl"
TRAINERS = ("Trainer at its best", "attentune bert")
PREDICTORS = ("pipeline at its best", "attentune")
# What each kind needs, and the environment that makes a processor one of this kind. MKL obeys on Intel's only.
KINDS: dict[str, tuple[str, dict[str, str]]] = {
    "amx": ("amx_bf16", {}),
    "avx512-bf16": (
        "avx512_bf16",
        {
            "ONEDNN_MAX_CPU_ISA": "avx512_core_bf16",
            "MKL_ENABLE_INSTRUCTIONS": "AVX512_E3",
            "ATTENTUNE_CFLAGS": "-march=cooperlake",
        },
    ),
    "avx512": (
        "avx512f",
        {
            "ONEDNN_MAX_CPU_ISA": "avx512_core",
            "MKL_ENABLE_INSTRUCTIONS": "AVX512",
            "ATTENTUNE_CFLAGS": "-march=x86-64-v4",
            "ATTENTUNE_BENCH_PRECISION": "fp32",
        },
    ),
    "avx2": (
        "avx2",
        {
            "ONEDNN_MAX_CPU_ISA": "avx2",
            "ATEN_CPU_CAPABILITY": "avx2",
            "MKL_ENABLE_INSTRUCTIONS": "AVX2",
            "ATTENTUNE_CFLAGS": "-march=x86-64-v3",
            "ATTENTUNE_BENCH_PRECISION": "fp32",
        },
    ),
}


def trained(task: str, folder: str) -> None:
    """Train a `bert` run of one epoch on a few rows, whose predictions are timed."""
    train(settings(task, 64, folder, **{"training.num_train_epochs": 1}), display=ProgressDisplay(quiet=True))


def measured(kind: str, given: argparse.Namespace, runs: dict[str, str]) -> dict[str, Any]:
    """Return the record of one kind."""
    tasks: dict[str, Any] = {}
    for task, rows in zip(given.tasks.split(","), given.rows.split(","), strict=True):
        found: dict[str, Any] = {"rows": int(rows)}
        if given.only != "prediction":
            module = "benchmarks.speed.peer_runs"
            found["training"] = compared(interleaved_runs(module, TRAINERS, given.repeats, task, rows), *TRAINERS)
        if given.only != "training":
            module = "benchmarks.speed.predict_runs"
            arguments = (runs[task], task, rows, 3)
            found["prediction"] = compared(interleaved_runs(module, PREDICTORS, given.repeats, *arguments), *PREDICTORS)
        tasks[task] = found
        print(kind, task, found, file=sys.stderr, flush=True)
    return tasks


def line(kind: str, task: str, found: dict[str, Any]) -> list[str]:
    """Return a line of the printed table."""
    cells = []
    for part in ("training", "prediction"):
        own = found.get(part)
        if own is None or "reasons" in own:
            cells += ["", "", "" if own is None else str(own["reasons"])]
            continue
        speeds, memory = own["tokens_per_second"].values(), own["peak_memory_mib"].values()
        cells += [" / ".join(map(str, speeds)), str(own["ratio"]), " / ".join(map(str, memory))]
    return [kind, task, *cells]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", default=",".join(KINDS))
    parser.add_argument("--tasks", default="cola,rte,sst2,cfimdb")
    parser.add_argument("--rows", default="300,100,300,40")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clock", default="elapsed", choices=("elapsed", "cpu"))
    parser.add_argument("--only", choices=("training", "prediction"))
    given = parser.parse_args()
    has = processor_name().split()
    os.environ |= {"ATTENTUNE_BENCH_CLOCK": given.clock, "OMP_NUM_THREADS": str(given.threads)}
    os.environ["ATTENTUNE_BENCH_SCORED_ROWS"] = "64"
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        runs = {task: f"{folder}/{task}" for task in given.tasks.split(",")}
        for task, run in runs.items():
            if given.only != "training":
                trained(task, run)
        for kind in given.kinds.split(","):
            flag, environment = KINDS[kind]
            if flag not in has:
                print(f"{kind}: not measured, since this processor has no {flag}", file=sys.stderr)
                continue
            before = dict(os.environ)
            os.environ |= environment
            tasks = measured(kind, given, runs)
            os.environ.clear()
            os.environ |= before
            record = {
                "record": kind if given.only is None else f"{kind}, {given.only}",
                "command": command_of("benchmarks.speed.processors", sys.argv[1:]),
            }
            facts = {"threads": given.threads, "clock": given.clock, "environment": environment, "tasks": tasks}
            write_line(TARGET, {**record, **facts})
            lines += [line(kind, task, found) for task, found in tasks.items()]
    both = [
        f"{part}{what}" for part in ("training ", "prediction ") for what in ("tokens/s, theirs / ours", "ratio", "MiB")
    ]
    print("\n".join(table(["kind", "task", *both], lines)))


if __name__ == "__main__":
    main()
