"""`attentune presets`: list the presets."""

from __future__ import annotations

import json
from collections.abc import Sequence

from attentune.cli.flags import Parser
from attentune.cli.output import table
from attentune.config import load_preset, preset_names
from attentune.errors import ConfigError


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(prog="attentune presets", description="List the presets (methods) for --preset, or show one.")
    made.add_argument("name", nargs="?", help="show the settings of this preset")
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format")
    return made


def run(arguments: Sequence[str]) -> int:
    """List the presets, or show one; return the exit status."""
    parsed, problems = parser().parse(arguments)
    if problems:
        raise ConfigError(problems)
    presets = {name: load_preset(name) for name in ([parsed.name] if parsed.name else preset_names())}
    if parsed.format == "json":
        print(json.dumps(presets, indent=2, ensure_ascii=False))
    elif parsed.name:
        import yaml

        print(yaml.safe_dump(presets[parsed.name], sort_keys=False, allow_unicode=True), end="")
    else:
        rows = [(name, content["description"], content["source"]) for name, content in presets.items()]
        print(table(("preset", "description", "source"), rows))
    return 0
