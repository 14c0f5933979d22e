"""Monitors a process while it reads a malicious file: an audit hook records actions that no file may cause."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attentune.nn.compiled.native import unavailable_reason

# Unpickling, starting a program, loading a library by its path, network access.
FORBIDDEN = (
    "pickle.find_class",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "os.fork",
    "os.startfile",
    "subprocess.Popen",
    "ctypes.dlopen",
    "socket.connect",
    "socket.getaddrinfo",
    "urllib.Request",
    "webbrowser.open",
)
# Normal operations of Python; forbidden only for paths in the `secret` folder.
_PLACES = ("exec", "open", "import", "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.truncate", "os.link")


class _Watch:
    def __init__(self) -> None:
        self.is_on = False
        self.seen: list[str] = []
        self.secret = ""

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.is_on:
            return
        if event.startswith(FORBIDDEN) or (event in _PLACES and self.secret and self.secret in _text(arguments[:2])):
            self.seen.append(f"{event} {arguments!r:.200}")


def _text(arguments: tuple[Any, ...]) -> str:
    return " ".join(getattr(value, "co_filename", None) or str(value) for value in arguments)


_WATCH = _Watch()
sys.addaudithook(_WATCH)


@contextlib.contextmanager
def watched(secret: Path) -> Iterator[list[str]]:
    """Yield the list of forbidden actions in the block; nothing may be opened in the folder `secret`."""
    unavailable_reason()  # compile and load the C library before monitoring starts, as loading a library is forbidden
    _WATCH.seen, _WATCH.secret, _WATCH.is_on = [], str(secret), True
    try:
        yield _WATCH.seen
    finally:
        _WATCH.is_on = False
