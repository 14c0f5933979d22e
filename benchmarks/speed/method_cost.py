"""What each method costs: time of a whole epoch, and peak memory, against the first of its study.

    python -m benchmarks.speed.method_cost labels|sesame|cross-attention|self-attention [--rows 1500] [--repeats 5]

In each repeat all methods are trained in one process, one step of each at a time on the same batches, so that other
load slows all of them alike; an epoch's time is that of its steps and of making its labels. Peak memory is measured in
separate processes. `released`, the lab's, is measured at its slowest, with every example labelled.
With --layers the encoder has this many layers and random weights, and is otherwise like the embedded one.
Data: $ATTENTUNE_DATA, else ../shared/data. The record goes to results/bench/.
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
from typing import Any

from attentune.config import load_config
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import epochs, train
from attentune.training.trainer import Trainer
from benchmarks.common import (
    RECORDS,
    ROOT,
    built_trainer,
    command_of,
    named_data_dir,
    one_run,
    random_encoder,
    write_record,
)

EPOCHS = 3
Settings = dict[str, Any]
# By study and method: its settings, and the most that its epoch may cost as a multiple of the first one's.
STUDIES: dict[str, dict[str, tuple[Settings, float | None]]] = {
    "labels": {
        "bert": ({"preset": "bert"}, None),
        "flip": ({"preset": "ssa-co"}, 1.25),
        "released": ({"preset": "ssa-co-released", "labels.options": {"aug_ratio_each": 1}}, 1.35),
    },
    "sesame": {
        "bert": ({"preset": "bert"}, None),
        "blur-bert": ({"preset": "blur-bert"}, 1.05),
        "se-bert": ({"preset": "se-bert"}, 1.05),
        "sesame": ({"preset": "sesame"}, 1.08),
    },
}
STUDIES |= {
    "cross-attention": {
        "bi-encoder-mean": ({"preset": "bi-encoder-mean"}, None),
        "one bare block": ({"preset": "task-attention"}, 1.10),
    },
    "self-attention": {
        "bert-mean": ({"preset": "bert-mean"}, None),
        "two blocks": ({"preset": "task-attention"}, None),
    },
}
TASK_OF = {"labels": "cola", "sesame": "cola", "cross-attention": "quora", "self-attention": "sst5"}
MEMORY_LIMIT = 1.1


def settings_of(study: str, method: str, rows: int, layers: int | None, folder: str) -> Settings:
    """The whole settings of a run."""
    data = named_data_dir()
    task = TASK_OF[study]
    return {
        "model.name_or_path": "embedded" if layers is None else str(random_encoder(layers)),
        "data.task": task,
        "data.data_dir": str(data / "glue_data" if task == "cola" else data),
        "data.max_train_samples": rows,
        "data.max_eval_samples": 50,
        "training.num_train_epochs": EPOCHS,
        "training.learning_rate": 3e-4,
        "training.eval_strategy": "no",
        "training.save_steps": 1_000_000,
        "training.output_dir": folder,
        "training.overwrite_output_dir": True,
        **STUDIES[study][method][0],
    }


def build(settings: Settings) -> Trainer:
    trainer: Trainer = built_trainer(load_config(overrides=settings))
    return trainer


def epoch_seconds(study: str, rows: int, layers: int | None) -> dict[str, dict[str, float]]:
    """One repeat: seconds of an epoch, and of these the seconds for labels, by method."""
    with tempfile.TemporaryDirectory() as folder:
        parts = {method: build(settings_of(study, method, rows, layers, folder)) for method in STUDIES[study]}
        loops = [epochs(task) for task in parts.values()]
        while loops:
            loops = [loop for loop in loops if next(loop, loops) is not loops]
    seconds = {}
    for method, task in parts.items():
        state = task.state
        labels = state.label_seconds / (EPOCHS - 1)  # the first epoch has none to make
        seconds[method] = {"epoch": state.seconds / EPOCHS + labels, "labels": labels}
    return seconds


def peak_memory(study: str, method: str, rows: int, layers: int | None) -> int:
    """Bytes, of one run in a process of its own."""
    more = [] if layers is None else ["--layers", layers]
    found = one_run("benchmarks.speed.method_cost", study, "--rows", rows, "--memory-of", method, *more)
    return int(found["peak_memory_bytes"])


def print_memory(study: str, method: str, rows: int, layers: int | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        settings = settings_of(study, method, rows, layers, folder)
        result = train(load_config(overrides=settings), display=ProgressDisplay(quiet=True))
    print(json.dumps({"peak_memory_bytes": result.train["peak_memory_bytes"]}))


def summary(study: str, repeats: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Ratios of medians to the first method's."""
    methods = list(STUDIES[study])

    def median(method: str, what: str) -> float:
        return statistics.median(repeat[method][what] for repeat in repeats)

    return {
        method: {
            "time": round(median(method, "epoch") / median(methods[0], "epoch"), 3),
            "time_limit": STUDIES[study][method][1],
            "labels_share": round(median(method, "labels") / median(methods[0], "epoch"), 3),
            "memory": round(median(method, "memory") / median(methods[0], "memory"), 3),
            "memory_limit": MEMORY_LIMIT,
        }
        for method in methods[1:]
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", choices=STUDIES)
    parser.add_argument("--rows", type=int, default=1500)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--layers", type=int)
    parser.add_argument("--memory-of", help=argparse.SUPPRESS)
    given = parser.parse_args()
    os.chdir(ROOT)
    if given.memory_of:
        print_memory(given.study, given.memory_of, given.rows, given.layers)
        return
    repeats: list[dict[str, Any]] = []
    for _ in range(given.repeats):
        repeat: dict[str, Any] = epoch_seconds(given.study, given.rows, given.layers)
        for method in repeat:
            repeat[method]["memory"] = peak_memory(given.study, method, given.rows, given.layers)
        repeats.append(repeat)
        print({name: round(values["epoch"], 2) for name, values in repeat.items()}, file=sys.stderr, flush=True)
    found = summary(given.study, repeats)
    words = f"{given.study} --rows {given.rows} --repeats {given.repeats}"
    words += "" if given.layers is None else f" --layers {given.layers}"
    record = {
        "command": command_of("benchmarks.speed.method_cost", [words]),
        "ratios": found,
        "repeats": repeats,
        "task": TASK_OF[given.study],
        "threads": os.environ.get("OMP_NUM_THREADS", "all cores"),
    }
    suffix = "" if given.layers is None else f"_{given.layers}_layers"
    write_record(RECORDS / f"cost_{given.study}{suffix}.json", record)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
