"""Malicious folders, each derived from a valid one, by name, with what must be said; and a watch on what they cause."""

import contextlib
import hashlib
import io
import json
import os
import pickle
import struct
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from safetensors.numpy import load_file, save_file

from attentune.nn.compiled.native import unavailable_reason

# Called with the folder to manipulate and with another folder in which nothing may be opened.
Poison = Callable[[Path, Path], None]
Cases = dict[str, tuple[Poison, tuple[str, ...]]]


class _Payload:
    """An object whose unpickling creates a file, as an example of code execution."""

    def __init__(self, secret: Path) -> None:
        self._canary = secret.parent / "canary"

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, (f"touch {self._canary}",)


def pickled(secret: Path) -> bytes:
    return pickle.dumps(_Payload(secret), 2)


def torch_saved(secret: Path) -> bytes:
    buffer = io.BytesIO()
    torch.save({"encoder.weight": _Payload(secret)}, buffer)
    return buffer.getvalue()


def step(change: Callable[..., None]) -> Callable[..., Poison]:
    """Make a function that changes a folder one that returns such a change: put("a", b"")(folder, secret)."""
    return lambda *words, **options: lambda folder, secret: change(folder, secret, *words, **options)


@step
def put(folder: Path, secret: Path, name: str, content: bytes | str | Callable[[Path], bytes]) -> None:
    found = content(secret) if callable(content) else content
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(found if isinstance(found, bytes) else found.encode())


@step
def both(folder: Path, secret: Path, *poisons: Poison) -> None:
    for poison in poisons:
        poison(folder, secret)


@step
def gone(folder: Path, secret: Path, name: str) -> None:
    (folder / name).unlink()


@step
def settings(folder: Path, secret: Path, name: str, **changes: Any) -> None:
    """Change keys of a JSON object; __ separates nested keys; SECRET in a value is replaced by the other folder."""
    content = json.loads((folder / name).read_text())
    for key, value in changes.items():
        *path, last = key.split("__")
        part = content
        for place in path:
            part = part[place]
        part[last] = json.loads(json.dumps(value).replace("SECRET", str(secret)))
    (folder / name).write_text(json.dumps(content))


@step
def link(folder: Path, secret: Path, name: str, target: str) -> None:
    """Replace a file by a symbolic link; SECRET in the target is replaced by the other folder."""
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(target.replace("SECRET", str(secret)))


@step
def pipe(folder: Path, secret: Path, name: str) -> None:
    (folder / name).unlink(missing_ok=True)
    os.mkfifo(folder / name)


def tensors(entries: dict[str, Any], data: bytes = b"", *, size: int | None = None) -> bytes:
    header = json.dumps(entries).encode()
    return struct.pack("<Q", len(header) if size is None else size) + header + data


def one(shape: Any = (2,), offsets: Any = (0, 8), dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def zipped(name: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, b"\0" * 100_000)
    return buffer.getvalue()


def code(secret: Path) -> bytes:
    canary = secret.parent / "canary"
    return (
        f"open({str(canary)!r}, 'w')\nclass Evil:\n    pass\nEvilConfig = EvilModel = EvilTokenizer = Evil\n".encode()
    )


DEEP = "[" * 200_000
BOMB = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [*{chr(97 + n)}, *{chr(97 + n)}]\n" for n in range(20)
)
_MAP = {"AutoConfig": "evil.EvilConfig", "AutoModel": "evil.EvilModel", "AutoTokenizer": ["evil.EvilTokenizer", None]}
_REMOTE = {"AutoConfig": "evil/repo--evil.EvilConfig", "AutoModel": "evil/repo--evil.EvilModel"}
_OUT, _NOT, _SANDBOX = "is a link out of the folder", "no safetensors", "Convert it in a sandbox"

GIVEN = {"$pickled": pickled, "$torch_saved": torch_saved, "$code": code, "$DEEP": DEEP, "$BOMB": BOMB}
_CHANGES = {"put": put, "both": both, "gone": gone, "settings": settings, "link": link, "pipe": pipe}
_TABLES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))


def change_of(written: list[Any]) -> Poison:
    """Return the change that a row of the YAML file describes."""
    verb, *words = written
    named = words.pop() if words and isinstance(words[-1], dict) else {}
    given = [change_of(word) if isinstance(word, list) else GIVEN.get(word, word) for word in words]
    return _CHANGES[verb](*given, **named)


def cases(table: str) -> Cases:
    return {name: (change_of(change), tuple(says)) for name, (change, says) in _TABLES[table].items()}


# Manipulations of files that are in both encoder folders and run folders.
MODEL: Cases = cases("model") | {
    "a .h5 for weights": (both(put("tf_model.h5", b"\x89HDF"), gone("model.safetensors")), (_SANDBOX,)),
    "a zip called safetensors": (put("model.safetensors", zipped("data.pkl")), (_NOT,)),
    "a header without an end": (put("model.safetensors", tensors({}, size=2**63)), (_NOT,)),
    "a header that is no JSON": (put("model.safetensors", struct.pack("<Q", 3) + b"{a}"), (_NOT,)),
    "a deep header": (put("model.safetensors", struct.pack("<Q", 200_000) + DEEP.encode()), (_NOT,)),
    "overlapping tensors": (put("model.safetensors", tensors({"a": one(), "b": one()}, b"\0" * 8)), ()),
    "offsets beyond the end": (put("model.safetensors", tensors({"a": one(offsets=(0, 2**40))}, b"\0" * 8)), ()),
    "an empty file of weights": (put("model.safetensors", b""), (_NOT,)),
    "settings without an end": (put("config.json", '{"a": ' + DEEP), ("config.json",)),
    "settings of 9 MB": (put("config.json", json.dumps({"a": "x" * 9_000_000})), ("larger",)),
    "a number of 100,000 digits": (put("config.json", '{"hidden_size": ' + "9" * 100_000 + "}"), ("config.json",)),
}

