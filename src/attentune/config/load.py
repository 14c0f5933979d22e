"""Load one `Config` from presets, YAML files and overrides, and write it as YAML."""

import copy
import dataclasses
import functools
import typing
from collections.abc import Mapping
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import yaml

from attentune.config.parse import did_you_mean, format_value, parse_section
from attentune.config.schema import Config
from attentune.config.validation import find_conflicts
from attentune.errors import ConfigError
from attentune.io.files import read_text
from attentune.plugins import PRESETS, load_plugin, plugin_names

_MAX_BYTES = 1 << 18


class _Loader(yaml.SafeLoader):
    """The safe loader, which also refuses anchors, repeated keys and endless numbers."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        event = self.peek_event()
        if getattr(event, "anchor", None) is not None:
            raise ConfigError(f"{event.start_mark.line + 1}: YAML anchors and aliases are not read; write it out.")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> Any:
        names = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        repeated = [key for key, _ in node.value if isinstance(key, yaml.ScalarNode) and names.count(key.value) > 1]
        if repeated:
            line = repeated[-1].start_mark.line + 1
            raise ConfigError(f"{line}: {repeated[-1].value!r} is named more than once; keep one of them.")
        return super().construct_mapping(node, deep)

    def construct_integer(self, node: Any) -> int:
        if len(node.value) > 40:
            raise ConfigError(f"{node.start_mark.line + 1}: a number of {len(node.value)} digits; write a shorter one.")
        return int(self.construct_yaml_int(node))


_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_integer)


def read_yaml(file: str | Path) -> dict[str, Any]:
    """Read the mapping in a YAML file with the safe loader."""
    path = Path(file)
    try:
        content = yaml.load(read_text(path, _MAX_BYTES), Loader=_Loader)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file. Expected a YAML file such as a run's config.yaml.") from None
    except ConfigError as error:
        raise ConfigError(f"{path}:{error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not valid YAML: {' '.join(str(error).split())}") from None
    except Exception as error:  # the safe loader passes on errors of int(), datetime() and others
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise ConfigError(f"{path}: cannot be read as a YAML file of settings: {reason}.") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: holds {type(content).__name__}, expected sections such as model: and training:.")
    return content


_TRUST = "model.trust_remote_code"


def preset_names() -> tuple[str, ...]:
    """The names of the presets, those of installed packages too, sorted."""
    return tuple(sorted(_preset_files()))


def _preset_files() -> dict[str, Traversable]:
    """Return the file of each preset by its name: ours, and the YAML files in the packages of `attentune.presets`."""
    packages = [resources.files(load_plugin(PRESETS, name)) for name in plugin_names(PRESETS)]
    folders = [*packages, resources.files("attentune.config") / "presets"]
    return {entry.name[:-5]: entry for folder in folders for entry in folder.iterdir() if entry.name.endswith(".yaml")}


def model_preset_names() -> tuple[str, ...]:
    """The names of the presets that fine-tune an encoder, sorted: all but the baselines."""
    return tuple(name for name in preset_names() if load_preset(name).get("baseline") is None)


def load_preset(name: str) -> dict[str, Any]:
    """Load a preset: a mapping with `description`, `source` and the sections it sets."""
    files = _preset_files()
    if name not in files:
        known = ", ".join(sorted(files))
        raise ConfigError(f"preset: got {name!r}, expected one of {known}.{did_you_mean(name, files)}")
    return yaml.safe_load(files[name].read_text(encoding="utf-8"))


def load_config(
    file: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    *,
    preset: str | None = None,
    as_record: bool = False,
) -> Config:
    """Build and check a configuration.

    Later sources override earlier ones: defaults, the file's preset, the file, `preset`, `overrides`. `preset` first
    removes the settings that the file has from its own preset.

    Args:
        file: a YAML file of the shape of a run's `config.yaml`.
        overrides: dotted names and values, such as {"training.learning_rate": 2e-5}; strings are converted to the
            type of the setting.
        preset: the name of a preset.
        as_record: the file records a finished run. Otherwise it cannot set `model.trust_remote_code`, which runs
            foreign code: that has to be given as an override.

    Raises:
        ConfigError: with all problems found; unknown names come with the nearest valid one.
    """
    problems: list[str] = []
    merged: dict[str, Any] = {}
    if file is not None:
        content = read_yaml(file)
        model = content.get("model")
        trust = model.get("trust_remote_code") if isinstance(model, Mapping) and not as_record else None
        if trust not in (None, False) and _TRUST not in (overrides or {}):
            problems.append(
                f"{file}: {_TRUST}: got {format_value(trust)}, but a file cannot ask for that, as it runs code that"
                " comes with a model. If you trust the model, add --trust_remote_code; otherwise delete the line."
            )
        _merge(merged, _preset_sections(content.get("preset"), problems))
        _merge(merged, content)
    overrides = dict(overrides or {})
    preset = overrides.pop("preset", None) if preset is None else preset
    if preset is not None:
        # Settings that the file has from its own preset go with it; explicitly set ones stay.
        _remove_equal(merged, _preset_sections(merged.get("preset"), []))
        merged["preset"] = preset
        _merge(merged, _preset_sections(preset, problems))
    for name, value in overrides.items():
        _set(merged, name, value, problems)
    config = parse_section(Config, merged, "", problems)
    problems += find_conflicts(config)
    if problems:
        raise ConfigError(problems)
    return config


def to_dict(config: Any) -> dict[str, Any]:
    """Convert a section, or the whole configuration, to nested mappings of plain values."""
    return {
        field.name: to_dict(value)
        if dataclasses.is_dataclass(value)
        else list(value)
        if isinstance(value, tuple)
        else value
        for field in dataclasses.fields(config)
        for value in (getattr(config, field.name),)
    }


def to_flat(config: Config) -> dict[str, Any]:
    """Return every setting by dotted name, as plain values for JSON; `load_config(overrides=...)` is the inverse."""
    return flatten(to_dict(config))


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested sections as one mapping by dotted name; a setting whose value is a mapping is kept whole."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix}{key}"
        is_section = isinstance(value, Mapping) and name not in setting_fields()
        flat |= flatten(value, f"{name}.") if is_section else {name: value}
    return flat


@functools.cache
def setting_fields(section: Any = Config, prefix: str = "") -> Mapping[str, dataclasses.Field[Any]]:
    """Return the field of each setting by its dotted name, in the order of the sections."""
    hints: dict[str, Any] = typing.get_type_hints(section)
    found: dict[str, dataclasses.Field[Any]] = {}
    for field in dataclasses.fields(section):
        name = prefix + field.name
        is_section = dataclasses.is_dataclass(hints[field.name])
        found |= setting_fields(hints[field.name], f"{name}.") if is_section else {name: field}
    return found


def to_yaml(config: Config) -> str:
    """Write the whole configuration, defaults included, as YAML; `load_config` reads it back unchanged."""
    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)


def _preset_sections(name: Any, problems: list[str]) -> dict[str, Any]:
    if name is None:
        return {}
    try:
        content = load_preset(str(name))
    except ConfigError as error:
        problems += error.problems
        return {}
    return {key: value for key, value in content.items() if key not in ("description", "source")}


def _remove_equal(target: dict[str, Any], values: Mapping[str, Any]) -> None:
    for key, value in values.items():
        if isinstance(value, Mapping) and isinstance(target.get(key), dict):
            _remove_equal(target[key], value)
        elif key in target and target[key] == value:
            del target[key]


def _merge(target: dict[str, Any], extra: Mapping[str, Any], cls: Any = Config) -> None:
    """Merge `extra` into `target`: sections recursively, settings as a whole. Empty sections are ignored."""
    hints = typing.get_type_hints(cls)
    for key, value in extra.items():
        section = hints.get(key)
        if not dataclasses.is_dataclass(section) or not isinstance(target.get(key), dict):
            target[key] = copy.deepcopy(value)
        elif isinstance(value, Mapping):
            _merge(target[key], value, section)
        elif value is not None:
            target[key] = value


def _set(target: dict[str, Any], name: str, value: Any, problems: list[str]) -> None:
    *sections, last = name.split(".")
    place: Any = target
    nested: dict[str, Any] = {last: value}
    for section in sections:
        place = {} if place.get(section) is None else place[section]
        if not isinstance(place, dict):
            problems.append(f"{name}: {section!r} is a single setting, not a section.")
            return
    for section in reversed(sections):
        nested = {section: nested}
    _merge(target, nested)
