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
    """Write a file to the folder."""
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
    """Return a safetensors file with an arbitrary header."""
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

# Manipulations of files that are in both encoder folders and run folders.
MODEL: Cases = {
    "pickle for weights": (both(put("pytorch_model.bin", pickled), gone("model.safetensors")), (_SANDBOX,)),
    "a .pt for weights": (both(put("model.pt", torch_saved), gone("model.safetensors")), (_SANDBOX,)),
    "a .h5 for weights": (both(put("tf_model.h5", b"\x89HDF"), gone("model.safetensors")), (_SANDBOX,)),
    "a pickle called safetensors": (put("model.safetensors", pickled), (_NOT,)),
    "a torch.save called safetensors": (put("model.safetensors", torch_saved), (_NOT, "torch.save")),
    "a zip called safetensors": (put("model.safetensors", zipped("data.pkl")), (_NOT, "zip")),
    "a header without an end": (put("model.safetensors", tensors({}, size=2**63)), (_NOT,)),
    "a header that is no JSON": (put("model.safetensors", struct.pack("<Q", 3) + b"{a}"), (_NOT,)),
    "a deep header": (put("model.safetensors", struct.pack("<Q", 200_000) + DEEP.encode()), (_NOT,)),
    "overlapping tensors": (put("model.safetensors", tensors({"a": one(), "b": one()}, b"\0" * 8)), ()),
    "offsets beyond the end": (put("model.safetensors", tensors({"a": one(offsets=(0, 2**40))}, b"\0" * 8)), ()),
    "an empty file of weights": (put("model.safetensors", b""), (_NOT,)),
    "shards that are pickles": (
        both(put("model.safetensors.index.json", '{"weight_map": {"a": "pytorch_model-1.bin"}}'),
             put("pytorch_model-1.bin", torch_saved), gone("model.safetensors")), ("names 'pytorch_model-1.bin'",)),
    "shards of another folder": (
        both(put("model.safetensors.index.json", '{"weight_map": {"a": "../secret/model.safetensors"}}'),
             gone("model.safetensors")), ("names '../secret/model.safetensors'", "in this folder")),
    "shards that are deep": (
        both(put("model.safetensors.index.json", DEEP), gone("model.safetensors")), ("too deeply",)),
    "other weights in the settings": (
        settings("config.json", transformers_weights="../secret/adapter_model.bin"), ("transformers_weights",)),
    "code of the folder": (both(settings("config.json", auto_map=_MAP), put("evil.py", code)), ("works",)),
    "code of the hub": (settings("config.json", auto_map=_REMOTE), ("works",)),
    "code of a kind of its own": (
        both(settings("config.json", auto_map=_MAP, model_type="evil"), put("evil.py", code)),
        ("auto_map|plain evil",)),
    "code for the tokenizer": (
        both(settings("tokenizer_config.json", auto_map=_MAP), put("evil.py", code)), ("auto_map",)),
    "kernels of the hub": (settings("config.json", attn_implementation="evil/kernels"), ("evil/kernels", "eager")),
    "quantised by others": (
        settings("config.json", quantization_config={"quant_method": "torchao", "quant_type": "x"}),
        ("quantization_config",)),
    "an adapter of the hub": (
        put("adapter_config.json", '{"base_model_name_or_path": "evil/repo", "peft_type": "LORA"}'), ("adapter",)),
    "a vocabulary elsewhere": (settings("tokenizer_config.json", vocab_file="SECRET/vocab.txt"), ("vocab_file",)),
    "a tokenizer elsewhere": (settings("tokenizer_config.json", tokenizer_file="SECRET/t.json"), ("tokenizer_file",)),
    "an object for a tokenizer": (settings("tokenizer_config.json", tokenizer_object={"a": 1}), ("tokenizer_object",)),
    "a template that asks for classes": (
        put("chat_template.jinja", "{{ ''.__class__.__mro__[1].__subclasses__() }}"), ("works",)),
    "settings without an end": (put("config.json", '{"a": ' + DEEP), ("config.json",)),
    "settings of 9 MB": (put("config.json", json.dumps({"a": "x" * 9_000_000})), ("larger",)),
    "a number of 100,000 digits": (put("config.json", '{"hidden_size": ' + "9" * 100_000 + "}"), ("config.json",)),
    "a billion layers": (settings("config.json", num_hidden_layers=10**9), ("num_hidden_layers",)),
    "a tokenizer that is no JSON": (put("tokenizer.json", "{"), ("",)),
    "a tokenizer of another kind": (put("tokenizer.json", '{"version": "9", "model": {"type": "Evil"}}'), ("",)),
    "a tokenizer whose ids overflow": (settings("tokenizer.json", model__vocab={"[CLS]": 2**40}), ("",)),
    "settings that are a link out": (link("config.json", "SECRET/config.json"), (_OUT, "cp -L")),
    "weights that are a link out": (link("model.safetensors", "SECRET/model.safetensors"), (_OUT,)),
    "a link to the passwords": (link("vocab.txt", "/etc/passwd"), (_OUT,)),
    "a link to a device": (link("special_tokens_map.json", "/dev/zero"), (_OUT,)),
    "a link to itself": (link("added_tokens.json", "added_tokens.json"), ("added_tokens.json",)),
    "a pipe for settings": (pipe("tokenizer_config.json"), ("pipe",)),
    "a pipe for weights": (pipe("model.safetensors"), ("pipe",)),
}  # fmt: skip

