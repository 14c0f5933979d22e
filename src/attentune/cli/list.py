"""`attentune list`: the known tasks, presets, encoders and settings."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from attentune.cli.flags import FORMAT, check, parser_of
from attentune.cli.output import table
from attentune.config import load_preset, preset_names
from attentune.config.load import setting_fields
from attentune.config.parse import did_you_mean
from attentune.errors import ConfigError

_HELP = f"""
attentune list {{tasks,presets,encoders,settings}} [NAME ...] [flags]

List the built-in tasks, the presets (methods), known encoders or the settings, or some by name.

KIND tasks|presets|encoders|settings  what to list
[NAME...]  only these (default: all of them)
{FORMAT}

examples:
  attentune list presets                               (the methods, for --preset)
  attentune list presets ssa-hybrid                    (what it sets)
  attentune list tasks                                 (the built-in tasks, for --task)
  attentune list encoders                              (and which are on this machine)
  attentune list settings labels                       (of a section, for --set; all without a name)

encoders: size is millions of parameters, without a head; tokens the longest text; tried: trained (with its weights,
see results/), or family (an encoder of its architecture with random weights, in the tests); measured: the
accuracy of a linear model of its frozen vectors (Banking77, 10 rows a class), best first, and the seconds for 1,000
tokens on one core with AVX512-BF16; at hand: package, cache (of the Hugging Face hub), folder or no. Languages,
tokens and license are the authors' figures. Any encoder of these families can be used: --model_name_or_path takes a
hub name or a folder."""
_UNKNOWN = "not known"

parser = parser_of("list", _HELP)


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser().parse(arguments)
    check(problems)
    content, lines = _KINDS[parsed.kind](parsed)
    print(json.dumps(content, indent=2, ensure_ascii=False) if parsed.format == "json" else "\n".join(lines))
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
    names = ("name", "title", "suite", "task_type", "description", "source")
    content = [
        {name: getattr(spec, name) for name in names}
        | {"labels": list(spec.label_names), "metrics": list(spec.metrics)}
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
        {"name": name, "default": known[name].default, "help": known[name].metadata["help"]}
        | {"choices": list(known[name].metadata.get("choices", ()))}
        for name in chosen
    ]
    rows = [
        (
            one["name"],
            json.dumps(one["default"]),
            one["help"] + f" ({', '.join(one['choices'])})" * bool(one["choices"]),
        )
        for one in facts
    ]
    return facts, [table(("setting", "default", "meaning"), rows)]


def _encoders(parsed: Any) -> tuple[Any, list[str]]:
    from attentune.models.encoder_list import encoder_facts, known_encoders, without_network

    found = encoder_facts(parsed.names) if parsed.names else known_encoders()
    content = [{**asdict(one), "at_hand": one.at_hand, "without_network": one.without_network} for one in found]
    header = ("encoder", "languages", "size", "layers x width", "tokens", "license", "tried", "measured", "at hand")
    rows = [
        (
            one.name,
            one.languages or _UNKNOWN,
            _UNKNOWN if one.parameters is None else f"{one.parameters:.1f} M",
            f"{one.layers or '?'} x {one.width or '?'}",
            str(one.longest or _UNKNOWN),
            one.license or _UNKNOWN,
            one.tried or "no",
            "" if one.frozen is None else f"{one.frozen:.3f}, {one.seconds:.2f} s",
            one.at_hand,
        )
        for one in found
    ]
    lines = [table(header, rows, right=(2, 4)), ""]
    firsts = [f"  {one.first}: {one.name}" for one in found if one.first is not None]
    if firsts and not parsed.names:
        lines += ["With a network, try first, beside embedded (attentune auto --encoders embedded,NAME):", *firsts, ""]
    lines.append("Without a network:")
    downloads = [one for one in found if one.is_download]
    shown = [one for one in found if not one.is_download or len(downloads) == 1]
    lines += [f"  {one.name}: {one.without_network}" for one in shown]
    if len(downloads) > 1:
        lines.append(f"  the others: {without_network('NAME', 'FOLDER')}")
    return content, lines


_KINDS = {"tasks": _tasks, "presets": _presets, "encoders": _encoders, "settings": _settings}
