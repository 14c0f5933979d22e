"""Runs small comparisons through the command line, to interrupt them and compare their results."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from helpers.interrupted import TIMES, without_times
from helpers.samples import settings

# Fields that may differ between equal comparisons, besides the times of single runs: the host and paths of data.
_ALSO = {"wall_seconds", "host", "train_file", "validation_file"}
WAIT_S = 240


def command(
    folder: Path, encoder: Path, *flags: str, output: str = "comparison", verb: str = "compare", **changes: Any
) -> list[str]:
    """Return the command `attentune compare` on small files in `folder`, which writes to `folder/output`.

    The changes are those of `samples.settings`.
    """
    values = settings(folder, encoder, **changes) | {"training.output_dir": str(folder / output)}
    return [verb, *flags, *(part for name, value in values.items() for part in ("--set", f"{name}={value}"))]


# A shell's background jobs ignore Ctrl-C, and so would what they start.
_COMMAND = (
    "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from attentune.cli.main import run; run()"
)


def start(words: list[str], **options: Any) -> subprocess.Popen[str]:
    """Start a command line in its own process, which Ctrl-C can stop even if the tests run in the background."""
    return subprocess.Popen(
        [sys.executable, "-c", _COMMAND, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        **options,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a process; return exit status, standard output and standard error. Kill it on timeout."""
    try:
        out, err = process.communicate(timeout=WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        out, err = process.communicate()
        raise AssertionError(f"not done after {WAIT_S} s:\n{out}\n{err}") from None
    return process.returncode, out, err


def wait_for(found: Callable[[], Any], what: str, process: subprocess.Popen[str] | None = None) -> Any:
    """Poll `found` until it returns a true value, and return that value."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        if value := found():
            return value
        if process is not None and process.poll() is not None:
            raise AssertionError(f"ended before {what}:\n{process.communicate()}")
        time.sleep(0.002)
    raise AssertionError(f"no {what} in {WAIT_S} s")


def checkpointed(folder: Path) -> Callable[[], list[Path]]:
    """Return a function that lists the folders of unfinished runs with a checkpoint."""
    return lambda: [
        path.parent for path in folder.glob("runs/*/*/*/seed-*/checkpoint-*") if not (path.parent / "run.json").exists()
    ]


def worker_at(folder: Path, run: Path) -> int | None:
    """Return the id of the process that executes the run in this folder; None between two."""
    name = run.relative_to(folder / "runs")
    return next(iter(holders([folder / ".locks" / "runs" / f"{name}.lock"])), None)


def holders(locks: Iterable[Path]) -> set[int]:
    """Return the ids of the processes that hold these locks."""
    files = {path.stat().st_ino for path in locks}
    held = (line.split() for line in Path("/proc/locks").read_text().splitlines())
    return {int(words[4]) for words in held if words[1] == "FLOCK" and int(words[5].rsplit(":", 1)[1]) in files}


def is_alive(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def workers_of(folder: Path) -> list[int]:
    """Return the ids of running processes that hold a lock of this comparison's runs."""
    pids = holders((folder / ".locks" / "runs").rglob("*.lock"))
    return [pid for pid in pids if is_alive(pid) and b"forkserver" in cmdline(pid)]


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def outcomes(folder: Path) -> dict[str, Any]:
    """Return all records and predictions by name, without times, hosts and paths."""
    files = sorted(path for path in (folder / "records").rglob("*") if path.is_file())
    return {
        str(path.relative_to(folder)): without_times(json.loads(path.read_text()), TIMES | _ALSO)
        if path.suffix == ".json"
        else path.read_text()
        for path in files
    }


def times_done(folder: Path) -> dict[str, int]:
    """Return how often the training of each run finished, by run folder."""
    lines = [line for log in (folder / "logs").glob("*.log") for line in log.read_text().splitlines()]
    ends = [line.rsplit("saved in ", 1)[1] for line in lines if line.startswith("done: ")]
    return {end: ends.count(end) for end in ends}
