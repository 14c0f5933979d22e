"""What a process does while it reads a hostile file: an audit hook notes what no file may make it do."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from attentune.nn.cpu.native import unavailable_reason

# Reading a pickle, starting a program, loading a library by its path, asking the network.
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
# Python itself does these; they count where they have to do with the folder that nothing may open.
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
    """Everything forbidden that happens in the block; `secret` is a folder in which nothing may be opened."""
    unavailable_reason()  # our own library is compiled and loaded by itself, whatever the file
    _WATCH.seen, _WATCH.secret, _WATCH.is_on = [], str(secret), True
    try:
        yield _WATCH.seen
    finally:
        _WATCH.is_on = False
