"""Small comparisons through the command line, to be interrupted and compared."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attentune.io.locks import FileLock
from helpers.interrupted import TIMES
from helpers.samples import settings

# What may differ between two runs of the same thing, beside the times of single runs: where they were and their data.
_ALSO = {"wall_seconds", "host", "train_file", "validation_file"}
WAIT_S = 240


def command(
    folder: Path, encoder: Path, *flags: str, output: str = "comparison", verb: str = "compare", **changes: Any
) -> list[str]:
    """`attentune compare` on small files in `folder`, into `folder/output`; see `samples.settings`."""
    values = settings(folder, encoder, **changes) | {"training.output_dir": str(folder / output)}
    return [verb, *flags, *(part for name, value in values.items() for part in ("--set", f"{name}={value}"))]


def start(words: list[str], **options: Any) -> subprocess.Popen[str]:
    """The command line in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "attentune.cli.main", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        **options,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Exit status, standard output, standard error; it is killed if it takes too long."""
    try:
        out, err = process.communicate(timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"not done after {WAIT_S} s:\n{out}\n{err}") from None
    return process.returncode, out, err


def wait_for(found: Callable[[], Any], what: str, process: subprocess.Popen[str] | None = None) -> Any:
    """What `found` gives once it gives something."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if value := found():
            return value
        if process is not None and process.poll() is not None:
            raise AssertionError(f"ended before {what}:\n{process.communicate()}")
        time.sleep(0.002)
    raise AssertionError(f"no {what} in {WAIT_S} s")


def checkpointed(folder: Path) -> Callable[[], list[Path]]:
    """Finds the folders of unfinished runs that have a checkpoint."""
    return lambda: [
        path.parent for path in folder.glob("runs/*/*/*/seed-*/checkpoint-*") if not (path.parent / "run.json").exists()
    ]


def worker_at(folder: Path, run: Path) -> int:
    """The process that is at the run of this folder."""
    name = run.relative_to(folder / "runs")
    pid = FileLock(folder / ".locks" / "runs" / f"{name}.lock").holder()
    assert pid is not None
    return pid


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def workers_of(folder: Path) -> list[int]:
    """Living processes that hold, or held last, a lock of this comparison's runs."""
    pids = {FileLock(path).holder() for path in (folder / ".locks" / "runs").rglob("*.lock")}
    return [pid for pid in pids if pid is not None and is_alive(pid) and b"worker" in cmdline(pid)]


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def outcomes(folder: Path) -> dict[str, Any]:
    """All records and predictions by name, without times and places."""
    files = sorted(path for path in (folder / "records").rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): _timeless(json.loads(path.read_text()))
        if path.suffix == ".json"
        else path.read_text()
        for path in files
    }


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(part) for key, part in value.items() if key not in TIMES | _ALSO}
    return [_timeless(part) for part in value] if isinstance(value, list) else value


def times_done(folder: Path) -> dict[str, int]:
    """How often each run's training came to its end, by run folder."""
    lines = [line for log in (folder / "logs").glob("*.log") for line in log.read_text().splitlines()]
    ends = [line.rsplit("saved in ", 1)[1] for line in lines if line.startswith("done: ")]
    return {end: ends.count(end) for end in ends}
