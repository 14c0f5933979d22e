"""One run of preset `bert` on each task at hand: the figures in results/first-runs/.

    python benchmarks/first_runs.py [TASK ...]

Runs that have their file are left out; broken-off ones go on where they were. Data: $ATTENTUNE_DATA, else
../shared/data.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from places import RESULTS, ROOT, named_data_dir

FOLDER = RESULTS / "first-runs"
# Folder and epochs. Longer data sets get fewer epochs, to end within minutes on two cores.
TASKS = {
    "wnli": ("glue_data", 3),
    "cola": ("glue_data", 4),
    "rte": ("glue_data", 3),
    "sick": ("sick", 3),
    "mrpc": ("glue_data", 3),
    "stsb": ("glue_data", 3),
    "sts": ("cs224n", 3),
    "sst5": ("cs224n", 3),
    "qnli": ("glue_data", 2),
    "quora": ("cs224n", 1),
    "sst2": ("glue_data", 1),
}


def run_task(task: str) -> None:
    """Train on one task and write its record."""
    folder, epochs = TASKS[task]
    data = named_data_dir() / folder
    run = Path("runs/first") / task
    flags = f"--task {task} --data-dir {data} --model_name_or_path embedded --preset bert --num_train_epochs {epochs}"
    command = f"attentune train {flags} --learning_rate 5e-5 --save_total_limit 1 --output_dir {run}"
    resume = ["--resume"] if (ROOT / run / "config.yaml").exists() else []
    words = command.split()[1:] + resume
    subprocess.run([sys.executable, "-m", "attentune.cli.main", *words], check=True, cwd=ROOT)
    record = json.loads((ROOT / run / "run.json").read_text())
    threads = os.environ.get("OMP_NUM_THREADS", "all cores")
    scored = [json.loads(line) for line in (ROOT / run / "log.jsonl").read_text().splitlines()]
    by_epoch = [{"step": line["step"], **line["validation"]} for line in scored if "validation" in line]
    content = {"command": command, "threads": threads, **record, "validation_by_epoch": by_epoch}
    (FOLDER / f"{task}.json").write_text(json.dumps(content, indent=1) + "\n")


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for task in sys.argv[1:] or TASKS:
        if not (FOLDER / f"{task}.json").exists():
            run_task(task)


if __name__ == "__main__":
    main()
