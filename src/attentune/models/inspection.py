"""Safety checks of a model folder before any library reads it.

Refused are contents that could make transformers or its dependencies run code, read files outside of the folder,
download something, or exhaust the memory.
"""

from __future__ import annotations

import math
import stat
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import CONFIG_MAPPING

from attentune.io.files import read_json

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".h5", ".msgpack")
_SETTINGS_BYTES, _TOKENIZER_BYTES, _HEADER_BYTES = 1 << 23, 1 << 28, 10**8
# The largest known vocabulary has a million entries, the deepest encoder 48 layers.
_LARGEST, _MOST_LAYERS = 1 << 24, 1000
# Weights that a checkpoint may lack, such as a pooler's.
_SLACK = 1 << 24
# What transformers reads.
_SETTINGS = ("config.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
_WORDS = ("tokenizer.json", "vocab.json")
_ATTENTIONS = ("eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3")
CONVERT = (
    "It holds weights as a pickle, which can run code when it is read; only safetensors are read. Convert it in a"
    " sandbox (docs/reliability.md, Pickled weights), or take a copy with model.safetensors."
)


def problem_in(folder: Path, *, trust_remote_code: bool = False) -> str | None:
    """Return why this folder must not be loaded, with a remedy; None if it may."""
    try:
        for entry in sorted(folder.iterdir()):
            problem = _problem_of_entry(entry, folder)
            if problem is not None:
                return f"{entry.name} {problem}"
        has_weights = (folder / WEIGHTS).exists() or (folder / INDEX).exists()
        if not has_weights and any(entry.suffix.lower() in _PICKLES for entry in folder.iterdir()):
            return f"there is no {WEIGHTS}. {CONVERT}"
        return _problem_of_contents(folder, trust_remote_code)
    except (OSError, RuntimeError) as error:  # resolve() raises RuntimeError for a link to itself
        reason = error.strerror if isinstance(error, OSError) else None
        return f"cannot be read ({reason or error}). Change its rights, or use another copy."


def problem_in_settings(values: Any, *, trust_remote_code: bool = False, with_numbers: bool = True) -> str | None:
    """Return why these settings of a model or tokenizer must not be used; None if they may."""
    for name, value in _flat(values):
        key = name.split(".")[-1]
        if key == "auto_map" and not trust_remote_code and not _is_known(values, name):
            return (
                "names code that comes with the model (auto_map). If you trust whoever wrote it, add"
                " --trust_remote_code; else take another model."
            )
        if key in ("quantization_config", "transformers_weights", "gguf_file", "tokenizer_object"):
            return f"sets {key}, which is not read. Take the line out, or use a plain copy of the model."
        if key.endswith(("_file", "_files")) and value:
            return f"names a file of its own ({name}), expected the usual names in its folder. Take the line out."
        if "attn_implementation" in key and isinstance(value, str) and value not in _ATTENTIONS:
            return (
                f"asks for the attention {value[:60]!r}, expected one of {', '.join(_ATTENTIONS)}. Take the line out."
            )
        if with_numbers and isinstance(value, int) and abs(value) > (_MOST_LAYERS if "layers" in key else _LARGEST):
            return f"sets {name} to more than any encoder has. Correct the number, or use another copy."
    return None


def _is_known(values: Any, name: str) -> bool:
    """Whether transformers has this model type built in and therefore ignores the code that comes with it."""
    for section in name.split(".")[:-1]:
        values = values.get(section) if isinstance(values, Mapping) else None
    kind = values.get("model_type") if isinstance(values, Mapping) else None
    return isinstance(kind, str) and kind in CONFIG_MAPPING


def weights_in(folder: Path) -> dict[str, tuple[int, ...]]:
    """Read names and shapes of the folder's weights from the headers of its safetensors files."""
    files = [folder / WEIGHTS]
    if not files[0].exists() and not (folder / INDEX).exists():
        raise ValueError(f"there is no {WEIGHTS}")
    if not files[0].exists():
        files = [folder / name for name in sorted(set(read_json(folder / INDEX)["weight_map"].values()))]
    return {name: shape for file in files for name, shape in _shapes(file).items()}


def check_size(shell: nn.Module, folder: Path) -> None:
    """Check that a model on the meta device, built from its settings, is not larger than its saved weights."""
    wanted = sum(weight.numel() for weight in shell.parameters())
    there = sum(math.prod(shape) for shape in weights_in(folder).values())
    if wanted > there + _SLACK:
        raise ValueError(f"config.json describes a model of {wanted} weights, but its files hold {there}")


def _problem_of_entry(entry: Path, folder: Path) -> str | None:
    if entry.is_symlink() and not entry.is_dir():
        target = entry.resolve()
        homes = [folder.resolve()]
        if folder.resolve().parent.name == "snapshots":  # the hub's cache keeps files outside of the snapshots
            homes.append(folder.resolve().parent.parent / "blobs")
        if not any(target.is_relative_to(home) for home in homes):
            return "is a link out of the folder. Put the file itself there (cp -L)."
        if not target.exists():
            return "is a link to nothing. Use a whole copy of the folder."
    mode = entry.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
        return "is a pipe or a device, expected a file. Use another copy of the folder."
    return None


def _problem_of_contents(folder: Path, trust_remote_code: bool) -> str | None:
    if (folder / "adapter_config.json").exists():
        return (
            "adapter_config.json makes it an adapter of another model. Merge it into that model first, and save both."
        )
    for file in sorted(folder.glob("*.json")):
        if not file.is_file() or file.name not in (*_SETTINGS, *_WORDS):
            continue
        is_tokenizer = file.name in _WORDS
        if file.stat().st_size > (_TOKENIZER_BYTES if is_tokenizer else _SETTINGS_BYTES):
            return f"{file.name} is larger than any that is known. Use another copy of the folder."
        if file.name not in ("config.json", "tokenizer_config.json"):
            continue
        try:
            content = read_json(file)
        except ValueError as error:
            return f"{file.name} cannot be read ({error}). Use another copy of the folder."
        if not isinstance(content, Mapping):
            return f"{file.name} holds a {type(content).__name__}, expected an object. Use another copy of the folder."
        problem = problem_in_settings(
            content, trust_remote_code=trust_remote_code, with_numbers=file.name == "config.json"
        )
        if problem is not None:
            return f"{file.name} {problem}"
    return _problem_of_weights(folder)


def _problem_of_weights(folder: Path) -> str | None:
    if not (folder / WEIGHTS).exists() and (folder / INDEX).exists():
        try:
            names = set(read_json(folder / INDEX)["weight_map"].values())
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return f"{INDEX} cannot be read ({error}). Use another copy of the folder."
        for name in names:
            if not isinstance(name, str) or PurePosixPath(name).name != name or not name.endswith(".safetensors"):
                return f"{INDEX} names {str(name)[:60]!r}, expected safetensors files in this folder. {CONVERT}"
    if not (folder / WEIGHTS).exists() and not (folder / INDEX).exists():
        return None
    try:
        weights_in(folder)
    except (ValueError, KeyError, TypeError, OSError) as error:
        return f"holds weights that are no safetensors ({error}). Use another copy of the folder."
    return None


def _shapes(file: Path) -> dict[str, tuple[int, ...]]:
    with file.open("rb") as opened:
        begin = opened.read(8)
    size = struct.unpack("<Q", begin)[0] if len(begin) == 8 else 0
    if not 2 <= size <= min(_HEADER_BYTES, file.stat().st_size - 8):
        kind = "a zip archive, as torch.save makes" if begin[:2] == b"PK" else "no header of one"
        raise ValueError(f"{file.name} begins with {kind}")
    try:
        # safetensors itself checks the rest: types, shapes, and that tensors neither overlap nor leave gaps.
        with safe_open(file, framework="numpy") as tensors:
            return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
    except (SafetensorError, OverflowError) as error:
        raise ValueError(f"{file.name}: {' '.join(str(error).split())[:300]}") from error


def _flat(values: Any) -> Iterator[tuple[str, Any]]:
    """Yield every name and value, nested ones with dotted names."""
    left: list[tuple[str, Any]] = [("", values)]
    while left:
        path, value = left.pop()
        parts = value.items() if isinstance(value, Mapping) else ()
        for key, part in parts:
            name = f"{path}.{key}" if path else str(key)
            yield name, part
            left.append((name, part))
        if isinstance(value, list):
            left += [(path, part) for part in value]
