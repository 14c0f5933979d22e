"""Write the code of the model as flat files, for a folder that transformers loads without Attentune.

transformers copies the files that `auto_map` names and the files that they import from the same folder; it does not
support packages. So each module that the model needs becomes one file, with imports rewritten to these files.
"""

from __future__ import annotations

import ast
import re
from importlib import resources
from pathlib import PurePosixPath

from attentune import __version__

_ROOTS = {
    "attentune.models.configuration": "configuration_attentune",
    "attentune.models.modeling": "modeling_attentune",
    "attentune.models.pipeline": "pipeline_attentune",
}
AUTO_MAP = {
    "AutoConfig": "configuration_attentune.AttentuneConfig",
    "AutoModelForSequenceClassification": "modeling_attentune.AttentuneForSequenceClassification",
}
# For runs that do not predict the most probable class: transformers then uses this pipeline for the task.
PIPELINES = {
    "text-classification": {
        "impl": "pipeline_attentune.AttentunePipeline",
        "pt": ["AutoModelForSequenceClassification"],
        "type": "text",
    }
}
_IMPORT = re.compile(r"^(\s*)from (attentune(?:\.\w+)+) import ", re.MULTILINE)
# Without Attentune, `auto_map` takes the place of the registration.
_REGISTERING = re.compile(r"^Auto\w+\.register\(.*\)\n", re.MULTILINE)
_HEADER = f"# From Attentune {__version__}, Apache License 2.0. Written by `attentune export --format transformers`.\n"


def code_files() -> dict[str, str]:
    """Return the contents of the files by name, starting with those that `AUTO_MAP` and `PIPELINES` name."""
    texts: dict[str, str] = {}
    waiting = list(_ROOTS)
    while waiting:
        module = waiting.pop(0)
        name = f"{_flat(module)}.py"
        if name not in texts:
            text = _source(module)
            texts[name] = _HEADER + _REGISTERING.sub("", _IMPORT.sub(_relative_import, text))
            waiting += _imported(text)
    return texts


def _flat(module: str) -> str:
    return _ROOTS.get(module, module.replace(".", "_"))


def _relative_import(match: re.Match[str]) -> str:
    return f"{match[1]}from .{_flat(match[2])} import "


def _source(module: str) -> str:
    path = PurePosixPath(*module.split(".")[1:]).with_suffix(".py")
    return (resources.files("attentune") / str(path)).read_text(encoding="utf-8")


def _imported(text: str) -> list[str]:
    """Return the modules of Attentune that a module imports."""
    nodes = ast.walk(ast.parse(text))
    names = [node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module is not None]
    return sorted({name for name in names if name.split(".")[0] == "attentune"})
