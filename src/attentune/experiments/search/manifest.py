"""What a search's folder says of itself, and what may not change between two commands into it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attentune.errors import CheckpointError
from attentune.experiments.comparison.manifest import FREE, PLACES, make_folder, queue_lock
from attentune.io.files import read_json, write_text

SEARCH_FILE, TRIALS_FILE, WINNER_FILE = "search.json", "trials.json", "config.yaml"
_FORMAT = 1
_SHOWN = 8
# A comparison may have several of these, a search has one.
_DECIDES = ("data.task", "data.max_train_samples")


def description(settings: Mapping[str, Any], space: list[dict[str, Any]], ways: Mapping[str, Any]) -> dict[str, Any]:
    """What must stay the same, as plain values of one level."""
    kept = {name: value for name, value in settings.items() if name not in FREE or name in _DECIDES}
    varied = {f"space {part['name']}": {key: value for key, value in part.items() if key != "name"} for part in space}
    content = {**kept, **varied, **ways}
    return json.loads(json.dumps(content))


def open_search(folder: Path, content: Mapping[str, Any]) -> str:
    """Begin a search in this folder, or go on with the one that is there; the folder's own name is returned.

    Raises:
        CheckpointError: it holds something else, or a search of other things.
        StorageError: it cannot be made or written to.
    """
    make_folder(folder, SEARCH_FILE, "search")
    file = folder / SEARCH_FILE
    with queue_lock(folder):
        if file.exists():
            known = _read(file)
            check_same_search(known["search"], content, str(folder))
            return str(known["id"])
        made = {"format": _FORMAT, "id": uuid.uuid4().hex, "search": content}
        write_text(file, json.dumps(made, indent=1, ensure_ascii=False) + "\n")
    return str(made["id"])


def _read(file: Path) -> dict[str, Any]:
    try:
        content = read_json(file)
        if content["format"] == _FORMAT and isinstance(content["search"], dict) and content["id"]:
            return content
        problem = f"is of format {content['format']!r}, expected {_FORMAT}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        problem = f"cannot be read ({error})"
    raise CheckpointError(f"{file}: {problem}. Name another --output_dir, or delete this file if you know why.")


def check_same_search(
    before: Mapping[str, Any], now: Mapping[str, Any], where: str, *, other_place: bool = False
) -> None:
    """Refuse to go on with a search of something else; `other_place`: its data may lie elsewhere.

    Raises:
        CheckpointError: with what differs.
    """
    allowed = PLACES if other_place else set()
    changes = [
        f"{name}: was {before.get(name, 'not there')!r}, now {now.get(name, 'not there')!r}"
        for name in dict.fromkeys([*before, *now])
        if name not in allowed and before.get(name) != now.get(name)
    ]
    if changes:
        shown = [*changes[:_SHOWN], *([f"and {len(changes) - _SHOWN} more"] if len(changes) > _SHOWN else [])]
        raise CheckpointError(
            f"{where}: was begun as another search, so its trials could not be ranked together: {'; '.join(shown)}. Go"
            " on as it was begun, or name another --output_dir. Only --trials may be raised."
        )
