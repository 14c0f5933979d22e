"""Standard input as a file, `-`: copied to a temporary file, since rows are checked before they are used."""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from attentune.errors import DataError

STANDARD_INPUT = "-"
# What messages call it.
NAME = "standard input"
# The copy, and the stream that it is of.
_copied: list[tuple[Any, Path]] = []


def is_standard_input(path: str | Path) -> bool:
    """Return whether the path stands for standard input."""
    return str(path) == STANDARD_INPUT


def copied_input() -> Path:
    """Read standard input to its end, once in a process; return the file with its bytes, removed at exit.

    Raises:
        DataError: it is a terminal, or closed, or empty; or the copy cannot be written.
    """
    stream = sys.stdin
    if _copied and _copied[-1][0] is stream:
        return _copied[-1][1]
    if stream is None or stream.closed:
        raise DataError(f"is closed, expected rows. {_cure()}", path=NAME)
    if stream.isatty():
        raise DataError(f"is a terminal, expected rows from a file or another program. {_cure()}", path=NAME)
    handle, name = tempfile.mkstemp(prefix="attentune-")
    atexit.register(_remove, name)
    try:
        with os.fdopen(handle, "wb") as copy:
            shutil.copyfileobj(stream.buffer, copy, 2**20)
    except OSError as error:
        raise DataError(f"cannot be copied to {name}: {error.strerror or error}.", path=NAME) from error
    if not Path(name).stat().st_size:
        raise DataError(
            f"is empty, expected rows. Does the program before the pipe write any? {_cure()}",
            path=NAME,
        )
    _copied[:] = [(stream, Path(name))]
    return _copied[-1][1]


def _cure() -> str:
    return "For example: attentune predict RUN --input_file - < reviews.csv"


def _remove(name: str) -> None:
    Path(name).unlink(missing_ok=True)
