"""What the first looks share: runs that several processes can do side by side, each into a JSON record of its own."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from attentune.config import load_config
from attentune.data.dataset import TaskData
from attentune.data.load import load_data
from attentune.seeding import numpy_generator
from attentune.training.progress import ProgressDisplay
from attentune.training.train import train
from places import ROOT, named_data_dir

ROWS = 1000
# The longest text in tokens.
MAX_LENGTH = 64
_GLUE = ("cola", "sst2", "mrpc", "rte")
Finish = Callable[[Path, dict[str, Any]], dict[str, Any]]


def base_settings(task: str, *, seed: int, learning_rate: float, epochs: float) -> dict[str, Any]:
    """What all runs have in common."""
    data = named_data_dir()
    return {
        "data.task": task,
        "data.data_dir": str(data / "glue_data" if (data / "glue_data").is_dir() and task in _GLUE else data),
        "data.max_length": MAX_LENGTH,
        "training.learning_rate": learning_rate,
        "training.num_train_epochs": epochs,
        "training.seed": seed,
        "training.eval_strategy": "no",
        "training.save_steps": 1_000_000,
        "training.output_dir": f"runs/looks/{os.getpid()}",
        "training.overwrite_output_dir": True,
    }


def rows_of(config: Any, *, seed: int, to_choose: bool) -> TaskData:
    """The seed's 1,000 training rows and what the run is scored on: further training rows where it is to choose."""
    task = config.data.task
    whole = load_data(config.data, seed=seed, splits=("train", "validation"))
    order = numpy_generator("first look", task, seed).permutation(len(whole.splits["train"]))
    parts = {"train": whole.splits["train"].take(order[:ROWS]), "validation": whole.splits["validation"]}
    if to_choose:
        parts["validation"] = whole.splits["train"].take(order[ROWS : 2 * ROWS])
    return replace(whole, splits=parts)


def run_into(
    file: Path,
    settings: dict[str, Any],
    facts: dict[str, Any],
    *,
    rows: Callable[[Any], TaskData] | None = None,
    finish: Finish | None = None,
) -> None:
    """Train, and write the record.

    Args:
        file: the record.
        settings: the run's.
        facts: what else the record says.
        rows: makes the data from the configuration; the task's own if not given.
        finish: called with the run folder and the record, before the folder goes; what it returns joins the record.
    """
    config = load_config(overrides=settings)
    run = ROOT / settings["training.output_dir"]
    result = train(config, data=None if rows is None else rows(config), display=ProgressDisplay(quiet=True))
    lines = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    scores = result.scores["validation"]
    record = {
        **facts,
        "settings": {name: value for name, value in settings.items() if name != "training.output_dir"},
        "score": next(iter(scores.values())),
        "scores": scores,
        "train": result.train,
        "labels_by_epoch": [line["labels"] for line in lines if "labels" in line],
        "data_fingerprint": result.data_fingerprint,
        "versions": result.versions,
    }
    if finish is not None:
        record |= finish(run, record)
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    temporary.replace(file)
    shutil.rmtree(run, ignore_errors=True)


def claimed(file: Path) -> bool:
    """Whether this process is the one to make a record; a claim of a process that has ended does not count."""
    claim = file.with_suffix(".claim")
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
    return not file.exists()  # it may have been done just before


def work_off(jobs: Iterable[tuple[Path, Callable[[], bool], Callable[[], None]]]) -> None:
    """Do what is not done and not claimed: each job is its record, whether it can be done now, and what makes it."""
    os.chdir(ROOT)
    for file, is_ready, make in jobs:
        while not file.exists() and not is_ready():
            time.sleep(5)  # another process is at the runs that this one's choice waits for
        if file.exists() or not claimed(file):
            continue
        began = time.perf_counter()
        make()
        file.with_suffix(".claim").unlink(missing_ok=True)
        print(f"{file.relative_to(ROOT)}: {time.perf_counter() - began:.0f} s", flush=True)
