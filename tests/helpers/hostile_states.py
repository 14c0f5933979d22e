"""Malicious checkpoints, records, comparisons, searches and settings: the manipulation and the expected error texts."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from helpers.hostile_folders import BOMB, DEEP, Poison, both, link, one, pickled, pipe, put, settings, tensors, zipped


def signed(*poisons: Poison) -> Poison:
    """Manipulate a checkpoint and write a manifest that matches the manipulated files."""

    def poison(folder: Path, secret: Path) -> None:
        (checkpoint,) = folder.glob("checkpoint-*")
        for each in poisons:
            each(checkpoint, secret)
        files = [path for path in sorted(checkpoint.iterdir()) if path.name != "manifest.json" and path.is_file()]
        manifest = {
            path.name: {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
            for path in files
        }
        (checkpoint / "manifest.json").write_text(json.dumps(manifest))

    return poison


def arrays(name: str, **changes: Any) -> Poison:
    """Change tensors of a safetensors file."""

    def poison(folder: Path, secret: Path) -> None:
        found = load_file(folder / name)
        for key, change in changes.items():
            found[key] = change(found.get(key))
        save_file(found, folder / name)

    return poison


def every(name: str, change: Callable[[np.ndarray], np.ndarray]) -> Poison:
    def poison(folder: Path, secret: Path) -> None:
        save_file({key: change(value) for key, value in load_file(folder / name).items()}, folder / name)

    return poison


def in_checkpoint(poison: Poison) -> Poison:
    def poisoned(folder: Path, secret: Path) -> None:
        (checkpoint,) = folder.glob("checkpoint-*")
        poison(checkpoint, secret)

    return poisoned


def manifest_of(*names: str) -> Poison:
    def poison(folder: Path, secret: Path) -> None:
        (checkpoint,) = folder.glob("checkpoint-*")
        content = json.loads((checkpoint / "manifest.json").read_text())
        found = secret / "config.json"
        facts = {"bytes": found.stat().st_size, "sha256": hashlib.sha256(found.read_bytes()).hexdigest()}
        more = {name.replace("SECRET", str(secret)): facts for name in names}
        (checkpoint / "manifest.json").write_text(json.dumps(content | more))

    return poison


_STATE, _FIT = ("state.json", "cannot be read"), ("does not fit this run", "Delete this checkpoint")
# Checkpoints of a stopped run, which is then resumed.
CHECKPOINTS: dict[str, tuple[Poison, tuple[str, ...]]] = {
    "a manifest of files elsewhere": (manifest_of("../../secret/config.json"), ("works",)),
    "a manifest of absolute paths": (manifest_of("SECRET/config.json"), ("works",)),
    "a manifest of devices": (manifest_of("/dev/zero"), ("works",)),
    "a manifest that is deep": (in_checkpoint(put("manifest.json", DEEP)), ("works",)),
    "a manifest that is a pickle": (in_checkpoint(put("manifest.json", pickled)), ("works",)),
    "a manifest of words": (in_checkpoint(put("manifest.json", '{"state.json": "ok"}')), ("works",)),
    "a state that is deep": (signed(put("state.json", '{"a": ' + DEEP)), _STATE),
    "a state that is a list": (signed(put("state.json", "[]")), _STATE),
    "a state that is a pickle": (signed(put("state.json", pickled)), _STATE),
    "a state of words": (signed(settings("state.json", training__step="many")), _STATE),
    "a state below 0": (signed(settings("state.json", training__step=-(10**12))), _STATE),
    "a log below 0": (signed(settings("state.json", training__log_bytes=-1)), _STATE),
    "a state of other things": (signed(settings("state.json", training__evil=1)), _STATE),
    "a best step that is a path": (
        signed(settings("state.json", training__best={"metric": "a", "value": 1, "step": "../../secret"})), _STATE),
    "a best value that is a word": (
        signed(settings("state.json", training__best={"metric": "a", "value": "x", "step": 1})), _STATE),
    "an identity that is none": (signed(settings("state.json", identity=None)), _STATE),
    "an identity of others": (signed(settings("state.json", identity={"data": "x"})), ("cannot be resumed",)),
    "weights that are a pickle": (signed(put("model.safetensors", pickled)), _FIT),
    "weights of another model": (signed(put("model.safetensors", tensors({"a": one()}, b"\0" * 8))), _FIT),
    "weights that overlap": (signed(put("model.safetensors", tensors({"a": one(), "b": one()}, b"\0" * 8))), _FIT),
    "weights of other shapes": (signed(every("model.safetensors", lambda value: value.reshape(-1))), _FIT),
    "an optimiser that is a pickle": (signed(put("optimizer.safetensors", pickled)), _FIT),
    "an optimiser of others": (signed(put("optimizer.safetensors", tensors({"a.b": one()}, b"\0" * 8))), _FIT),
    "an optimiser without names": (signed(put("optimizer.safetensors", tensors({"a": one()}, b"\0" * 8))), _FIT),
    "an optimiser of other shapes": (
        signed(every("optimizer.safetensors", lambda value: np.zeros(3, np.float32))), _FIT),
    "labels that are a pickle": (signed(put("labels.safetensors", pickled)), ("labels.safetensors",)),
    "labels of rows that are not": (signed(arrays("labels.safetensors", rows=lambda rows: rows + 10**6)), _FIT),
    "labels of rows below 0": (signed(arrays("labels.safetensors", rows=lambda rows: rows - 10**6)), _FIT),
    "labels without rows' tokens": (signed(arrays("labels.safetensors", values=lambda values: values[:3])), _FIT),
    "labels that begin elsewhere": (signed(arrays("labels.safetensors", starts=lambda starts: starts * 7)), _FIT),
    "labels of words": (
        signed(arrays("labels.safetensors", rows=lambda rows: rows.astype(np.float32) + 0.5)), _FIT),
    "a checkpoint that is a link": (link("checkpoint-999", "SECRET"), ("link", "cp -L")),
    "a log that is a link": (link("log.jsonl", "SECRET/precious"), ("holds the link log.jsonl",)),
    "a lock that is a link": (link(".lock", "SECRET/precious"), ("link",)),
    "settings that are a link": (link("config.yaml", "SECRET/config.yaml"), ("link",)),
    "settings that trust": (put("config.yaml", lambda secret: b""), ("",)),
    "a file of pickles beside them": (
        both(in_checkpoint(put("optimizer.pt", pickled)), in_checkpoint(put("rng_state.pth", pickled)),
             in_checkpoint(put("trainer_state.json", DEEP))), ("works",)),
    "weights that are a link": (in_checkpoint(link("model.safetensors", "SECRET/model.safetensors")), ("works",)),
}  # fmt: skip


def trusting(folder: Path, secret: Path) -> None:
    text = (folder / "config.yaml").read_text()
    assert "trust_remote_code: false" in text
    (folder / "config.yaml").write_text(text.replace("trust_remote_code: false", "trust_remote_code: true"))


CHECKPOINTS["settings that trust"] = (trusting, ("a file cannot ask for that", "--trust_remote_code"))

_RECORD = "records/own/all/bert/seed-1.json"
_CSV = "records/own/all/bert/seed-1.validation.csv"
# Records of a comparison, of which a report is then written.
RECORDS: dict[str, tuple[Poison, tuple[str, ...]]] = {
    "a record that is deep": (put(_RECORD, DEEP), (_RECORD, "too deeply")),
    "a record that is a pickle": (put(_RECORD, pickled), (_RECORD,)),
    "a record that is a list": (put(_RECORD, "[]"), (_RECORD,)),
    "a record of another format": (settings(_RECORD, format="2; import os"), (_RECORD, "of another format")),
    "a record of another status": (settings(_RECORD, status="<script>"), (_RECORD, "status")),
    "a run of numbers": (settings(_RECORD, run__task=7), (_RECORD,)),
    "a run of more": (settings(_RECORD, run__evil=1), (_RECORD,)),
    "a seed that is a list": (settings(_RECORD, run__seed=[1]), (_RECORD, "seed")),
    "a score that is a word": (settings(_RECORD, score="high"), (_RECORD, "score")),
    "scores that are words": (settings(_RECORD, scores={"validation": "high"}), (_RECORD, "scores")),
    "scores of words": (settings(_RECORD, scores={"validation": {"accuracy": "high"}}), (_RECORD, "scores")),
    "settings that are a list": (settings(_RECORD, config=[1]), (_RECORD, "config")),
    "notes that are a word": (settings(_RECORD, notes="a note"), (_RECORD, "notes")),
    "notes of objects": (settings(_RECORD, notes=[{}]), (_RECORD, "notes")),
    "a curve of words": (settings(_RECORD, curve=["a"]), (_RECORD, "curve")),
    "an error that is a word": (settings(_RECORD, error="a"), (_RECORD, "error")),
    "a number without an end": (put(_RECORD, '{"format": ' + "9" * 100_000 + "}"), (_RECORD,)),
    "predictions elsewhere": (settings(_RECORD, predictions={"validation": "../../../../../secret/p.csv"}), ("",)),
    "predictions by a path": (settings(_RECORD, predictions={"validation": "SECRET/p.csv"}), ("",)),
    "predictions of a dot": (settings(_RECORD, predictions={"validation": ".."}), ("",)),
    "predictions that are a link": (link(_CSV, "SECRET/p.csv"), ("link",)),
    "predictions that are a pipe": (pipe(_CSV), ("works",)),
    "predictions that are a pickle": (put(_CSV, pickled), (_CSV, "holds no predictions")),
    "predictions of another kind": (put(_CSV, "a,b\n1,2\n"), (_CSV, "holds no predictions")),
    "predictions with a huge field": (put(_CSV, 'id,label,prediction\n"' + "x" * 10**6), (_CSV,)),
    "predictions that are not finite": (put(_CSV, "id,label,prediction\na,nan,inf\n"), ("works",)),
    "a plan that is deep": (put("compare.json", DEEP), ("works",)),
    "a plan of words": (put("compare.json", '{"methods": "bert"}'), ("works",)),
    "findings that are deep": (put("hans.json", DEEP), ("hans.json", "too deeply")),
    "findings of words": (put("hans.json", '{"lines": "x"}'), ("hans.json",)),
    "findings of numbers": (put("hans.json", '{"lines": [1, 2]}'), ("hans.json",)),
    "layers that are a list": (put("layers.json", "[]"), ("layers.json",)),
    "layers of words": (put("layers.json", '{"layers": "x", "means": 7}'), ("layers.json",)),
}  # fmt: skip

# Files of a comparison, which is then resumed.
COMPARISONS: dict[str, tuple[Poison, tuple[str, ...]]] = {
    "a plan that is deep": (put("compare.json", DEEP), ("compare.json", "cannot be read")),
    "a plan that is a list": (put("compare.json", "[1]"), ("compare.json",)),
    "a plan that is a pickle": (put("compare.json", pickled), ("compare.json",)),
    "a plan of another format": (put("compare.json", '{"format": 99, "methods": {}, "id": "a"}'), ("compare.json",)),
    "methods of words": (
        put("compare.json", '{"format": 1, "methods": {"bert": "x"}, "id": "a"}'), ("compare.json",)),
    "methods of nothing": (
        put("compare.json", '{"format": 1, "methods": {"bert": {"own": [], "of_tasks": [], "tasks": {}}}, "id": "a"}'),
        ("compare.json",)),
    "a method that trusts": (
        put("compare.json", json.dumps({"format": 1, "id": "a", "methods": {"bert": {"own": [], "of_tasks": [],
            "tasks": {"own": {"model.trust_remote_code": True, "model.name_or_path": "evil/repo"}}}}})),
        ("other settings",)),
    "locks that are a link": (link(".locks/driver", "SECRET/precious"), ("link",)),
    "records that are a link": (link("records", "SECRET"), ("holds the link records",)),
    "runs that are a link": (link("runs", "SECRET"), ("holds the link runs",)),
    "a record that is deep": (put("records/own/all/bert/seed-1.json", DEEP), ("seed-1.json",)),
}  # fmt: skip

# Files of a search, which is then resumed.
SEARCHES: dict[str, tuple[Poison, tuple[str, ...]]] = {
    "a plan that is deep": (put("search.json", DEEP), ("search.json", "cannot be read")),
    "a plan that is a list": (put("search.json", "[]"), ("search.json",)),
    "a plan that is a pickle": (put("search.json", pickled), ("search.json",)),
    "a plan of words": (put("search.json", '{"format": 1, "id": "a", "search": "x"}'), ("search.json",)),
    "a journal that is deep": (put("trials.journal", DEEP + "\n"), ("trials.journal", "is damaged")),
    "a journal that is a pickle": (put("trials.journal", lambda secret: pickled(secret) + b"\n"), ("trials.journal",)),
    "a journal of lists": (put("trials.journal", "[1]\n[2]\n"), ("trials.journal", "is damaged")),
    "a journal of words": (put("trials.journal", '"create_study"\n'), ("trials.journal", "is damaged")),
    "a journal of other operations": (
        put("trials.journal", '{"op_code": 99, "worker_id": "a"}\n'),
        ("trials.journal", "is damaged"),
    ),
    "a journal of code": (
        put("trials.journal", '{"op_code": "__import__(\'os\').system(\'id\')", "worker_id": "a"}\n'),
        ("trials.journal", "is damaged"),
    ),
    "a journal of studies that are not": (
        put("trials.journal", '{"op_code": 5, "worker_id": "a", "study_id": 77}\n'),
        ("trials.journal",),
    ),
    "a journal of distributions": (
        put(
            "trials.journal",
            '{"op_code": 0, "worker_id": "a", "study_name": "search trials", "directions": [1]}\n'
            '{"op_code": 4, "worker_id": "a", "study_id": 0, "datetime_start": "2020-01-01", "state": 1,'
            ' "distributions": {"x": "{\\"name\\": \\"os.system\\", \\"attributes\\": {}}"}, "params": {"x": 1}}\n',
        ),
        ("trials.journal",),
    ),
    "a journal that is a link": (link("trials.journal", "SECRET/precious"), ("holds the link trials.journal",)),
    "a plan that is a link": (link("search.json", "SECRET/config.json"), ("link",)),
}

# Settings files named on the command line.
_TRUST = ("a file cannot ask for", "--trust_remote_code")
FILES: dict[str, tuple[str, bytes | str, tuple[str, ...]]] = {
    "settings that run": ("--config", "a: !!python/object/apply:os.system ['id']\n", ("not valid YAML",)),
    "settings that make an object": ("--config", "a: !!python/object/new:os.system [id]\n", ("not valid YAML",)),
    "settings with a tag": ("--config", "training: !evil {seed: 1}\n", ("not valid YAML",)),
    "settings that are a bomb": ("--config", BOMB, ("anchors and aliases are not read",)),
    "settings that merge": ("--config", "a: &a {seed: 1}\ntraining:\n  <<: *a\n", ("anchors",)),
    "settings that are deep": ("--config", DEEP, ("nested too deeply",)),
    "settings that are deep objects": ("--config", "{a: " * 50_000, ("nested too deeply",)),
    "settings that are a zip": ("--config", zipped("a"), ("cannot be read|not valid YAML",)),
    "settings in UTF-16": ("--config", "training: {seed: 1}\n".encode("utf-16"), ("cannot be read",)),
    "settings of two documents": ("--config", "training: {seed: 1}\n---\ntraining: {seed: 2}\n", ("not valid YAML",)),
    "settings with a key twice": ("--config", "training:\n  seed: 1\n  seed: 2\n", (":3: 'seed' is named more",)),
    "settings with a huge number": ("--config", f"training: {{seed: {'9' * 5000}}}\n", (":1: a number of",)),
    "settings with a long value": ("--config", f"training: {{seed: {'x' * 100_000}}}\n", ("training.seed: got",)),
    "settings with binary": ("--config", "training: {seed: !!binary aGVsbG8=}\n", ("training.seed",)),
    "settings with a set": ("--config", "training: {seed: !!set {a, b}}\n", ("training.seed",)),
    "settings that trust": ("--config", "model: {trust_remote_code: true}\n", _TRUST),
    "settings that trust in words": ("--config", "model: {trust_remote_code: 'yes'}\n", _TRUST),
    "settings that trust by number": ("--config", "model: {trust_remote_code: 1}\n", _TRUST),
    "a preset that is a path": ("--config", "preset: ../../../etc/passwd\n", ("preset: got", "expected one of")),
    "a preset that is a list": ("--config", "preset: [a]\n", ("preset",)),
    "sections that are lists": ("--config", "training: [1]\nmodel: 7\n", ("training",)),
    "names that are numbers": ("--config", "1: 2\n", ("1: there is no such setting",)),
    "names that are escapes": ("--config", '"\\e]0;taken\\a": 1\n', ("there is no such setting",)),
}  # fmt: skip
