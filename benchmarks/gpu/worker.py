"""One process of a run: `python -m benchmarks.gpu.worker SETTINGS.json [--die_after STEP]`.

SETTINGS.json has overrides for `load_config`. With --die_after the process kills itself after this step, as a power cut
would.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from attentune.config import load_config
from attentune.training.callbacks import TrainingCallback
from attentune.training.progress import ProgressDisplay
from attentune.training.state import TrainingState
from attentune.training.train import train


class DieAfter(TrainingCallback):
    """Kills this process after a step, before that step is saved."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, state: TrainingState, logs: Mapping[str, float]) -> None:
        if state.step == self._step:
            os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", type=Path)
    parser.add_argument("--die_after", type=int)
    given = parser.parse_args()
    callbacks = [] if given.die_after is None else [DieAfter(given.die_after)]
    config = load_config(overrides=json.loads(given.settings.read_text(encoding="utf-8")))
    train(config, display=ProgressDisplay(quiet=True), callbacks=callbacks, with_baselines=False)


if __name__ == "__main__":
    main()
