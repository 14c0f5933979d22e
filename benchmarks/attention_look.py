"""A first look at task-specific attention: SST-5, Quora and STS, the embedded encoder, frozen and fine-tuned.

    OMP_NUM_THREADS=1 python benchmarks/attention_look.py [--stages choose,report,all,extras]

Start it as often as there are cores: each takes runs that no other has begun. At 1,000 training rows each method has
three seeds. Fine-tuned, learning rate and epochs are chosen for each method and task from `GRID` by training on 1,000
rows of another seed and scoring on further rows of the training file; frozen they are the poster's, 1e-3 x 10. The
stage `all` trains once on all rows, with the same learning rates. The stage `extras` has the ordinal loss and CFIMDB
beforehand on SST-5, and the three tasks on one encoder against one each. Data: $ATTENTUNE_DATA, else ../shared/data.
"""

from __future__ import annotations

import argparse
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from attentune.config import load_config
from attentune.results import versions
from attentune.training.multitask.tasks import train_tasks
from attentune.training.progress import ProgressDisplay
from attentune.training.train import train
from looks import base_settings, rows_of, run_into, work_off
from places import RESULTS, ROOT

FOLDER = RESULTS / "attention-look"
TASKS, SEEDS, CHOOSING_SEED = ("sst5", "quora", "sts"), (1, 2, 3), 100
GRID = ((1e-4, 6), (3e-4, 3))
FROZEN_REGIME = (1e-3, 10)
# On all rows, which are 6 to 16 times as many.
EPOCHS_ON_ALL = 2
_STS = {"objective.loss": "pearson", "model.head.projection": 4 * 384}
_THREE_BLOCKS = {"model.head.layers": 2, "model.head.bare": True}
_UNIFORM = {"model.head.init": "uniform"}


def settings_of_method(method: str, task: str) -> dict[str, Any]:
    """Preset and settings of a method on a task: the poster's baseline, its experiments, and plain fine-tuning."""
    if method == "bert":
        return {"preset": "bert"}
    if method == "baseline":
        own = {"preset": "bert-mean" if task == "sst5" else "bi-encoder-mean"}
        return own | (_STS if task == "sts" else {})
    made: dict[str, Any] = {"preset": "task-attention"} | (_UNIFORM if method == "experiment 2" else {})
    return made | ({**_STS, **_THREE_BLOCKS} if task == "sts" else {})


METHODS = ("bert", "baseline", "experiment 1", "experiment 2")
REGIMES = ("fine-tuned", "frozen")
EXTRAS = ("corn", "cfimdb first", "apart", "together")


@dataclass(frozen=True)
class Job:
    """One run. `cell` is a place in the grid in the stage `choose`."""

    stage: str
    task: str
    method: str
    regime: str
    seed: int
    cell: int | None = None

    @property
    def file(self) -> Path:
        """Where its record goes."""
        last = f"seed-{self.seed}" if self.cell is None else f"grid-{self.cell}"
        return FOLDER / self.stage / self.task / f"{self.method.replace(' ', '_')}-{self.regime}-{last}.json"


def jobs(stages: list[str]) -> Iterator[Job]:
    """All runs, in the order in which they can be done."""
    for task in TASKS:
        if "choose" in stages:
            for name in METHODS:
                yield from (Job("choose", task, name, "fine-tuned", CHOOSING_SEED, cell) for cell in range(len(GRID)))
        if "report" in stages:
            yield from (Job("report", task, name, way, seed) for seed in SEEDS for way in REGIMES for name in METHODS)
    if "extras" in stages:
        for seed in SEEDS:
            yield from (Job("extras", "sst5", name, "fine-tuned", seed) for name in ("corn", "cfimdb first"))
        yield from (Job("extras", "three", name, "fine-tuned", 1) for name in ("apart", "together"))
    if "all" in stages:
        yield from (Job("all", task, name, way, 1) for way in REGIMES for task in TASKS for name in METHODS)