# Manipulations of files that are only in run folders.
RUN: Cases = {
    "code for an encoder of its own kind": (
        both(settings("config.json", encoder__auto_map=_MAP, encoder__model_type="evil"), put("evil.py", code)),
        ("auto_map", "--trust_remote_code")),
    "an encoder that is a path": (settings("config.json", encoder__model_type="../../secret"), ("",)),
    "an encoder that is none": (settings("config.json", encoder=None), ("",)),
    "kernels for the encoder": (settings("config.json", encoder___attn_implementation="evil/k"), ("evil/k",)),
    "a wide encoder": (settings("config.json", encoder__intermediate_size=2**24), ("weights",)),
    "a deep encoder": (settings("config.json", encoder__num_hidden_layers=1000), ("weights",)),
    "a deep head": (settings("config.json", head__kind="self-attention", head__layers=1000), ("",)),
    "a blur without an end": (settings("config.json", blur={"where": "context", "size": 2**30}), ("blur",)),
    "a head of another kind": (settings("config.json", head__kind="__import__('os')"), ("",)),
    "a task of another kind": (settings("config.json", task_type="execution"), ("task_type",)),
    "labels that are no names": (settings("config.json", id2label={"0": ["a"], "1": {"b": 1}}), ("",)),
    "labels with holes": (settings("config.json", id2label={"0": "a", "7": "b"}), ("id2label|fit",)),
    "labels of one name": (settings("config.json", id2label={"0": "a", "1": "a"}), ("id2label",)),
    "special tokens below 0": (settings("config.json", special_token_ids=[-5]), ("special_token_ids",)),
    "a length without an end": (settings("config.json", max_seq_length=2**23), ("max_seq_length",)),
    "a pair of another kind": (settings("config.json", is_pair="yes"), ("is_pair",)),
    "YAML that runs": (
        put("config.yaml", lambda secret: f"a: !!python/object/apply:os.system ['touch {secret.parent}/canary']\n"
            .encode()), ("config.yaml", "not valid YAML")),
    "a YAML bomb": (put("config.yaml", BOMB), ("config.yaml:1", "anchors")),
    "YAML that is a link out": (link("config.yaml", "SECRET/config.yaml"), (_OUT,)),
    "YAML that is a pipe": (pipe("config.yaml"), ("pipe",)),
    "a pickle beside it": (both(put("training_args.bin", pickled), put("optimizer.pt", pickled)), ("works",)),
    "Python beside it": (
        both(put("modeling_attentune.py", code), put("configuration_attentune.py", code), put("__init__.py", code),
             put("sitecustomize.py", code), put("conftest.py", code)), ("works",)),
    "a generation config": (put("generation_config.json", '{"custom_generate": "evil/repo"}'), ("works",)),
}  # fmt: skip


def trusting(folder: Path, secret: Path) -> None:
    text = (folder / "config.yaml").read_text()
    assert "trust_remote_code: false" in text
    (folder / "config.yaml").write_text(text.replace("trust_remote_code: false", "trust_remote_code: true"))


def facts_of(path: Path) -> dict[str, Any]:
    """Return what a manifest says of a file."""
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


