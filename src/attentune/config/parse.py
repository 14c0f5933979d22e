"""Parse nested mappings into frozen sections; all problems are collected instead of stopping at the first."""

import contextlib
import dataclasses
import difflib
import json
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from attentune.io.files import read_text
from attentune.plugins import MARK, full_name, is_plugin, plugin_names

T = TypeVar("T")

_TRUE = {"true", "yes", "on", "1"}
_FALSE = {"false", "no", "off", "0"}
# Endings of names that are no words.
_LIST_FILES = (".txt", ".csv", ".tsv", ".list", ".yaml", ".json")
_NULL = {"null", "none", "~", ""}
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return " Did you mean 'x'?" for the nearest known word, or an empty string if none is near."""
    near = nearest(word, known)
    return "" if near is None else f" Did you mean {near!r}?"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that was probably meant, whatever its case; None if none is near.

    Words of the same letters come first ("lable" is "label", not "table"), those that begin with the word come last.
    """
    spelt, names = str(word).lower(), {name.lower(): name for name in known}
    near = difflib.get_close_matches(spelt, names, n=10, cutoff=0.6)
    near.sort(key=lambda name: sorted(name) != sorted(spelt))
    begun = [name for name in names if name.startswith(spelt)] if len(spelt.lstrip("-")) > 2 else []
    return next((names[name] for name in (*near, *sorted(begun, key=len))), None)


def format_value(value: Any, limit: int = 200) -> str:
    """Format a value for a message, shortened if it is long."""
    try:
        whole = repr(value)
    except (ValueError, RecursionError) as error:  # an endless number, an endless list
        return f"a {type(value).__name__} ({error})"
    return whole if len(whole) <= limit else f"{whole[:limit]}... ({len(whole)} characters)"


def parse_section(cls: type[T], values: Mapping[str, Any], path: str, problems: list[str]) -> T:
    """Fill a section from a mapping; unknown keys and invalid values are appended to `problems`."""
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    filled: dict[str, Any] = {}
    for key, value in values.items():
        where = f"{path}.{key}" if path else str(key)
        if key not in fields:
            near = did_you_mean(str(key), fields)
            problems.append(f"{where}: there is no such setting.{near} Known here: {', '.join(fields)}.")
        elif not dataclasses.is_dataclass(hints[key]):
            try:
                filled[key] = _parsed(value, hints[key], fields[key].metadata)
            except ValueError as error:
                problems.append(f"{where}: got {format_value(value)}, expected {error}")
        elif isinstance(value, Mapping):
            filled[key] = parse_section(hints[key], value, where, problems)
        elif value is not None:
            names = ", ".join(field.name for field in dataclasses.fields(hints[key]))
            problems.append(f"{where}: got {format_value(value)}, expected a section with {names}.")
    return cls(**filled)


def _parsed(value: Any, hint: Any, facts: Mapping[str, Any]) -> Any:
    """Convert the value of a setting and check it; raise `ValueError` as `coerce` does."""
    if value is False and "no" in facts.get("choices", ()):
        value = "no"  # YAML reads a bare `no` as false
    if facts.get("yaml"):
        value = from_yaml(value)
    if facts.get("columns") and isinstance(value, (list, tuple)):
        value = value[0] if len(value) == 1 else json.dumps(_as_list(value, str), ensure_ascii=False)
    if facts.get("file") and isinstance(value, str):
        value = _lines_of(value)
    if facts.get("words") and isinstance(value, str):
        value = [part.strip() for part in value.split(",")]  # none and null are words here
    parsed = _checked(coerce(value, hint), facts)
    if facts.get("file") and parsed is not None:
        parsed = tuple(filter(None, map(str.strip, parsed))) or None
    return parsed


def _lines_of(value: str) -> str | list[str]:
    """Return the lines of a file, if the value of a list names one; otherwise the value."""
    try:
        path = Path(value.strip()).expanduser()
        is_file = path.is_file()
    except (OSError, ValueError, RuntimeError):  # a long list is no file name, and ~NAME perhaps no folder
        return value
    if is_file:
        try:
            return read_text(path).removeprefix("\ufeff").splitlines()
        except (OSError, ValueError) as error:
            raise ValueError(f"a file of UTF-8 with one a line, but it cannot be read: {error}") from None
    if path.suffix.lower() in _LIST_FILES and not {",", " "} & set(value.strip()):
        raise ValueError("a list, or a file with one a line; there is no file of this name.")
    return value


