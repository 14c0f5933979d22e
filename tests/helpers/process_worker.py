"""The program of each process in `tests/training/test_processes.py`: `process_worker.py JOBS.json FOLDER`.

JOBS.json maps job names to overrides for `load_config`; each job is trained. The token labels in this process, and the
logits that it gathered from an odd number of batches, are saved to FOLDER/JOB-PROCESS.npz.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from accelerate import Accelerator

from attentune.config import load_config
from attentune.inference.scoring import score_rows
from attentune.training.loop import TrainingLoop
from attentune.training.progress import ProgressDisplay
from attentune.training.train import train


def recorded(epoch_of: Callable[..., Iterator[None]], seen: dict[str, np.ndarray]) -> Callable[..., Iterator[None]]:
    """Wrap `TrainingLoop.epoch_steps` to store each epoch's labels and, once, the logits of all rows in `seen`."""

    def epoch_steps(self, state, *arguments):
        epoch = state.epoch
        if "logits" not in seen:
            model = self.accelerator.unwrap_model(self.model)
            # 41 or 48 rows are five batches: three for the first process and two for the second.
            seen["logits"] = score_rows(
                model,
                self.rows.features,
                pad_token_id=self.rows.pad_token_id,
                accelerator=self.accelerator,
                batch_size=10,
            ).logits_NC
        yield from epoch_of(self, state, *arguments)
        seen[f"rows-{epoch}"] = self.planner.plan.rows
        if self.planner.plan.token_labels is not None:
            seen[f"values-{epoch}"] = self.planner.plan.token_labels.values

    return epoch_steps


def main(jobs: str, folder: str) -> None:
    original = TrainingLoop.epoch_steps
    # `end_training` destroys the process group, which the next run needs.
    Accelerator.end_training = lambda self: None
    for name, overrides in json.loads(Path(jobs).read_text()).items():
        seen: dict[str, np.ndarray] = {}
        TrainingLoop.epoch_steps = recorded(original, seen)
        result = train(load_config(overrides=overrides), display=ProgressDisplay(quiet=True))
        seen["processes"] = np.array(result.train["processes"])
        np.savez(Path(folder) / f"{name}-{Accelerator().process_index}.npz", **seen)


if __name__ == "__main__":
    main(*sys.argv[1:])
