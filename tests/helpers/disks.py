"""Mounts small file systems that tests fill or make read-only."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest


class Disk:
    """A tmpfs file system mounted at a folder; `size` is in KiB."""

    def __init__(self, folder: Path, size: int) -> None:
        if shutil.which("mount") is None or os.geteuid() != 0:
            pytest.skip("mounting a file system needs root and the command mount")
        self.folder = folder
        folder.mkdir()
        refusal = self._mount(f"size={size}k", "-t", "tmpfs", "none")
        if refusal:
            pytest.skip(f"mounting a file system is not permitted here: {refusal}")

    def _mount(self, options: str, *words: str) -> str:
        """Run `mount`; return its error message, empty on success."""
        command = ["mount", "-o", options, *words, str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        return (done.stderr.strip() or "no reason given") if done.returncode else ""

    def resize(self, size: int) -> None:
        assert not self._mount(f"remount,rw,size={size}k"), f"{size} KiB are too few for what is there"

    def lock(self) -> None:
        assert not self._mount("remount,ro")

    def fill(self) -> None:
        with (self.folder / "filler").open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def remove(self) -> None:
        subprocess.run(["umount", "--lazy", str(self.folder)], check=False)
