"""Trains one run in several processes of this machine, which torchrun starts; each has a share of every batch (DDP).

    python -m torch.distributed.run --nproc_per_node N -m attentune.execution.launch FILE

FILE has the pickled trainer and its arguments; the first process leaves how it ended in FILE.outcome.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attentune.errors import CheckpointError
from attentune.execution.executor import thread_settings
from attentune.results import RunResult
from attentune.training.run_folder import Interrupted, StopRequest, stop_on_signal

_POLL_S = 0.2
# Processes have this long to save after a stop request, or after the one that started them is gone.
_SAVE_S = 60.0
# The lines of a failed process that are shown.
_SHOWN_LINES = 20
# The process groups that this process has started.
_GROUPS: set[int] = set()


def train_in_processes(
    trainer: Callable[..., RunResult],
    arguments: tuple[Any, ...],
    *,
    folder: Path,
    processes: int,
    threads: int,
    stop: StopRequest,
) -> RunResult:
    """Call a trainer in several processes."""
    _wait_for_folder(folder)
    with tempfile.TemporaryDirectory() as place:
        file, log = Path(place) / "task", Path(place) / "log"
        file.write_bytes(pickle.dumps((trainer, arguments)))
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
        with log.open("wb") as errors:
            process = subprocess.Popen(
                [*launcher, "-m", __name__, str(file)],
                # Closed when this process ends, however that happens.
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                env={**os.environ, **thread_settings(threads)},
                start_new_session=True,
            )
            _GROUPS.add(process.pid)
            try:
                status = _wait(process, stop)
            finally:
                kill_launched()
                process.wait()
        said = log.read_text(encoding="utf-8", errors="replace")
        print(said, file=sys.stderr, end="", flush=True)
        outcome = file.with_suffix(".outcome")
        if not outcome.is_file():
            shown = "\n".join(said.splitlines()[-_SHOWN_LINES:])
            raise RuntimeError(f"the {processes} processes of this run ended with status {status}:\n{shown}")
        result, step, error = pickle.loads(outcome.read_bytes())
    if step is not None:
        raise Interrupted(str(folder), step)
    if error is not None:
        raise error
    return result


def kill_launched() -> None:
    """Kill the processes that this one has started to train together."""
    while _GROUPS:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(_GROUPS.pop(), signal.SIGKILL)


def _wait(process: subprocess.Popen[bytes], stop: StopRequest) -> int:
    """Wait for the launcher, and pass on a stop request to the processes."""
    until: float | None = None
    while process.poll() is None:
        if stop.requested and until is None:
            # The launcher would end processes that do not end within half a minute, and other signals at once.
            process.stdin.close()  # type: ignore[union-attr]
            until = time.monotonic() + _SAVE_S
        if until is not None and time.monotonic() > until:
            break
        time.sleep(_POLL_S)
    return process.poll() or 0


def _wait_for_folder(folder: Path) -> None:
    """Wait until processes of a killed worker have saved and left the run folder."""
    from attentune.training.run_folder import locked_folder

    until = time.monotonic() + 2 * _SAVE_S
    while folder.is_dir():
        try:
            with locked_folder(folder):
                return
        except CheckpointError:
            if time.monotonic() > until:
                raise
        time.sleep(_POLL_S)


def _end_with_launcher() -> None:
    """Save and end when standard input is closed: the worker asks for it, or is gone."""
    sys.stdin.buffer.read()
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_SAVE_S)
    os._exit(1)


def main(path: str) -> int:
    """Be one of the processes; return the exit status."""
    from attentune.training.callbacks import is_main_rank

    trainer, arguments = pickle.loads(Path(path).read_bytes())
    result: RunResult | None = None
    step: int | None = None
    error: Exception | None = None
    with stop_on_signal():
        threading.Thread(target=_end_with_launcher, daemon=True).start()
        try:
            result = trainer(*arguments)
        except Interrupted as stop:
            step = stop.step
        except Exception as problem:
            traceback.print_exc()
            error = problem
    if is_main_rank():
        outcome = Path(path).with_suffix(".outcome")
        part = outcome.with_suffix(".part")
        part.write_bytes(_pickled(result, step, error))
        part.replace(outcome)
    # After a failed process the launcher ends the others at once, which may still save.
    return 0 if error is None else 1


def _pickled(result: RunResult | None, step: int | None, error: Exception | None) -> bytes:
    """Pickle how a process ended; an error that cannot be pickled becomes a RuntimeError with its text."""
    made = pickle.dumps((result, step, error))
    try:
        pickle.loads(made)
    except Exception:
        made = pickle.dumps((result, step, RuntimeError(f"{type(error).__name__}: {error}")))
    return made


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