def chosen_cell(task: str, method: str) -> int | None:
    """The place in the grid that scored best where it was to be chosen; None while runs are missing."""
    files = [Job("choose", task, method, "fine-tuned", CHOOSING_SEED, cell).file for cell in range(len(GRID))]
    if not all(file.exists() for file in files):
        return None
    return int(np.argmax([json.loads(file.read_text())["score"] for file in files]))


def settings_of(job: Job) -> dict[str, Any] | None:
    """The run's settings; None while the choice that it needs is not made."""
    if job.task == "three":
        return _three_tasks(job)
    method = "bert" if job.stage == "extras" else job.method
    if job.regime == "frozen":
        rate, epochs = FROZEN_REGIME
    else:
        cell = chosen_cell(job.task, method) if job.cell is None else job.cell
        if cell is None:
            return None
        rate, epochs = GRID[cell]
    if job.stage == "all":
        epochs = epochs if job.regime == "frozen" else EPOCHS_ON_ALL
    made = base_settings(job.task, seed=job.seed, learning_rate=rate, epochs=epochs)
    made |= settings_of_method(method, job.task)
    if job.regime == "frozen":
        made["training.freeze_encoder"] = True
    if job.method == "corn":
        made["objective.loss"] = "corn"
    return made


def _three_tasks(job: Job) -> dict[str, Any]:
    made = base_settings("sst5", seed=job.seed, learning_rate=GRID[0][0], epochs=GRID[0][1])
    made |= {"data.task": None, "data.tasks": list(TASKS), "data.max_train_samples": 1000, "preset": "task-attention"}
    made["data.task_settings"] = {"sts": {"objective.loss": "pearson"}}
    made["training.multi_task"] = job.method == "together"
    return made


def make(job: Job) -> None:
    """Train, and write the record."""
    settings = settings_of(job)
    assert settings is not None
    facts = {
        "command": f"python benchmarks/attention_look.py --stages {job.stage}",
        "method": job.method,
        "regime": job.regime,
    }
    if job.task == "three":
        _make_three(job.file, settings, facts)
        return
    rows = None if job.stage == "all" else partial(rows_of, seed=job.seed, to_choose=job.stage == "choose")
    if job.method == "cfimdb first":
        before = f"{settings['training.output_dir']}-cfimdb"
        first = base_settings("cfimdb", seed=job.seed, learning_rate=1e-4, epochs=2)
        train(
            load_config(overrides={"preset": "bert", **first, "training.output_dir": before}),
            display=ProgressDisplay(quiet=True),
        )
        settings["model.name_or_path"] = before
    run_into(job.file, settings, facts, rows=rows)
    shutil.rmtree(ROOT / f"{settings['training.output_dir']}-cfimdb", ignore_errors=True)


def _make_three(file: Path, settings: dict[str, Any], facts: dict[str, Any]) -> None:
    began = time.perf_counter()
    result = train_tasks(load_config(overrides=settings), display=ProgressDisplay(quiet=True))
    record = {
        **facts,
        "settings": {name: value for name, value in settings.items() if name != "training.output_dir"},
        "score": result.leaderboard["validation"],
        "scores": result.scores,
        "seconds": round(time.perf_counter() - began, 1),
        "versions": versions(),
    }
    file.write_text(json.dumps(record, indent=1) + "\n")
    shutil.rmtree(ROOT / settings["training.output_dir"], ignore_errors=True)


def is_ready(job: Job) -> bool:
    """Whether the choice that the run needs is made."""
    return settings_of(job) is not None


def tasks_of(found: Iterator[Job]) -> Iterator[tuple[Path, Callable[[], bool], Callable[[], None]]]:
    """For `work_off`."""
    return ((job.file, partial(is_ready, job), partial(make, job)) for job in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", default="choose,report,extras,all")
    work_off(tasks_of(jobs(parser.parse_args().stages.split(","))))


if __name__ == "__main__":
    main()
