"""Where a training step's time goes: the operations of one epoch of our own loop, by PyTorch's profiler.

    python benchmarks/step_profile.py [--task cola] [--rows 1000] [--preset bert] [--threads 1] [--top 12]

Prints a Markdown table of shares of the time that operations take by themselves, and writes all of them into
results/bench/step_profile.json. One epoch, without scoring between; on one thread, so that shares add up. Needs the
data: $ATTENTUNE_DATA, else ../shared/data.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

import torch
from torch.profiler import ProfilerActivity, profile

from attentune.results import versions
from attentune.training.display import Display
from attentune.training.run import train
from peer_runs import settings
from tables import table

TARGET = Path(__file__).resolve().parents[1] / "results" / "bench" / "step_profile.json"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="cola")
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--preset", default="bert")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--top", type=int, default=12, help="how many operations the table names")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    once = {"preset": given.preset, "training.num_train_epochs": 1, "training.eval_strategy": "no"}
    with tempfile.TemporaryDirectory() as folder, profile(activities=[ProfilerActivity.CPU]) as seen:
        result = train(settings(given.task, given.rows, folder, **once), display=Display(quiet=True))
    shares = {event.key: event.self_cpu_time_total for event in seen.key_averages() if event.self_cpu_time_total > 0}
    total = sum(shares.values())
    shares = dict(sorted(((name, time / total) for name, time in shares.items()), key=lambda one: -one[1]))
    named = list(shares.items())[: given.top]
    rest = len(shares) - len(named)
    lines = [[f"`{name}`", f"{share:.1%}"] for name, share in named]
    print(
        "\n".join(table(["operation", "share"], [*lines, [f"{rest} others", f"{1 - sum(dict(named).values()):.1%}"]]))
    )
    record = {
        "command": "python benchmarks/step_profile.py " + " ".join(sys.argv[1:]),
        "steps": result.train["steps"],
        "seconds": result.train["seconds"],
        "shares": {name: round(share, 5) for name, share in shares.items()},
        "versions": versions(),
    }
    TARGET.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