def from_yaml(value: Any) -> Any:
    """Read a list or mapping in YAML, as it is written on the command line; anything else is returned unchanged."""
    if not isinstance(value, str) or value.strip()[:1] not in ("[", "{"):
        return value
    try:
        return yaml.safe_load(value)
    except (yaml.YAMLError, ValueError):
        return value


def coerce(value: Any, hint: Any) -> Any:
    """Convert a value, or a text from a flag, to the type of a hint; a `ValueError` completes "expected ..."."""
    is_optional = hint is Any or typing.get_origin(hint) in (typing.Union, types.UnionType)
    # A line break or a tab is a value, though there is nothing else in it.
    is_null = isinstance(value, str) and (value.strip() or value).lower() in _NULL
    if is_optional and (value is None or is_null):
        return None
    kind = next(kind for kind in (*typing.get_args(hint), hint) if kind is not type(None)) if is_optional else hint
    if kind is Any:
        return value
    return _as_list(value, typing.get_args(kind)[0]) if typing.get_origin(kind) is tuple else _READERS[kind](value)


def _as_list(value: Any, kind: type) -> tuple[Any, ...]:
    parts = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    if kind is float and not isinstance(parts, (list, tuple)):
        parts = [parts]
    try:
        if isinstance(parts, (list, tuple)):
            return tuple(_READERS[kind](part) for part in parts)
    except ValueError:
        pass
    if kind is float:
        raise ValueError("a list of numbers, such as [0.5, 1] (on the command line: 0.5,1).")
    raise ValueError(
        "a list of names, such as [bad, good] (on the command line: bad,good); YAML reads a bare yes, no or null as"
        " something else: quote it."
    )


def _as_bool(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in _TRUE | _FALSE:
        return text in _TRUE
    raise ValueError("true or false.")


def _as_int(value: Any) -> int:
    with contextlib.suppress(ValueError):
        if isinstance(value, (int, str)) and not isinstance(value, bool) and str(value).lstrip("+-").isdigit():
            return int(value)  # a float has 53 bits
        number = _as_float(value)
        if number == int(number):
            return int(number)
    raise ValueError("a whole number.")


def _as_float(value: Any) -> float:
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        number = float(value)
        if number - number == 0 and not isinstance(value, bool):  # neither NaN nor infinite
            return number
    percent = _PERCENT.fullmatch(value.strip()) if isinstance(value, str) else None
    raise ValueError("a number." if percent is None else f"a number.{_as_share(float(percent[1]))}")


def _as_share(percent: float) -> str:
    return f" {percent:g} % is {percent / 100:g}."


def _as_str(value: Any) -> str:
    if value is None or isinstance(value, (bool, bytes, dict, list, set, tuple)):
        raise ValueError("a text (in quotes, where YAML reads it as something else).")
    return str(value)


_READERS: dict[type, Callable[[Any], Any]] = {bool: _as_bool, int: _as_int, float: _as_float, str: _as_str}


def _plugin(value: Any, choices: Iterable[str], group: str | None) -> str:
    """Return the full name of a part of another package; a `ValueError` completes "expected ..."."""
    known = () if group is None else plugin_names(group)
    if known or (group is not None and is_plugin(value)):
        try:
            return full_name(str(group), str(value))
        except ValueError:
            if is_plugin(value):
                raise
    every = [*choices, *known]
    near = did_you_mean(str(value), [*choices, *(name.rpartition(MARK)[2] for name in known)])
    raise ValueError(f"one of {', '.join(every)}.{near}")


def _checked(value: Any, facts: Mapping[str, Any]) -> Any:
    if value is None:
        return value
    choices = facts.get("choices")
    if choices and value not in choices:
        return _plugin(value, choices, facts.get("plugins"))
    if isinstance(value, tuple):
        return tuple(_checked(part, facts) for part in value)
    low, high = facts.get("minimum"), facts.get("maximum")
    if low is not None and (value < low or (facts.get("open") and value == low)):
        raise ValueError(f"a number {'above' if facts.get('open') else 'of at least'} {low}.")
    if high is not None and value > high:
        raise ValueError(f"a number of at most {high}.{_as_share(value) if high <= 1 < value <= 100 else ''}")
    return value
