"""The program of each process in `tests/training/test_processes.py`: `process_worker.py JOBS.json FOLDER`.

JOBS.json maps job names to overrides for `load_config`; each job is trained. The token labels in this process, and the
logits that it gathered from an odd number of batches, are saved to FOLDER/JOB-PROCESS.npz.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from accelerate import Accelerator

from attentune.config import load_config
from attentune.inference.scoring import score_rows
from attentune.token_labels.plan import EpochPlan
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from attentune.training.trainer import TaskTrainer


def recorded(plan_epoch: Callable[..., EpochPlan], seen: dict[str, np.ndarray]) -> Callable[..., EpochPlan]:
    """Wrap `TaskTrainer.plan_epoch` to store each epoch's labels and, once, the logits of all rows in `seen`."""

    def plan(self):
        epoch, inputs = self.state.epoch, self.inputs
        if "logits" not in seen:
            model = self.accelerator.unwrap_model(self.wrapped)
            # 41 or 48 rows are five batches: three for the first process and two for the second.
            seen["logits"] = score_rows(
                model,
                inputs.features["train"],
                pad_token_id=inputs.tokenizer.pad_token_id,
                accelerator=self.accelerator,
                batch_size=10,
            ).logits_NC
        made = plan_epoch(self)
        seen[f"rows-{epoch}"] = made.rows
        if made.token_labels is not None:
            seen[f"values-{epoch}"] = made.token_labels.values
        return made

    return plan


def main(jobs: str, folder: str) -> None:
    original = TaskTrainer.plan_epoch
    # `end_training` destroys the process group, which the next run needs.
    Accelerator.end_training = lambda self: None
    for name, overrides in json.loads(Path(jobs).read_text()).items():
        seen: dict[str, np.ndarray] = {}
        TaskTrainer.plan_epoch = recorded(original, seen)
        result = train(load_config(overrides=overrides), display=ProgressDisplay(quiet=True))
        seen["processes"] = np.array(result.train["processes"])
        np.savez(Path(folder) / f"{name}-{Accelerator().process_index}.npz", **seen)


if __name__ == "__main__":
    main(*sys.argv[1:])
