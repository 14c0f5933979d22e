"""`attentune tasks`: list the built-in tasks."""

from __future__ import annotations

import json
from collections.abc import Sequence

from attentune.cli.flags import Parser
from attentune.cli.output import table
from attentune.errors import ConfigError


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune tasks",
        description="List the built-in tasks; --format json adds where their files come from.",
    )
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format")
    return made


def run(arguments: Sequence[str]) -> int:
    """List the built-in tasks; return the exit status."""
    parsed, problems = parser().parse(arguments)
    if problems:
        raise ConfigError(problems)
    from attentune.data.builtin import load_spec, spec_names

    specs = [load_spec(name) for name in spec_names()]
    if parsed.format == "json":
        facts = [
            {
                "name": spec.name,
                "title": spec.title,
                "suite": spec.suite,
                "task_type": spec.task_type,
                "labels": list(spec.label_names),
                "metrics": list(spec.metrics),
                "description": spec.description,
                "source": spec.source,
            }
            for spec in specs
        ]
        print(json.dumps(facts, indent=2, ensure_ascii=False))
        return 0
    rows = [(s.name, s.suite, s.task_type, " / ".join(s.metrics), s.description) for s in specs]
    print(table(("task", "suite", "type", "metrics", "description"), rows))
    return 0
