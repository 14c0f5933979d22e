"""Parts of other packages: heads, layer mixes, gates, blurs, losses, metrics, label generators, presets, commands.

A package offers a part as an entry point, for example in its `pyproject.toml`:

    [project.entry-points."attentune.heads"]
    layer-max = "my_package.heads:LayerMax"

The part is then a value of its setting (`--set model.head.kind=layer-max`). Settings and saved models name it with its
package, `my-package/layer-max`, so that a run names the package it needs. docs/architecture.md says how each kind of
part is called; `attentune.plugin_checks` checks it.
"""

import difflib
import importlib.util
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar

from attentune.errors import ConfigError

GROUPS = (
    "attentune.heads",
    "attentune.layer_mixes",
    "attentune.token_gates",
    "attentune.blurs",
    "attentune.losses",
    "attentune.metrics",
    "attentune.label_generators",
)
# Between the package and the name of a part.
MARK = "/"
COMMANDS = "attentune.commands"
PRESETS = "attentune.presets"
_FULL_NAME = re.compile(rf"[A-Za-z0-9][\w.-]*{MARK}[\w.-]+")

T = TypeVar("T")


@cache
def plugin_names(group: str) -> tuple[str, ...]:
    """Return the full names, package/name, of the installed parts of a group, sorted."""
    return tuple(sorted(_entry_points(group)))


@cache
def _entry_points(group: str) -> Mapping[str, metadata.EntryPoint]:
    found = {}
    for point in metadata.entry_points(group=group):
        package = "" if point.dist is None else point.dist.name
        found[f"{package}{MARK}{point.name}"] = point
    return found


def full_name(group: str, name: str) -> str:
    known = plugin_names(group)
    if name in known:
        return name
    package, _, short = name.rpartition(MARK)
    alike = [one for one in known if not package and one.rpartition(MARK)[2] == short]
    if len(alike) == 1:
        return alike[0]
    if alike:
        raise ValueError(f"one of {', '.join(alike)}: several packages have a part of this name.")
    if package:
        raise ValueError(
            f"the package {package}, which has this part; it is not installed here, or in another version. Install it:"
            f" pip install {package}"
        )
    near = difflib.get_close_matches(name, [one.rpartition(MARK)[2] for one in known], n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"one of {', '.join(known) or 'the parts of installed packages (there are none)'}.{hint}")


def is_plugin(name: Any) -> bool:
    """Return whether this has the form of the full name of a part of another package."""
    return isinstance(name, str) and _FULL_NAME.fullmatch(name) is not None


def load_plugin(group: str, name: str) -> Any:
    try:
        point = _entry_points(group)[full_name(group, name)]
    except ValueError as error:
        raise ConfigError(f"{name}: got a part of another package, expected {error}") from error
    try:
        return point.load()
    except Exception as error:  # any error of another package
        raise ConfigError(
            f"{name}: {point.value} of another package cannot be imported ({type(error).__name__}: {error}). Update or"
            f" remove the package {name.partition(MARK)[0]}."
        ) from error


def part_of(table: Mapping[str, T], group: str, name: str) -> T:
    """Return the entry of a table of ours, or the part of another package with this full name."""
    if name in table or not is_plugin(name):
        return table[name]
    return load_plugin(group, name)


def require_extra(extra: str, *modules: str, what: str) -> None:
    """Check that the modules of an extra are installed, which `what` needs."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"{what}: needs {', '.join(missing)}, not installed; run: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return the command that installs an extra here.

    From the clone if it is installed from one, else by the names of its packages, which an index has whether or not it
    has Attentune; with the pip of this environment, also if the environment is not activated.
    """
    begin = [sys.executable, "-m", "pip", "install"]
    if importlib.util.find_spec("pip") is None and shutil.which("uv"):
        begin = ["uv", "pip", "install", "--python", sys.executable]
    elif Path(shutil.which("pip") or "").parent == Path(sys.executable).parent:
        begin = begin[2:]
    clone = Path(__file__).resolve().parents[2]
    if (clone / "pyproject.toml").is_file():
        return shlex.join([*begin, "-e", f"{clone}[{extra}]"])
    pairs = (line.partition(";")[::2] for line in metadata.requires("attentune") or ())
    names = [requirement.strip() for requirement, marker in pairs if f"'{extra}'" in marker.replace('"', "'")]
    return shlex.join([*begin, *names])


def command_names() -> tuple[str, ...]:
    """Return the commands of other packages: `attentune NAME` calls `run(words)` of the module that NAME stands for."""
    return tuple(name.rpartition(MARK)[2] for name in plugin_names(COMMANDS))


def command_module(name: str) -> Any:
    """Import the module of a command of another package; it has `SUMMARY`, a line of help, and `run`."""
    return load_plugin(COMMANDS, name)
