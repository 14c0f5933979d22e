"""Texts that would have effects if a page or a terminal interpreted them (hostile_texts.yaml)."""

from pathlib import Path

import yaml

_TEXTS = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
_TAGS = [tag.format(script) for tag in _TEXTS["tags"] for script in _TEXTS["scripts"] if "{}" in tag]
HOSTILE = (*_TAGS, *_TEXTS["others"])
