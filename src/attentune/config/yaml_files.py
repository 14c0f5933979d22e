"""Read untrusted YAML files of settings: the safe loader with size limits, without anchors and repeated keys."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from attentune.errors import ConfigError
from attentune.io.files import read_text

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
    """Read the mapping in a YAML file with the safe loader.

    Raises:
        ConfigError: the file is missing, too large, not YAML, or not a mapping.
    """
    path = Path(file)
    try:
        content = parse_yaml(read_text(path, _MAX_BYTES))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file. Expected a YAML file such as a run's config.yaml.") from None
    except ConfigError as error:
        raise ConfigError(f"{path}:{error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is not valid YAML: {' '.join(str(error).split())}") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: cannot be read as a YAML file of settings: {error}.") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: holds {type(content).__name__}, expected sections such as model: and training:.")
    return content


def parse_yaml(text: str) -> Any:
    """Parse an untrusted YAML text.

    Raises:
        ConfigError: it has anchors, repeated keys or endless numbers; the message begins with the line.
        ValueError: it holds an invalid value, such as the date 2001-99-99, or is nested too deeply.
        yaml.YAMLError: it is not YAML, or has tags.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except (ConfigError, yaml.YAMLError):
        raise
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except Exception as error:  # the safe loader passes on errors of int(), datetime() and others
        raise ValueError(f"it holds a value that cannot be read ({' '.join(str(error).split())})") from None
