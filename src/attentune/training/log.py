"""`log.jsonl`: one JSON object a line, and never a line twice after a resume."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from attentune.io.files import storage_errors
from attentune.results import without_nan


class JsonLog:
    """An append-only file of JSON lines that can be cut back to where a checkpoint was written.

    Args:
        path: the file.
        keep_bytes: how much of it counts, for a run that is resumed.
        keep_sha256: the hash of that part as it was written; None where it is not known.

    Attributes:
        is_as_written: whether the part that counts is still what was written.
    """

    def __init__(self, path: Path, *, keep_bytes: int = 0, keep_sha256: str | None = None) -> None:
        self._path = path
        with storage_errors(path):
            self._file = path.open("ab", buffering=0)  # nothing is left to write when it is closed
            self._file.truncate(min(keep_bytes, path.stat().st_size))
            self._digest = hashlib.sha256(path.read_bytes())
        self.is_as_written = keep_sha256 in (None, self._digest.hexdigest())

    def write(self, facts: dict[str, Any]) -> None:
        """Add a line."""
        line = json.dumps(without_nan(facts), ensure_ascii=False).encode() + b"\n"
        self._digest.update(line)
        with storage_errors(self._path):
            while line:  # a disk that fills takes a part, and refuses the rest
                line = line[self._file.write(line) :]

    def synced(self) -> tuple[int, str]:
        """The length and the SHA-256 of the file, once all of it is on the disk."""
        with storage_errors(self._path):
            os.fsync(self._file.fileno())
            return os.fstat(self._file.fileno()).st_size, self._digest.hexdigest()

    def close(self) -> None:
        self._file.close()
