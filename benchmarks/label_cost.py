"""What token labels cost: whole-epoch time and peak memory of SSA against preset `bert`, paired runs.

    python benchmarks/label_cost.py [--task cola] [--rows 2000] [--repeats 5]

Each run is a process of its own, and the methods take turns, so that a busy machine troubles all alike. Compared is an
epoch with labels: training steps, and what making the labels took. `released` is measured at its dearest, when all
samples are labelled ones. Data: $ATTENTUNE_DATA, else ../shared/data. The record goes to results/bench/.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from attentune.results import versions

ROOT = Path(__file__).resolve().parents[1]
EPOCHS = 3
LIMITS = {"flip": 1.25, "released": 1.35, "gradient": 1.05}
MEMORY_LIMIT = 1.1
METHODS = {
    "bert": ["--preset", "bert"],
    "flip": ["--preset", "ssa-co"],
    "released": ["--preset", "ssa-co-released", "--set", "labels.aug_ratio_each=1"],
    "gradient": ["--preset", "ssa-co", "--set", "labels.generator=gradient"],
}


def measure(method: str, task: str, rows: int) -> dict[str, float]:
    """Seconds of an epoch with labels, its share for labels, and the peak memory, of one run."""
    data = Path(os.environ.get("ATTENTUNE_DATA", "../shared/data")) / "glue_data"
    run = ROOT / "runs" / "label-cost"
    words = ["--task", task, "--data_dir", str(data), "--max_train_samples", str(rows), "--max_eval_samples", "50"]
    words += ["--num_train_epochs", str(EPOCHS), "--learning_rate", "3e-4", "--eval_strategy", "no", "--quiet"]
    words += ["--output_dir", str(run), "--overwrite_output_dir", *METHODS[method]]
    subprocess.run(
        [sys.executable, "-m", "attentune.cli.main", "train", *words],
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
    )
    facts = json.loads((run / "run.json").read_text())["train"]
    shutil.rmtree(run)
    # The first epoch has no labels to make.
    labels = facts["label_seconds"] / (EPOCHS - 1)
    return {
        "epoch_seconds": facts["seconds"] / EPOCHS + labels,
        "label_seconds": labels,
        "peak_memory_bytes": facts["peak_memory_bytes"],
    }


def ratios(runs: list[dict[str, dict[str, float]]], method: str, what: str) -> float:
    """The ratio of medians to `bert`'s."""
    medians = {name: statistics.median(run[name][what] for run in runs) for name in (method, "bert")}
    return round(medians[method] / medians["bert"], 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="cola")
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    runs = []
    for _ in range(given.repeats):
        runs.append({method: measure(method, given.task, given.rows) for method in METHODS})
        print({name: round(values["epoch_seconds"], 2) for name, values in runs[-1].items()}, flush=True)
    found: dict[str, Any] = {
        method: {"time": ratios(runs, method, "epoch_seconds"), "memory": ratios(runs, method, "peak_memory_bytes")}
        for method in LIMITS
    }
    for method, limit in LIMITS.items():
        found[method] |= {"time_limit": limit, "memory_limit": MEMORY_LIMIT}
    record = {
        "command": f"python benchmarks/label_cost.py --task {given.task} --rows {given.rows} --repeats {given.repeats}",
        "ratios_to_bert": found,
        "runs": runs,
        "threads": os.environ.get("OMP_NUM_THREADS", "all cores"),
        "versions": versions(),
    }
    target = ROOT / "results" / "bench" / f"label_cost_{given.task}.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
