"""The flags that a run of the released program was given, as its dev_results_*.txt tells them."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

_MAX_BYTES = 1 << 20


def recorded_flags(checkpoint: Path) -> dict[str, Any]:
    """Flags by name, from the file that the program wrote beside a checkpoint; empty where there is none to be read.

    The checkpoint dev_0.66 has its file dev_results_0.66.txt beside it; a file in the checkpoint's own folder goes
    before that.
    """
    folder = checkpoint.resolve()
    own = sorted(folder.glob("dev_results_*.txt"))
    beside = folder.parent / f"dev_results_{folder.name.removeprefix('dev_')}.txt"
    file = own[0] if len(own) == 1 else beside
    try:
        if file.stat().st_size > _MAX_BYTES:
            return {}
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    text = next((line.removeprefix("args = ") for line in lines if line.startswith("args = ")), "")
    return _namespace(text)


def _namespace(text: str) -> dict[str, Any]:
    """What `Namespace(a=1, b='x')` holds; nothing is run, and what is no plain value is left out."""
    try:
        call = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}
    if not isinstance(call, ast.Call):
        return {}
    found = {}
    for keyword in call.keywords:
        if keyword.arg is not None and isinstance(keyword.value, ast.Constant):
            found[keyword.arg] = keyword.value.value
    return found
