"""A setting as a field of its section."""

from __future__ import annotations

from dataclasses import field
from typing import Any


def setting(default: Any, help: str, **facts: Any) -> Any:
    """A dataclass field with its default, and what `schema` says of metadata."""
    return field(default=default, metadata={"help": help, **facts})
