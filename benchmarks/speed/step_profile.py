"""Profile one epoch of training, or prediction, by operation with PyTorch's profiler.

    python -m benchmarks.speed.step_profile [--task cola] [--rows 1000] [--preset bert] [--predict ours|pipeline]
                                      [--threads 1] [--top 12]

Prints a Markdown table of shares of the time that operations take by themselves, and writes all of them into
results/bench/profile_TASK_train.json (or _predict_ours, _predict_pipeline). Training without scoring between;
prediction in bf16, from texts to labels, by `--precision bf16-true` or by transformers' pipeline at its best. On one
thread, so that shares add up. Needs the data: $ATTENTUNE_DATA, else ../shared/data.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from attentune.inference.predictor import Predictor
from attentune.training.progress import ProgressDisplay
from attentune.training.train import train
from benchmarks.common import RECORDS, command_of, table, write_record
from benchmarks.speed.peer_runs import MAX_LENGTHS, settings
from benchmarks.speed.predict_runs import CONTENDERS

PREDICTORS = {"ours": "attentune bf16-true", "pipeline": "pipeline at its best"}


def training(given: argparse.Namespace, folder: str) -> Callable[[], dict[str, Any]]:
    once = {"preset": given.preset, "training.num_train_epochs": 1, "training.eval_strategy": "no"}
    config = settings(given.task, given.rows, folder, **once)

    def epoch() -> dict[str, Any]:
        result = train(config, display=ProgressDisplay(quiet=True))
        return {"steps": result.train["steps"], "seconds": result.train["seconds"]}

    return epoch


def predicting(given: argparse.Namespace, folder: str) -> Callable[[], dict[str, Any]]:
    training(given, folder)()
    saved = Predictor.load(folder)
    rows = saved.data(settings(given.task, given.rows, "unused").data, ("train",)).splits["train"]
    labels = CONTENDERS[PREDICTORS[given.predict]](saved, MAX_LENGTHS.get(given.task, 128))
    labels(rows)

    def predict() -> dict[str, Any]:
        began = time.perf_counter()
        labels(rows)
        return {"seconds": round(time.perf_counter() - began, 3)}

    return predict


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="cola")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--preset", default="bert")
    parser.add_argument("--predict", choices=sorted(PREDICTORS), help="profile prediction by one of these instead")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--top", type=int, default=12, help="how many operations the table names")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    with tempfile.TemporaryDirectory() as folder:
        work = (predicting if given.predict else training)(given, folder)
        with profile(activities=[ProfilerActivity.CPU]) as seen:
            facts = work()
    shares = {event.key: event.self_cpu_time_total for event in seen.key_averages() if event.self_cpu_time_total > 0}
    total = sum(shares.values())
    shares = dict(sorted(((name, spent / total) for name, spent in shares.items()), key=lambda one: -one[1]))
    named = list(shares.items())[: given.top]
    lines = [[f"`{name}`", f"{share:.1%}"] for name, share in named]
    lines.append([f"{len(shares) - len(named)} others", f"{1 - sum(dict(named).values()):.1%}"])
    print("\n".join(table(["operation", "share"], lines)))
    record = {
        "command": command_of("benchmarks.speed.step_profile", sys.argv[1:]),
        **facts,
        "seconds_in_operations": round(total / 1e6, 3),
        "shares": {name: round(share, 5) for name, share in shares.items()},
    }
    what = f"predict_{given.predict}" if given.predict else "train"
    write_record(RECORDS / f"profile_{given.task}_{what}.json", record)


if __name__ == "__main__":
    main()
