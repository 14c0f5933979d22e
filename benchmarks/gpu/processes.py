"""A run in a process of its own that is killed and resumed.

`python -m benchmarks.gpu.processes SETTINGS.json STEP` is that process: it trains with the overrides for `load_config`
in SETTINGS.json and kills itself after this step, as a power cut would.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from attentune.config import load_config
from attentune.training.callbacks import ProgressDisplay, TrainingCallback, TrainingState
from attentune.training.run import train
from benchmarks.common import ROOT, table
from benchmarks.gpu.workload import Part, Workload, no_tf32

WEIGHT_TOLERANCE = 1e-4
LOG_TOLERANCE = 2e-4
_WAIT_S = 600
# AdamW's epsilon is large: else it makes whole steps of what rounding leaves where a gradient is zero.
_PRECISE = {"training__precision": "fp32", "training__adam_epsilon": 1e-4, "training__num_train_epochs": 3}
# What may differ between equal runs.
_TIMES = {"seconds", "tokens_per_second", "evaluation_seconds", "label_seconds", "peak_memory_bytes"}
_KILLED_AT = 5


def run_settings(work: Workload, folder: Path, **changes: Any) -> dict[str, Any]:
    """Return overrides for a run of 96 rows (24 without a GPU) that is scored after each epoch."""
    values = {
        "data__max_train_samples": 96 if work.is_measurement else 24,
        "data__max_eval_samples": 64 if work.is_measurement else 8,
        "training__per_device_train_batch_size": 8,
        "training__eval_strategy": "epoch",
        "training__logging_steps": 1,
        **_PRECISE,
    }
    return work.settings("sentences", work.small_encoder, folder, **{**values, **changes})


class DieAfter(TrainingCallback):
    """Kills this process after a step, before that step is saved."""

    def __init__(self, step: int) -> None:
        self._step = step

    def on_step_end(self, state: TrainingState, logs: Mapping[str, float]) -> None:
        if state.step == self._step:
            os.kill(os.getpid(), signal.SIGKILL)


def run_here(settings: dict[str, Any], *callbacks: TrainingCallback) -> Path:
    """Train in this process; return the run folder."""
    no_tf32()
    display = ProgressDisplay(quiet=True)
    train(load_config(overrides=settings), display=display, callbacks=callbacks, with_baselines=False)
    return Path(settings["training.output_dir"])


def run_killed(settings: dict[str, Any]) -> tuple[int, str]:
    """Train in a process that is killed; return its status and what it said."""
    file = Path(settings["training.output_dir"]).with_suffix(".json")
    file.write_text(json.dumps(settings), encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu.processes", str(file), str(_KILLED_AT)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = process.communicate(timeout=_WAIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        said = f"not done after {_WAIT_S} s: {process.communicate()[0]}"
    return process.returncode, said


def largest_difference(one: Path, two: Path) -> float:
    """Return the largest difference of two runs' weights; infinite if they have not the same weights."""
    first, second = (load_file(run / "model.safetensors") for run in (one, two))
    if first.keys() != second.keys():
        return float("inf")
    return max(float(np.abs(first[name] - second[name]).max(initial=0.0)) for name in first)


def log_of(run: Path) -> list[dict[str, float]]:
    """Return the numbers in each line of a run's log, without times."""
    return [_flat(json.loads(line)) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]


def _flat(line: dict[str, Any]) -> dict[str, float]:
    found: dict[str, float] = {}
    for key, value in line.items():
        if isinstance(value, dict):
            found |= {f"{key}.{name}": number for name, number in _flat(value).items()}
        elif key not in _TIMES and isinstance(value, int | float):
            found[key] = float(value)
    return found


def log_difference(one: Path, two: Path) -> float:
    """Return the largest difference of two logs' numbers; infinite if they have other lines."""
    first, second = log_of(one), log_of(two)
    if [line.keys() for line in first] != [line.keys() for line in second]:
        return float("inf")
    pairs = zip(first, second, strict=True)
    return max((abs(line[key] - other[key]) for line, other in pairs for key in line), default=float("inf"))


def compared(name: str, one: Path, two: Path, *, weights: float, log: float) -> tuple[dict[str, Any], list[str]]:
    """Compare two runs: their facts, and what differs by more than this."""
    scores = [json.loads((run / "run.json").read_text(encoding="utf-8"))["scores"]["validation"] for run in (one, two)]
    facts: dict[str, Any] = {
        "weights": largest_difference(one, two),
        "log": log_difference(one, two),
        "scores": scores,
    }
    problems = []
    if not facts["weights"] <= weights:
        problems.append(f"{name}: weights differ by {facts['weights']:.2g}, expected at most {weights:.2g}")
    if not facts["log"] <= log:
        problems.append(f"{name}: the logs differ by {facts['log']:.2g}, expected at most {log:.2g}")
    if scores[0] != scores[1]:
        problems.append(f"{name}: scores are {scores[1]}, expected {scores[0]}")
    return facts, problems


def lines_of(found: dict[str, dict[str, Any]]) -> list[str]:
    rows = [[name, f"{one['weights']:.1e}", f"{one['log']:.1e}", str(one["scores"][1])] for name, one in found.items()]
    return table(("", "weights differ by", "log differs by", "scores"), rows)


def resume(work: Workload) -> list[Part]:
    """Kill a run after its fifth step and resume it; train the same run twice without a kill.

    If the two whole runs are equal bit by bit, so must be the resumed one. Some operations on GPUs add in another order
    each time; then the resumed run may differ by `WEIGHT_TOLERANCE`, and the record says by how much whole runs do.
    """

    def settings(name: str, **changes: Any) -> dict[str, Any]:
        return run_settings(work, work.folder / name, preset="ssa-hybrid", training__save_steps=2, **changes)

    whole, again = run_here(settings("whole")), run_here(settings("again"))
    noise, noisy = compared("the same run twice", whole, again, weights=WEIGHT_TOLERANCE, log=LOG_TOLERANCE)
    status, said = run_killed(settings("killed"))
    if status != -signal.SIGKILL:
        return [Part("resume", {}, said.splitlines()[-20:], [f"expected the run to be killed; its status is {status}"])]
    if (work.folder / "killed/run.json").exists() or not list((work.folder / "killed").glob("checkpoint-*")):
        return [Part("resume", {}, [], ["the killed run left a record, or no checkpoint"])]
    resumed = run_here(settings("killed", training__overwrite_output_dir=False, training__resume=True))
    is_exact = noise["weights"] == 0 and noise["log"] == 0
    weights, log = (0.0, 0.0) if is_exact else (WEIGHT_TOLERANCE, LOG_TOLERANCE)
    facts, problems = compared("resumed", whole, resumed, weights=weights, log=log)
    made = {"the same run twice": noise, "killed and resumed": facts}
    return [Part("resume", {"is_exact": is_exact, **made}, lines_of(made), noisy + problems)]


if __name__ == "__main__":
    run_here(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")), DieAfter(int(sys.argv[2])))
