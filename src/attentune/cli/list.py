"""`attentune list`: the known tasks, presets, encoders and settings."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from attentune.cli.flags import FORMAT, Parser, check, command_parser
from attentune.cli.output import table
from attentune.config import load_preset, preset_names
from attentune.config.load import setting_fields
from attentune.config.parse import did_you_mean
from attentune.errors import AttentuneError, ConfigError

_HELP = f"""
attentune list {{tasks,presets,encoders,settings}} [NAME ...] [flags]

List the built-in tasks, the presets (methods), known encoders or the settings, or some by name.

KIND tasks|presets|encoders|settings  what to list
[NAME...]  only these (default: all of them)
--measure  encoders: measure their speed of prediction here (seconds)
{FORMAT}

examples:
  attentune list presets                               (the methods, for --preset)
  attentune list presets ssa-hybrid                    (what it sets)
  attentune list tasks                                 (the built-in tasks, for --task)
  attentune list encoders --measure                    (and the speed of those on this machine)
  attentune list encoders ./my-encoder embedded
  attentune list settings labels                       (of a section, for --set; all without a name)

encoders: size is millions of parameters, without a head; tokens the longest text; tried: trained (with its weights, see
results/), or family (an encoder of its architecture with random weights, in the tests); at hand: package, cache (of
the Hugging Face hub), folder or no. Any encoder of these families can be used: --model_name_or_path takes a hub name or
a folder."""
_UNKNOWN, _UNMEASURED = "not known", "not measured"


def parser(arguments: Sequence[str] = ()) -> Parser:
    """Build the parser of this command."""
    return command_parser("list", _HELP)


def run(arguments: Sequence[str]) -> int:
    """List; return the exit status."""
    parsed, problems = parser().parse(arguments)
    if parsed.measure and parsed.kind != "encoders":
        problems.append(f"--measure: goes with `attentune list encoders`, not with {parsed.kind}.")
    check(problems)
    content, lines = _KINDS[parsed.kind](parsed)
    if parsed.format == "json":
        print(json.dumps(content, indent=2, ensure_ascii=False))
    else:
        print("\n".join(lines))
    return 0


def _chosen(kind: str, names: Sequence[str], known: Sequence[str], named: Sequence[str] = ()) -> Sequence[str]:
    """Return the names that were asked for, or all; a message names all that are known, or those `named`."""
    wrong = [
        f"{kind}: there is no {name!r}, expected one of {', '.join(named or known)}.{did_you_mean(name, known)}"
        for name in names
        if name not in known
    ]
    if wrong:
        raise ConfigError(wrong)
    return names or known


def _tasks(parsed: Any) -> tuple[Any, list[str]]:
    from attentune.data.builtin import load_spec, spec_names

    specs = [load_spec(name) for name in _chosen("tasks", parsed.names, spec_names())]
    content = [
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
    rows = [(s.name, s.suite, s.task_type, " / ".join(s.metrics), s.description) for s in specs]
    return content, [table(("task", "suite", "type", "metrics", "description"), rows)]


def _presets(parsed: Any) -> tuple[Any, list[str]]:
    presets = {name: load_preset(name) for name in parsed.names or preset_names()}
    if parsed.names:
        import yaml

        return presets, [yaml.safe_dump(one, sort_keys=False, allow_unicode=True).rstrip() for one in presets.values()]
    rows = [(name, content["description"], content["source"]) for name, content in presets.items()]
    return presets, [table(("preset", "description", "source"), rows)]


def _settings(parsed: Any) -> tuple[Any, list[str]]:
    known = setting_fields()
    chosen = [
        name
        for name in known
        if not parsed.names or any(name == given or name.startswith(f"{given}.") for given in parsed.names)
    ]
    sections = dict.fromkeys(name.rpartition(".")[0] for name in known if "." in name)
    _chosen("settings", parsed.names, [*sections, *known], [*sections, "or a setting of them"])
    facts = [
        {
            "name": name,
            "default": known[name].default,
            "choices": list(known[name].metadata.get("choices", ())),
            "help": known[name].metadata["help"],
        }
        for name in chosen
    ]
    rows = [
        (
            fact["name"],
            json.dumps(fact["default"]),
            fact["help"] + (f" ({', '.join(fact['choices'])})" if fact["choices"] else ""),
        )
        for fact in facts
    ]
    return facts, [table(("setting", "default", "meaning"), rows)]


def _encoders(parsed: Any) -> tuple[Any, list[str]]:
    from attentune.models.encoder_list import encoder_facts, known_encoders

    found = encoder_facts(parsed.names) if parsed.names else known_encoders()
    speeds = {facts.name: _speed(facts) for facts in found if facts.folder is not None} if parsed.measure else {}
    content = [
        {
            **asdict(facts),
            "at_hand": facts.at_hand,
            "speed": speeds.get(facts.name),
            "without_network": facts.without_network,
        }
        for facts in found
    ]
    return content, _lines(found, speeds, measured=parsed.measure)


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


_KINDS = {"tasks": _tasks, "presets": _presets, "encoders": _encoders, "settings": _settings}