# Manipulations of files that are only in run folders.
RUN: Cases = cases("run") | {
    "YAML that runs": (
        put(
            "config.yaml",
            lambda secret: f"a: !!python/object/apply:os.system ['touch {secret.parent}/canary']\n".encode(),
        ),
        ("config.yaml", "not valid YAML"),
    ),
}


def trusting(folder: Path, secret: Path) -> None:
    text = (folder / "config.yaml").read_text()
    assert "trust_remote_code: false" in text
    (folder / "config.yaml").write_text(text.replace("trust_remote_code: false", "trust_remote_code: true"))


def facts_of(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


@step
def in_checkpoint(folder: Path, secret: Path, poison: Poison) -> None:
    poison(*folder.glob("checkpoint-*"), secret)


@step
def signed(folder: Path, secret: Path, change: Poison) -> None:
    """Manipulate a checkpoint and write a manifest that matches the manipulated files."""
    (checkpoint,) = folder.glob("checkpoint-*")
    change(checkpoint, secret)
    files = [path for path in sorted(checkpoint.iterdir()) if path.name != "manifest.json" and path.is_file()]
    (checkpoint / "manifest.json").write_text(json.dumps({path.name: facts_of(path) for path in files}))


@step
def arrays(folder: Path, secret: Path, name: str, change: Callable[[np.ndarray], np.ndarray], *keys: str) -> None:
    """Change these tensors of a safetensors file, by default all."""
    found = load_file(folder / name)
    save_file(found | {key: change(found[key]) for key in keys or found}, folder / name)


@step
def manifest_of(folder: Path, secret: Path, name: str) -> None:
    (checkpoint,) = folder.glob("checkpoint-*")
    content = json.loads((checkpoint / "manifest.json").read_text())
    (checkpoint / "manifest.json").write_text(json.dumps(content | {name: facts_of(secret / "config.json")}))


_CHANGES |= {"in_checkpoint": in_checkpoint, "signed": signed, "manifest_of": manifest_of}
_STATE, _FIT = ("state.json", "cannot be read"), ("does not fit this run", "Delete this checkpoint")
# Checkpoints of a stopped run, which is then resumed.
CHECKPOINTS: Cases = cases("checkpoints") | {
    "a state that is deep": (signed(put("state.json", '{"a": ' + DEEP)), _STATE),
    "weights that overlap": (signed(put("model.safetensors", tensors({"a": one(), "b": one()}, b"\0" * 8))), _FIT),
    "weights of other shapes": (signed(arrays("model.safetensors", lambda value: value.reshape(-1))), _FIT),
    "an optimiser without names": (signed(put("optimizer.safetensors", tensors({"a": one()}, b"\0" * 8))), _FIT),
    "an optimiser of other shapes": (
        signed(arrays("optimizer.safetensors", lambda value: np.zeros(3, np.float32))),
        _FIT,
    ),
    "labels of rows that are not": (signed(arrays("labels.safetensors", lambda rows: rows + 10**6, "rows")), _FIT),
    "labels without rows' tokens": (signed(arrays("labels.safetensors", lambda values: values[:3], "values")), _FIT),
    "labels that begin elsewhere": (signed(arrays("labels.safetensors", lambda starts: starts * 7, "starts")), _FIT),
    "labels of words": (signed(arrays("labels.safetensors", lambda rows: rows.astype(np.float32) + 0.5, "rows")), _FIT),
    "settings that trust": (trusting, ("a file cannot ask for that", "--trust_remote_code")),
}


_RECORD = "records/own/all/bert/seed-1.json"
_CSV = "records/own/all/bert/seed-1.validation.csv"
# Records of a comparison, of which a report is then written.
RECORDS: Cases = cases("records") | {
    "a number without an end": (put(_RECORD, '{"format": ' + "9" * 100_000 + "}"), (_RECORD,)),
    "predictions with a huge field": (put(_CSV, 'id,label,prediction\n"' + "x" * 10**6), (_CSV,)),
}

# Files of a comparison, which is then resumed.
COMPARISONS: Cases = cases("comparisons")

# Files of a search, which is then resumed.
SEARCHES: Cases = cases("searches")

# Settings files named on the command line.
_TRUST = ("a file cannot ask for", "--trust_remote_code")
FILES: dict[str, tuple[bytes | str, tuple[str, ...]]] = {
    name: (GIVEN.get(content, content), tuple(says)) for name, (content, says) in _TABLES["files"].items()
} | {
    "settings of 1 MB": ("# " + "x" * 2**20, ("bytes",)),
    "settings with a number in sixties": ("training: {seed: 1" + ":59" * 60_000 + "}\n", (":1", "digits")),
    "settings that are a zip": (zipped("a"), ("cannot be read|not valid YAML",)),
    "settings in UTF-16": ("training: {seed: 1}\n".encode("utf-16"), ("cannot be read",)),
    "settings with a huge number": (f"training: {{seed: {'9' * 5000}}}\n", (":1: a number of",)),
    "settings with a long value": (f"training: {{seed: {'x' * 100_000}}}\n", ("training.seed: got",)),
}


# The watch: an audit hook records actions that no file may cause

# Unpickling, starting a program, loading a library by its path, network access.
FORBIDDEN = (
    "pickle.find_class", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.startfile", "subprocess.Popen",
    "ctypes.dlopen", "socket.connect", "socket.getaddrinfo", "urllib.Request", "webbrowser.open",
)  # fmt: skip
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
