"""Every single setting of a configuration, for tests that go through them."""

import dataclasses
import typing
from collections.abc import Iterator
from functools import reduce
from typing import Any

from attentune.config import Config


def every_setting(cls: Any = Config, path: str = "") -> Iterator[tuple[str, Any, dataclasses.Field]]:
    """The dotted name, type and field of each."""
    hints = typing.get_type_hints(cls)
    for field in dataclasses.fields(cls):
        if dataclasses.is_dataclass(hints[field.name]):
            yield from every_setting(hints[field.name], f"{path}{field.name}.")
        else:
            yield f"{path}{field.name}", hints[field.name], field


def value_of(config: Config, name: str) -> Any:
    return reduce(getattr, name.split("."), config)
