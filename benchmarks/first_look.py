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
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from looks import base_settings, rows_of, run_into, work_off
from places import RESULTS

FOLDER = RESULTS / "first-look"
CHOOSING_SEED, SEEDS = 100, (1, 2, 3)
# Learning rate and epochs; the tasks of longer texts have a shorter grid.
SHORT_GRID = ((1e-4, 6), (3e-4, 3))
GRIDS = dict.fromkeys(("cola", "sst2"), (*SHORT_GRID, (0.0003, 6))) | dict.fromkeys(("mrpc", "rte"), SHORT_GRID)
TASKS = tuple(GRIDS)
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
        return FOLDER / self.stage / self.task / f"{self.method.replace(' ', '_')}-{last}.json"


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


def settings_of(job: Job) -> dict[str, Any] | None:
    """The run's settings; None while the choice that it needs is not made."""
    base, extra = METHODS[job.method] if job.method in METHODS else VARIANTS[job.method]
    cell = chosen_cell(job.task, job.method if job.method in METHODS else base) if job.cell is None else job.cell
    if cell is None:
        return None
    rate, epochs = GRIDS[job.task][cell]
    return {
        "preset": base,
        **base_settings(job.task, seed=job.seed, learning_rate=rate, epochs=epochs),
        **extra,
    }


def make(job: Job) -> None:
    """Train, and write the record."""
    settings = settings_of(job)
    assert settings is not None
    facts = {
        "command": f"python benchmarks/first_look.py --tasks {job.task} --stages {job.stage}",
        "method": job.method,
    }
    rows = partial(rows_of, seed=job.seed, to_choose=job.stage == "choose")
    run_into(job.file, settings, facts, rows=rows)


def is_ready(job: Job) -> bool:
    """Whether the choice that the run needs is made."""
    return settings_of(job) is not None


def tasks_of(found: Iterator[Job]) -> Iterator[tuple[Path, Callable[[], bool], Callable[[], None]]]:
    """For `work_off`."""
    return ((job.file, partial(is_ready, job), partial(make, job)) for job in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--stages", default="choose,report,variants")
    given = parser.parse_args()
    work_off(tasks_of(jobs(given.tasks.split(","), given.stages.split(","))))


if __name__ == "__main__":
    main()