_STATE, _FIT = ("state.json", "cannot be read"), ("does not fit this run", "Delete this checkpoint")
# Checkpoints of a stopped run, which is then resumed.
CHECKPOINTS: Cases = {
    "a manifest of files elsewhere": (manifest_of("../../secret/config.json"), ("works",)),
    "a manifest of devices": (manifest_of("/dev/zero"), ("works",)),
    "a manifest that is a pickle": (in_checkpoint(put("manifest.json", pickled)), ("works",)),
    "a state that is deep": (signed(put("state.json", '{"a": ' + DEEP)), _STATE),
    "a state of words": (signed(settings("state.json", tasks__main__step="many")), _STATE),
    "a state below 0": (signed(settings("state.json", tasks__main__step=-(10**12))), _STATE),
    "a state of other things": (signed(settings("state.json", tasks__main__evil=1)), _STATE),
    "a best step that is a path": (
        signed(settings("state.json", tasks__main__best={"metric": "a", "value": 1, "step": "../../secret"})), _STATE),
    "an identity that is none": (signed(settings("state.json", identity=None)), _STATE),
    "an identity of others": (signed(settings("state.json", identity__main__data="x")), ("cannot be resumed",)),
    "weights that are a pickle": (signed(put("model.safetensors", pickled)), _FIT),
    "weights that overlap": (signed(put("model.safetensors", tensors({"a": one(), "b": one()}, b"\0" * 8))), _FIT),
    "weights of other shapes": (signed(arrays("model.safetensors", lambda value: value.reshape(-1))), _FIT),
    "an optimiser that is a pickle": (signed(put("optimizer.safetensors", pickled)), _FIT),
    "an optimiser without names": (signed(put("optimizer.safetensors", tensors({"a": one()}, b"\0" * 8))), _FIT),
    "an optimiser of other shapes": (
        signed(arrays("optimizer.safetensors", lambda value: np.zeros(3, np.float32))), _FIT),
    "labels that are a pickle": (signed(put("labels.safetensors", pickled)), ("labels.safetensors",)),
    "labels of rows that are not": (signed(arrays("labels.safetensors", lambda rows: rows + 10**6, "rows")), _FIT),
    "labels without rows' tokens": (signed(arrays("labels.safetensors", lambda values: values[:3], "values")), _FIT),
    "labels that begin elsewhere": (signed(arrays("labels.safetensors", lambda starts: starts * 7, "starts")), _FIT),
    "labels of words": (
        signed(arrays("labels.safetensors", lambda rows: rows.astype(np.float32) + 0.5, "rows")), _FIT),
    "a checkpoint that is a link": (link("checkpoint-999", "SECRET"), ("link", "cp -L")),
    "a log that is a link": (link("log.jsonl", "SECRET/precious"), ("holds the link log.jsonl",)),
    "a lock that is a link": (link(".lock", "SECRET/precious"), ("link",)),
    "settings that trust": (trusting, ("a file cannot ask for that", "--trust_remote_code")),
    "a file of pickles beside them": (
        both(in_checkpoint(put("optimizer.pt", pickled)), in_checkpoint(put("rng_state.pth", pickled)),
             in_checkpoint(put("trainer_state.json", DEEP))), ("works",)),
    "weights that are a link": (in_checkpoint(link("model.safetensors", "SECRET/model.safetensors")), ("works",)),
}  # fmt: skip


_RECORD = "records/own/all/bert/seed-1.json"
_CSV = "records/own/all/bert/seed-1.validation.csv"
# Records of a comparison, of which a report is then written.
RECORDS: Cases = {
    "a record that is deep": (put(_RECORD, DEEP), (_RECORD, "too deeply")),
    "a record that is a pickle": (put(_RECORD, pickled), (_RECORD,)),
    "a record of another format": (settings(_RECORD, format="2; import os"), (_RECORD, "of another format")),
    "a record of another status": (settings(_RECORD, status="<script>"), (_RECORD, "status")),
    "a run of numbers": (settings(_RECORD, run__task=7), (_RECORD,)),
    "a seed that is a list": (settings(_RECORD, run__seed=[1]), (_RECORD, "seed")),
    "a score that is a word": (settings(_RECORD, score="high"), (_RECORD, "score")),
    "scores of words": (settings(_RECORD, scores={"validation": {"accuracy": "high"}}), (_RECORD, "scores")),
    "settings that are a list": (settings(_RECORD, config=[1]), (_RECORD, "config")),
    "notes of objects": (settings(_RECORD, notes=[{}]), (_RECORD, "notes")),
    "an error that is a word": (settings(_RECORD, error="a"), (_RECORD, "error")),
    "a number without an end": (put(_RECORD, '{"format": ' + "9" * 100_000 + "}"), (_RECORD,)),
    "predictions elsewhere": (settings(_RECORD, predictions={"validation": "../../../../../secret/p.csv"}), ("",)),
    "predictions by a path": (settings(_RECORD, predictions={"validation": "SECRET/p.csv"}), ("",)),
    "predictions that are a link": (link(_CSV, "SECRET/p.csv"), ("link",)),
    "predictions that are a pipe": (pipe(_CSV), ("works",)),
    "predictions that are a pickle": (put(_CSV, pickled), (_CSV, "holds no predictions")),
    "predictions of another kind": (put(_CSV, "a,b\n1,2\n"), (_CSV, "holds no predictions")),
    "predictions with a huge field": (put(_CSV, 'id,label,prediction\n"' + "x" * 10**6), (_CSV,)),
    "predictions that are not finite": (put(_CSV, "id,label,prediction\na,nan,inf\n"), ("works",)),
    "a plan that is deep": (put("compare.json", DEEP), ("works",)),
}  # fmt: skip

