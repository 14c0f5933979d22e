"""A first look at Self-Supervised Attention: 1,000 training rows, the embedded encoder, 3 seeds; JSON a run.

    OMP_NUM_THREADS=1 python benchmarks/first_look.py [--tasks cola,sst2] [--stages choose,report,variants]

Start it as often as there are cores: each takes runs that no other has begun. Runs that have their file are left out.
Every run of a seed trains on the same 1,000 rows. Learning rate and epochs are chosen for each method and task from
`GRIDS` by training on 1,000 rows of another seed and scoring on up to 1,000 further rows of the training file; the
validation file is scored once a run, in the report. Data: $ATTENTUNE_DATA, else ../shared/data.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from attentune.config import load_config
from attentune.data.load import load_data
from attentune.data.rows import TaskData
from attentune.seeding import numpy_generator
from attentune.training.display import Display
from attentune.training.run import train

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results" / "first-look"
ROWS, CHOOSING_SEED, SEEDS = 1000, 100, (1, 2, 3)
# Learning rate and epochs; the tasks of longer texts have a shorter grid.
SHORT_GRID = ((1e-4, 6), (3e-4, 3))
GRIDS = dict.fromkeys(("cola", "sst2"), (*SHORT_GRID, (0.0003, 6))) | dict.fromkeys(("mrpc", "rte"), SHORT_GRID)
TASKS = tuple(GRIDS)
# The longest text in tokens.
MAX_LENGTH = 64
GRADIENT = {"labels.generator": "gradient"}
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ("bert", "bert-mean", "bert-cls-mean", "bert-mask", "ssa-co", "ssa-hybrid")},
    **{name: (name, {}) for name in ("ssa-co-released", "ssa-hybrid-released")},
    "ssa-hybrid-gradient": ("ssa-hybrid", GRADIENT),
}
# Each with learning rate and epochs of the method that it varies.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "ssa-co shuffled": ("ssa-co", {"labels.shuffle": True}),
    "ssa-hybrid shuffled": ("ssa-hybrid", {"labels.shuffle": True}),
    "ssa-hybrid no labels": ("ssa-hybrid", {"labels.generator": "none"}),
    "ssa-hybrid drop": ("ssa-hybrid", {"labels.generator": "drop"}),
    "ssa-hybrid gradient soft": ("ssa-hybrid", {**GRADIENT, "labels.targets": "soft"}),
    "ssa-hybrid warm-up 2": ("ssa-hybrid", {"objective.token_loss_warmup_epochs": 2}),
    "ssa-hybrid beta 0.2": ("ssa-hybrid", {"model.token_gate.beta": 0.2}),
    "ssa-hybrid beta 0.9": ("ssa-hybrid", {"model.token_gate.beta": 0.9}),
}
VARIANT_TASKS = ("sst2",)


@dataclass(frozen=True)
class Job:
    """One run: `stage` is "choose", "report" or "variants"; `cell` a place in the grid, None for the chosen one."""

    stage: str
    task: str
    method: str
    seed: int
    cell: int | None

    @property
    def file(self) -> Path:
        """Where its record goes."""
        last = f"seed-{self.seed}" if self.cell is None else f"grid-{self.cell}"
        return RESULTS / self.stage / self.task / f"{self.method.replace(' ', '_')}-{last}.json"


def jobs(tasks: list[str], stages: list[str]) -> Iterator[Job]:
    """All runs, in the order in which they can be done."""
    for task in tasks:
        if "choose" in stages:
            for method in METHODS:
                yield from (Job("choose", task, method, CHOOSING_SEED, cell) for cell in range(len(GRIDS[task])))
        if "report" in stages:
            for seed in SEEDS:
                yield from (Job("report", task, method, seed, None) for method in METHODS)
        if "variants" in stages and task in VARIANT_TASKS:
            for seed in SEEDS:
                yield from (Job("variants", task, method, seed, None) for method in VARIANTS)


def chosen_cell(task: str, method: str) -> int | None:
    """The place in the task's grid that scored best where it was to be chosen; None while runs are missing."""
    files = [Job("choose", task, method, CHOOSING_SEED, cell).file for cell in range(len(GRIDS[task]))]
    if not all(file.exists() for file in files):
        return None
    return int(np.argmax([json.loads(file.read_text())["score"] for file in files]))


