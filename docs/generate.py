"""Write the tables of configuration.md and commands.md from the code: settings, presets, commands, flags."""

from __future__ import annotations

import importlib
import json
import re
from collections.abc import Callable
from pathlib import Path

from attentune.cli.flags import ALIASES, SHORTHANDS
from attentune.cli.main import COMMANDS, GROUPS
from attentune.config import load, load_preset
from attentune.config.load import setting_fields

# Arguments that docs/commands.md describes once for all commands.
COMMON = (
    "help help_all version file preset config set quiet precision"
    " executor jobs ray_address cpus_per_run gpus_per_run slurm"
)
# Arguments of one meaning, which its introduction describes.
SHARED = ("RUN", "--text", "--text_pair", "--input_file", "--split", "--task", "--suite", "--fit")
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
    "objective.debias": "training.md#shortcuts-that-a-weak-model-finds",
    "labels.generator": "ssa.md#token-labels",
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
    "data.ignore_words": "training.md#shortcuts-that-you-can-name",
    "data.file_format": "data.md#standard-input",
}


def table(header: str, rows: list[str]) -> str:
    """Return a Markdown table."""
    return "\n".join([header, re.sub(r"[^|]+", "---", header), *rows]) + "\n"


def presets() -> str:
    """Return the table of presets."""
    ours = sorted(file.stem for file in Path(load.__file__).parent.glob("presets/*.yaml"))
    facts = ((name, load_preset(name)) for name in ours)
    rows = [f"| `{name}` | {one['description'].rstrip('.')} |" for name, one in facts]
    return table("| preset | method |", rows)


def flags() -> str:
    """Return the table of other names of flags."""
    names: dict[str, list[str]] = {}
    for name, meant in ALIASES.items():
        names.setdefault(f"--{'model_name_or_path' if meant == 'name_or_path' else meant}", []).append(name)
    for name, (setting, value) in SHORTHANDS.items():
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
    """Return a default in YAML."""
    return value if isinstance(value, str) else json.dumps(value)


def meaning(name: str, facts: dict) -> str:
    """Return the help text of a setting with its range, its choices and a link."""
    text, low, high = facts["help"], facts.get("minimum"), facts.get("maximum")
    if high is not None:
        text += f"; {low} to {high}"
    text += "" if text.endswith(".") else "."
    if facts.get("choices"):
        plugin = " or of a [plug-in](architecture.md#parts-from-other-packages)" if facts.get("plugins") else ""
        text += f" One of {', '.join(f'`{choice}`' for choice in facts['choices'])}{plugin}."
    if name in SEE:
        text += f" See [{SEE[name].partition('.')[0].replace('-', ' ')}]({SEE[name]})."
    return text.replace("|", "\\|")


def commands() -> str:
    """Return the table of commands, by group."""
    rows = []
    for group, summaries in GROUPS.items():
        rows.append(f"| **{group}** | |")
        rows += [f"| [`{name}`](#{name}) | {summary} |" for name, summary in summaries.items()]
    return table("| command | what it does |", rows)


def own_flags(command: str, arguments: tuple[str, ...]) -> str:
    """Return the table of the arguments of a command that are no settings, nor common."""
    rows = []
    for action in importlib.import_module(f"attentune.cli.{command}").parser(arguments)._actions:
        if "." in action.dest or action.dest.startswith("alias:") or action.dest in COMMON.split():
            continue
        if action.dest == "format" and action.choices and set(action.choices) <= {"text", "json"}:
            continue
        name = action.option_strings[0] if action.option_strings else action.metavar or action.dest.upper()
        if name in SHARED:
            continue
        text = (action.help or "").replace("%%", "%").replace("\n", " ").rstrip(".")
        if action.choices and not any(str(choice) in text for choice in action.choices):
            text += f": {', '.join(map(str, action.choices))}"
        rows.append(f"| `{name}` | {text} |")
    return table("| argument | meaning |", rows) if rows else "No arguments of its own.\n"


# The tables of flags: a command, and arguments with which it does another job.
FLAGS: dict[str, tuple[str, tuple[str, ...]]] = {name: (name, ()) for name in COMMANDS} | {
    "compare_runs": ("compare", ("RUN", "RUN")),
    "fit_explainer": ("explain", ("--fit",)),
    "hans": ("evaluate", ("--suite",)),
}
PAGES: dict[str, dict[str, Callable[[], str]]] = {
    "configuration.md": {"presets": presets, "flags": flags, "settings": settings},
    "commands.md": {"commands": commands}
    | {f"flags of {name}": lambda given=given: own_flags(*given) for name, given in FLAGS.items()},
}


def written(name: str, page: str) -> str:
    """Return the text of a page with its tables as the code has them."""
    for part, make in PAGES[name].items():
        pattern, text = _PART.format(name=part), make()
        page, count = re.subn(pattern, lambda found, text=text: found[1] + text + found[2], page, flags=re.S)
        assert count == 1, f"{name}: {count} parts named {part}"
    return page


if __name__ == "__main__":
    for name in PAGES:
        path = Path(__file__).parent / name
        path.write_text(written(name, path.read_text(encoding="utf-8")), encoding="utf-8")
