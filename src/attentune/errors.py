"""User errors: one class per cause.

Every message says what was given, what was expected and how to fix it. The command line prints the message without a
traceback and exits with status 2; any other exception is a bug and exits with status 1.
"""

from collections.abc import Sequence
from pathlib import Path


class AttentuneError(Exception):
    """The base class of all errors that a user can fix."""


class ConfigError(AttentuneError):
    """Invalid settings. The attribute `problems` lists all problems, not only the first."""

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__("\n".join(self.problems))


class DataError(AttentuneError):
    """A file or dataset that cannot be read.

    The message starts with `path:line:` if both are known, so that editors can jump to the line.
    """

    def __init__(self, message: str, *, path: str | Path | None = None, line: int | None = None) -> None:
        self.path = None if path is None else str(path)
        self.line = line
        place = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(place + message)


class LabelError(DataError):
    """Labels that do not fit the task or the model."""


class InputError(DataError, ValueError):
    """Texts or labels passed in Python that are none."""


class UnsupportedEncoderError(AttentuneError):
    """An encoder that cannot be loaded, or does not support a setting."""


class CheckpointError(AttentuneError):
    """A run folder or checkpoint that is missing, damaged, finished or belongs to another run."""


class StorageError(AttentuneError):
    """A full disk, or a folder that cannot be written to."""


class ExportError(AttentuneError):
    """A run that cannot be exported, or an export whose predictions differ from those of the run."""


class NonFiniteLossError(AttentuneError):
    """A loss, gradient or logit that is NaN or infinite; the message names the step and the rows."""
