"""`attentune encoders`: list known encoders, and measure those on this machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from attentune.cli.flags import Parser
from attentune.cli.output import table
from attentune.errors import AttentuneError, ConfigError

_EXAMPLES = """examples:
  attentune encoders
  attentune encoders --measure                         (the speed of those on this machine)
  attentune encoders ./my-encoder embedded --measure
  attentune encoders xlm-roberta-base --format json

size: millions of parameters, without a head. tokens: the longest text. tried: trained (with its weights, see
results/), or family (an encoder of its architecture with random weights, in the tests). at hand: package, cache (of
the Hugging Face hub), folder or no. Any encoder of these families can be used: --model_name_or_path takes a hub name or
a folder."""
_UNKNOWN, _UNMEASURED = "not known", "not measured"


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune encoders",
        usage="attentune encoders [NAME|FOLDER ...] [flags]",
        description="List known encoders for --model_name_or_path, and how to get them without a network.",
        epilog=_EXAMPLES,
    )
    made.add_argument(
        "names", metavar="NAME|FOLDER", nargs="*", help="only these encoders (default: all that are known)"
    )
    made.add_argument(
        "--measure", action="store_true", help="measure the speed of prediction of those on this machine (seconds each)"
    )
    made.add_argument("--format", choices=("text", "json"), default="text", help="output format")
    return made


def run(arguments: Sequence[str]) -> int:
    """List encoders; return the exit status."""
    parsed, problems = parser().parse(arguments)
    if problems:
        raise ConfigError(problems)
    from attentune.models.encoder_list import encoder_facts, known_encoders

    found = encoder_facts(parsed.names) if parsed.names else known_encoders()
    speeds = {facts.name: _speed(facts) for facts in found if facts.folder is not None} if parsed.measure else {}
    if parsed.format == "json":
        content = [
            {
                **asdict(facts),
                "at_hand": facts.at_hand,
                "speed": speeds.get(facts.name),
                "without_network": facts.without_network,
            }
            for facts in found
        ]
        print(json.dumps(content, indent=2, ensure_ascii=False))
        return 0
    print("\n".join(_lines(found, speeds, measured=parsed.measure)))
    return 0


def _speed(facts: Any) -> dict[str, Any]:
    """Measure an encoder; return its speed, or why there is none."""
    from attentune.inference.encoder_speed import measure_encoder

    print(f"measuring {facts.name} ...", file=sys.stderr)
    try:
        speed = asdict(measure_encoder(facts.folder))
    except AttentuneError as error:
        print(f"{facts.name}: not measured: {error}", file=sys.stderr)
        return {"error": str(error)}
    return {**speed, "texts_per_s": round(speed["texts_per_s"], 1), "tokens": round(speed["tokens"], 1)}


def _lines(found: Sequence[Any], speeds: dict[str, dict[str, Any]], *, measured: bool) -> list[str]:
    header = ["encoder", "languages", "size", "layers x width", "tokens", "license", "tried", "at hand", "texts/s"]
    rows = [
        (
            facts.name,
            facts.languages or _UNKNOWN,
            _UNKNOWN if facts.parameters is None else f"{facts.parameters:.1f} M",
            f"{facts.layers or '?'} x {facts.width or '?'}",
            str(facts.longest or _UNKNOWN),
            facts.license or _UNKNOWN,
            facts.tried or "no",
            facts.at_hand,
            _texts_per_s(speeds.get(facts.name, {})),
        )
        for facts in found
    ]
    from attentune.models.encoder_list import without_network

    lines = [table(header, rows, right=(2, 4, 8)), ""]
    if done := next((one for one in speeds.values() if "error" not in one), None):
        from attentune.inference.encoder_speed import WORDS

        lines.append(
            f"texts/s: texts of {WORDS} words, predicted as `attentune predict` does, without loading; precision"
            f" {done['precision']}, device {done['device']}, threads {done['threads']}."
        )
    elif not measured and any(facts.folder is not None for facts in found):
        lines.append("--measure measures the speed of those at hand on this machine.")
    lines.append("Without a network:")
    downloads = [facts for facts in found if facts.is_download]
    shown = [facts for facts in found if not facts.is_download or len(downloads) == 1]
    lines += [f"  {facts.name}: {facts.without_network}" for facts in shown]
    if len(downloads) > 1:
        lines.append(f"  the others: {without_network('NAME', 'FOLDER')}")
    return lines


def _texts_per_s(speed: dict[str, Any]) -> str:
    return f"{speed['texts_per_s']:,.0f}" if "texts_per_s" in speed else _UNMEASURED
