"""A SLURM with one node on this machine, from the packages that are installed."""

import contextlib
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue")


@contextlib.contextmanager
def running_slurm(folder: Path) -> Iterator[None]:
    """Run a controller and a node, of which SLURM_CONF tells SLURM's programs."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"SLURM needs root and {', '.join(missing) or 'its programs'}")
    config, host = folder / "slurm.conf", platform.node().split(".")[0]
    config.write_text(
        Path(__file__).with_suffix(".conf").read_text().format(folder=folder, host=host, cores=os.cpu_count())
    )
    for name in ("controller", "node"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    munge = [f"--key-file={key}", f"--socket={folder}/munge.socket", f"--pid-file={folder}/munge.pid"]
    munge += [f"--log-file={folder}/munge.log", f"--seed-file={folder}/munge.seed", "--force", "--foreground"]
    with pytest.MonkeyPatch.context() as patched, contextlib.ExitStack() as running:
        patched.setenv("SLURM_CONF", str(config))
        for words in (["munged", *munge], ["slurmctld", "-D"], ["slurmd", "-D"]):
            running.enter_context(_process(words, folder / f"{words[0]}.out"))
            time.sleep(1)
        _wait_for_node(folder)
        yield


@contextlib.contextmanager
def _process(words: list[str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(words, stdout=output, stderr=output)
        try:
            yield
        finally:
            process.terminate()
            process.wait(30)


def _wait_for_node(folder: Path) -> None:
    until = time.monotonic() + 60
    while time.monotonic() < until:
        found = subprocess.run(["sinfo", "--noheader", "--format=%t"], capture_output=True, text=True)
        if found.stdout.strip() == "idle":
            return
        time.sleep(0.5)
    logs = "\n".join(
        f"{path.name}: {path.read_text(errors='replace')[-800:]}" for path in folder.glob("*.[ol][uo][tg]")
    )
    raise AssertionError(f"the node is not idle: {found.stdout} {found.stderr}\n{logs}")
