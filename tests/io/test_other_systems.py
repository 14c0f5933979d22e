"""What exists on one operating system alone has a way round, which is taken here by hiding it."""

import os
import sys
from pathlib import Path

import pytest
import torch

from attentune.io import files
from attentune.nn.compiled import memory as heap
from attentune.nn.compiled import native
from attentune.results import to_json


def test_files_are_written_where_folders_cannot_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []
    monkeypatch.setattr(files.os, "open", lambda path, *rest: opened.append(path))
    monkeypatch.delattr(os, "O_DIRECTORY")
    monkeypatch.delattr(os, "posix_fadvise")
    files.write_text(tmp_path / "a.json", to_json({"a": 1}))
    files.sync_file(tmp_path / "a.json")
    assert files.read_json(tmp_path / "a.json") == {"a": 1}
    assert opened == []


def test_peak_memory_without_proc_and_without_resource(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    cpu = torch.device("cpu")
    usual = heap.peak_memory_bytes(cpu)
    monkeypatch.setattr(heap, "_STATUS", tmp_path / "none")
    assert heap.peak_memory_bytes(cpu) >= usual // 2
    monkeypatch.setattr(heap, "resource", None)
    assert 1 << 26 < heap.peak_memory_bytes(cpu) <= 2 * usual


def test_another_c_library_keeps_its_own_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "platform", "win32")
        assert heap.load_glibc() is None
    monkeypatch.setattr(heap, "_library", None)
    with heap.kept_memory():
        heap.return_freed_memory()
        assert heap._within == 0


def test_the_processor_is_named_without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: Path, **rest: object) -> str:
        raise FileNotFoundError(path)

    monkeypatch.setattr(Path, "read_text", missing)
    assert native.processor_name() == native.platform.machine()
