"""Write the tables of docs/configuration.md from the code: presets, names of flags, settings. Run by `make docs`."""

from __future__ import annotations

import json
import re
from pathlib import Path

from attentune.cli.flags import _SHORTHANDS, ALIASES
from attentune.config import load_preset, preset_names
from attentune.config.load import setting_fields

PAGE = Path(__file__).parent / "configuration.md"
_PART = r"(<!-- {name}, written by generate.py -->\n\n).*?(\n<!-- end -->\n)"
# Where a page has more about a setting than its help text.
SEE = {
    "baseline": "small-data.md#baselines",
    "model.trust_remote_code": "reliability.md#what-a-settings-file-may-hold",
    "model.pair_encoding": "task-attention.md#bi-encoder-pairs",
    "model.blur.where": "sesame.md",
    "model.layer_mix.init": "sesame.md#the-start",
    "model.head.kind": "task-attention.md#the-heads",
    "model.head.combine": "task-attention.md#from-two-vectors-to-a-score",
    "objective.loss": "training.md#losses",
    "labels.generator": "ssa.md#token-labels",
    "labels.reuse_predictions": "ssa.md#cost",
    "training.multi_task": "training.md#several-tasks",
    "training.learning_rate": "training.md#default-settings",
    "training.linear_probe": "training.md#a-linear-probe-first",
    "training.freeze_encoder": "training.md#learning-rates-and-a-frozen-encoder",
    "training.lora_rank": "training.md#adapters",
    "training.l2_sp": "training.md#a-linear-probe-first",
    "training.fused_layers": "training.md#layers-in-c",
    "training.calibrate": "training.md#calibration-and-thresholds",
    "training.baselines": "small-data.md#baselines",
    "training.report_to": "training.md#trackers",
    "data.task": "data.md#known-tasks",
    "data.extra_train_files": "data.md#extra-rows-with-weights",
    "data.folds": "comparing.md#cross-validation",
    "data.long_texts": "data.md#long-texts",
    "data.file_format": "data.md#standard-input",
}


def table(header: str, rows: list[str]) -> str:
    """Return a Markdown table."""
    return "\n".join([header, re.sub(r"[^|]+", "---", header), *rows]) + "\n"


def presets() -> str:
    """Return the table of presets."""
    facts = ((name, load_preset(name)) for name in preset_names())
    rows = [f"| `{name}` | {one['description'].rstrip('.')} | {one['source']} |" for name, one in facts]
    return table("| preset | method | source |", rows)


def flags() -> str:
    """Return the table of other names of flags."""
    names: dict[str, list[str]] = {}
    for name, meant in ALIASES.items():
        names.setdefault(f"--{'model_name_or_path' if meant == 'name_or_path' else meant}", []).append(name)
    for name, (setting, value) in _SHORTHANDS.items():
        names[f"--{setting.split('.')[1]} {value}"] = [name]
    rows = [f"| `{flag}` | {', '.join(f'`--{name}`' for name in short)} |" for flag, short in names.items()]
    return table("| flag | other names |", rows)


def settings() -> str:
    """Return a heading and a table for each section of the settings."""
    rows: dict[str, list[str]] = {}
    for name, field in setting_fields().items():
        section = name.split(".")[0] if "." in name else "preset"
        rows.setdefault(section, []).append(
            f"| `{name}` | `{shown(field.default)}` | {meaning(name, field.metadata)} |"
        )
    header = "| setting | default | meaning |"
    return "\n".join(f"### {section}\n\n{table(header, lines)}" for section, lines in rows.items())


def shown(value: object) -> str:
    """Return a default as it is written in YAML."""
    return value if isinstance(value, str) else json.dumps(value)


def meaning(name: str, facts: dict) -> str:
    """Return the help text of a setting with its bounds, its choices and a link."""
    text, low, high = facts["help"].rstrip("."), facts.get("minimum"), facts.get("maximum")
    if high is not None:
        text += f"; {low} to {high}"
    elif low is not None and low >= 0:
        text += f"; {'above' if facts.get('open') else 'at least'} {low}"
    text += "."
    if facts.get("choices"):
        plugin = " or of a [plug-in](plugins.md)" if facts.get("plugins") else ""
        text += f" One of {', '.join(f'`{choice}`' for choice in facts['choices'])}{plugin}."
    if name in SEE:
        text += f" See [{SEE[name].partition('.')[0].replace('-', ' ')}]({SEE[name]})."
    return text.replace("|", "\\|")


def written(page: str) -> str:
    """Return the page with its tables as the code has them."""
    for name, make in (("presets", presets), ("flags", flags), ("settings", settings)):
        text = make()
        page, count = re.subn(
            _PART.format(name=name), lambda part, text=text: part[1] + text + part[2], page, flags=re.S
        )
        assert count == 1, f"{PAGE}: {count} parts named {name}"
    return page


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