def rows_of(job: Job, config: Any) -> TaskData:
    """The run's 1,000 training rows, and what it is scored on."""
    whole = load_data(config.data, seed=job.seed, splits=("train", "validation"))
    order = numpy_generator("first look", job.task, job.seed).permutation(len(whole.splits["train"]))
    parts = {"train": whole.splits["train"].take(order[:ROWS]), "validation": whole.splits["validation"]}
    if job.stage == "choose":
        parts["validation"] = whole.splits["train"].take(order[ROWS : 2 * ROWS])
    return replace(whole, splits=parts)


def settings_of(job: Job) -> dict[str, Any] | None:
    """The run's settings; None while the choice that it needs is not made."""
    base, extra = METHODS[job.method] if job.method in METHODS else VARIANTS[job.method]
    cell = chosen_cell(job.task, job.method if job.method in METHODS else base) if job.cell is None else job.cell
    if cell is None:
        return None
    data = Path(os.environ.get("ATTENTUNE_DATA", "../shared/data")) / "glue_data"
    return {
        "preset": base,
        "data.task": job.task,
        "data.data_dir": str(data),
        "data.max_length": MAX_LENGTH,
        "training.learning_rate": GRIDS[job.task][cell][0],
        "training.num_train_epochs": GRIDS[job.task][cell][1],
        "training.seed": job.seed,
        "training.eval_strategy": "no",
        "training.save_steps": 1_000_000,
        "training.output_dir": f"runs/first-look/{os.getpid()}",
        "training.overwrite_output_dir": True,
        **extra,
    }


def run_job(job: Job, settings: dict[str, Any]) -> None:
    """Train, and write the record."""
    config = load_config(overrides=settings)
    run = ROOT / settings["training.output_dir"]
    result = train(config, data=rows_of(job, config), display=Display(quiet=True))
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    scores = result.scores["validation"]
    record = {
        "command": f"python benchmarks/first_look.py --tasks {job.task} --stages {job.stage}",
        "method": job.method,
        "settings": {name: value for name, value in settings.items() if name != "training.output_dir"},
        "score": next(iter(scores.values())),
        "scores": scores,
        "train": result.train,
        "labels_by_epoch": [line["labels"] for line in lines if "labels" in line],
        "data_fingerprint": result.data_fingerprint,
        "versions": result.versions,
    }
    temporary = job.file.with_suffix(".tmp")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    temporary.replace(job.file)
    shutil.rmtree(run, ignore_errors=True)


def claimed(job: Job) -> bool:
    """Whether this process is the one to do the run; a claim of a process that has ended does not count."""
    claim = job.file.with_suffix(".claim")
    claim.parent.mkdir(parents=True, exist_ok=True)
    if claim.exists() and not Path(f"/proc/{claim.read_text().strip()}").exists():
        claim.unlink(missing_ok=True)
    # Written elsewhere and then linked, so that a claim is never seen without its process.
    mine = claim.with_suffix(f".{os.getpid()}")
    mine.write_text(str(os.getpid()))
    try:
        os.link(mine, claim)
    except FileExistsError:
        return False
    finally:
        mine.unlink()
    return not job.file.exists()  # it may have been done just before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--stages", default="choose,report,variants")
    given = parser.parse_args()
    os.chdir(ROOT)
    for job in jobs(given.tasks.split(","), given.stages.split(",")):
        while not job.file.exists() and (settings := settings_of(job)) is None:
            time.sleep(5)  # another process is at the runs that this one's choice waits for
        if job.file.exists() or not claimed(job):
            continue
        began = time.perf_counter()
        run_job(job, settings)
        job.file.with_suffix(".claim").unlink(missing_ok=True)
        print(f"{job.file.relative_to(RESULTS)}: {time.perf_counter() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