# Files of a comparison, which is then resumed.
COMPARISONS: Cases = {
    "a plan that is deep": (put("compare.json", DEEP), ("compare.json", "cannot be read")),
    "a plan that is a pickle": (put("compare.json", pickled), ("compare.json",)),
    "a plan of another format": (put("compare.json", '{"format": 99, "methods": {}, "id": "a"}'), ("compare.json",)),
    "methods of nothing": (
        put("compare.json", '{"format": 1, "methods": {"bert": {"own": [], "of_tasks": [], "tasks": {}}}, "id": "a"}'),
        ("compare.json",)),
    "a method that trusts": (
        put("compare.json", json.dumps({"format": 1, "id": "a", "methods": {"bert": {"own": [], "of_tasks": [],
            "tasks": {"own": {"model.trust_remote_code": True, "model.name_or_path": "evil/repo"}}}}})),
        ("other settings",)),
    "locks that are a link": (link(".locks/driver", "SECRET/precious"), ("link",)),
    "records that are a link": (link("records", "SECRET"), ("holds the link records",)),
}  # fmt: skip

# Files of a search, which is then resumed.
SEARCHES: Cases = {
    "a plan that is deep": (put("search.json", DEEP), ("search.json", "cannot be read")),
    "a plan that is a pickle": (put("search.json", pickled), ("search.json",)),
    "a plan of words": (put("search.json", '{"format": 1, "id": "a", "search": "x"}'), ("search.json",)),
    "points that are none": (settings("search.json", trials=[[1], "x"]), ("search.json", "is not of its space")),
    "points of other settings": (settings("search.json", trials=[{"x": 1}]), ("search.json", "is not of its space")),
    "points that are no list": (settings("search.json", trials=7), ("search.json",)),
    "a plan that is a link": (link("search.json", "SECRET/config.json"), ("link",)),
}

# Settings files named on the command line.
_TRUST = ("a file cannot ask for", "--trust_remote_code")
FILES: dict[str, tuple[bytes | str, tuple[str, ...]]] = {
    "settings that run": ("a: !!python/object/apply:os.system ['id']\n", ("not valid YAML",)),
    "settings with a tag": ("training: !evil {seed: 1}\n", ("not valid YAML",)),
    "settings that are a bomb": (BOMB, ("anchors and aliases are not read",)),
    "settings that merge": ("a: &a {seed: 1}\ntraining:\n  <<: *a\n", ("anchors",)),
    "settings that are deep": (DEEP, ("nested too deeply",)),
    "settings that name themselves": ("a: &a [*a]\n", ("anchors",)),
    "settings of 1 MB": ("# " + "x" * 2**20, ("bytes",)),
    "settings with a number in sixties": ("training: {seed: 1" + ":59" * 60_000 + "}\n", (":1", "digits")),
    "settings with a key of a list": ("? [a, b]\n: 1\n", ("",)),
    "settings that are a zip": (zipped("a"), ("cannot be read|not valid YAML",)),
    "settings in UTF-16": ("training: {seed: 1}\n".encode("utf-16"), ("cannot be read",)),
    "settings of two documents": ("training: {seed: 1}\n---\ntraining: {seed: 2}\n", ("not valid YAML",)),
    "settings with a key twice": ("training:\n  seed: 1\n  seed: 2\n", (":3: 'seed' is named more",)),
    "settings with a huge number": (f"training: {{seed: {'9' * 5000}}}\n", (":1: a number of",)),
    "settings with a long value": (f"training: {{seed: {'x' * 100_000}}}\n", ("training.seed: got",)),
    "settings with binary": ("training: {seed: !!binary aGVsbG8=}\n", ("training.seed",)),
    "settings that trust": ("model: {trust_remote_code: true}\n", _TRUST),
    "a preset that is a path": ("preset: ../../../etc/passwd\n", ("preset: got", "expected one of")),
    "sections that are lists": ("training: [1]\nmodel: 7\n", ("training",)),
    "names that are numbers": ("1: 2\n", ("1: there is no such setting",)),
    "names that are escapes": ('"\\e]0;taken\\a": 1\n', ("there is no such setting",)),
}  # fmt: skip


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
