"""`log.jsonl`: one JSON object a line, and never a line twice after a resume."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from attentune.files import storage_errors
from attentune.results import without_nan


class JsonLog:
    """An append-only file of JSON lines that can be cut back to where a checkpoint was written."""

    def __init__(self, path: Path, *, keep_bytes: int = 0) -> None:
        self._path = path
        with storage_errors(path):
            self._file = path.open("ab", buffering=0)  # nothing is left to write when it is closed
            self._file.truncate(min(keep_bytes, path.stat().st_size))

    def write(self, facts: dict[str, Any]) -> None:
        """Add a line."""
        with storage_errors(self._path):
            self._file.write(json.dumps(without_nan(facts), ensure_ascii=False).encode() + b"\n")

    def synced_bytes(self) -> int:
        """The length of the file, once all of it is on the disk."""
        with storage_errors(self._path):
            os.fsync(self._file.fileno())
            return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        self._file.close()
