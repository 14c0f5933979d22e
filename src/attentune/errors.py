"""What can go wrong for a user, one class a kind of cause.

Every message says what was got, what was expected and how to mend it. The command line prints the message without a
traceback and ends with status 2; anything else that escapes is a bug of ours and ends with status 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class AttentuneError(Exception):
    """The base of all errors that a user can mend."""


class ConfigError(AttentuneError):
    """Settings that cannot be used. Holds all problems found, not only the first."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class DataError(AttentuneError):
    """A file or data set that cannot be read as asked.

    The text starts with `path:line:` where both are known, so that editors can jump to the place.
    """

    def __init__(self, message: str, *, path: str | Path | None = None, line: int | None = None) -> None:
        self.path = None if path is None else str(path)
        self.line = line
        place = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(place + message)


class LabelError(DataError):
    """Labels that do not fit the task, or the labels that a model was trained on."""


class UnsupportedEncoderError(AttentuneError):
    """An encoder that cannot be loaded, or cannot take what was asked of it."""


class CheckpointError(AttentuneError):
    """A run folder or checkpoint that is missing, torn, finished or not of this run."""


class StorageError(AttentuneError):
    """A disk that is full or a folder that cannot be written to."""


class ExportError(AttentuneError):
    """A run that cannot be exported, or whose export does not say what the run says."""


class NonFiniteLossError(AttentuneError):
    """The loss or a gradient became NaN or infinite; the message names the step and the rows."""
