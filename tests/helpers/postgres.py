"""Runs a temporary PostgreSQL server for a test, from an installed package."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_WAIT_S = 60


class Server:
    """A server with its data and its socket in `folder`."""

    def __init__(self, programs: Path, folder: Path, user: str | None) -> None:
        self._programs, self._folder, self._user = programs, folder, user
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"postgresql+psycopg://attentune@/postgres?host={folder}"
        words = [programs / "initdb", "-D", folder / "data", "-U", "attentune", "-A", "trust", "-E", "UTF8", "-N"]
        subprocess.run(words, check=True, user=user, cwd=folder, stdout=subprocess.DEVNULL)

    def start(self) -> None:
        """Start the server and wait until it accepts connections."""
        words = [self._programs / "postgres", "-D", self._folder / "data", "-k", self._folder, "-h", "", "-F"]
        log = (self._folder / "log").open("ab")
        self._process = subprocess.Popen(words, user=self._user, cwd=self._folder, stdout=log, stderr=log)
        ready = [self._programs / "pg_isready", "-h", self._folder, "-q"]
        deadline = time.monotonic() + _WAIT_S
        while subprocess.run(ready, check=False).returncode != 0:
            assert time.monotonic() < deadline, (self._folder / "log").read_text()
            assert self._process.poll() is None, (self._folder / "log").read_text()
            time.sleep(0.1)

    def stop(self) -> None:
        """Stop the server immediately, even if there are connections."""
        if self._process is not None:
            self._process.send_signal(signal.SIGQUIT)
            self._process.wait(_WAIT_S)
            self._process = None


@contextlib.contextmanager
def running_server() -> Iterator[Server]:
    """Yield a running server; fail the test if none is installed, and skip it if none may run here."""
    programs = _programs()
    if programs is None:
        pytest.fail("no PostgreSQL server here: install one (Debian: apt-get install postgresql)")
    user = None
    if os.geteuid() == 0:  # PostgreSQL refuses to run as root
        user = next((name for name in ("postgres", "nobody") if _exists(name)), None)
        if user is None:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres or nobody")
    folder = Path(tempfile.mkdtemp(prefix="attentune-pg-"))  # the length of socket paths is limited
    try:
        if user is not None:
            shutil.chown(folder, user)
        server = Server(programs, folder, user)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _programs() -> Path | None:
    found = shutil.which("postgres")
    places = [*([Path(found).resolve().parent] if found else []), *sorted(Path("/usr/lib/postgresql").glob("*/bin"))]
    return next((place for place in places if (place / "initdb").exists() and (place / "postgres").exists()), None)


def _exists(name: str) -> bool:
    try:
        return pwd.getpwnam(name) is not None
    except KeyError:
        return False
