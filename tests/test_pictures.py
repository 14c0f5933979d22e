"""The drawings of the documentation against the code."""

from __future__ import annotations

import dataclasses
import xml.etree.ElementTree as ElementTree
from pathlib import Path

from attentune.config import Config

_SVG = "{http://www.w3.org/2000/svg}"


def choices_of(name: str) -> tuple[str, ...]:
    """Return the choices of a setting of the model."""
    section, field = name.split(".")
    fields = {one.name: one for one in dataclasses.fields(getattr(Config().model, section))}
    return tuple(fields[field].metadata["choices"])


def test_the_overview_shows_the_choices_of_each_slot() -> None:
    drawing = ElementTree.parse(Path(__file__).parents[1] / "docs/images/overview.svg")
    slots = {one.attrib["data-slot"]: one for one in drawing.iter(f"{_SVG}g") if "data-slot" in one.attrib}
    assert set(slots) == {"blur.where", "layer_mix.kind", "token_gate.kind", "head.kind"}
    for name, slot in slots.items():
        texts = [one.text or "" for one in slot.iter(f"{_SVG}text") if "s" in one.attrib["class"].split()]
        shown = " ".join(texts)
        words = [word.strip(" …") for word in shown.split(",")]
        choices = choices_of(name)
        # A list that ends in "…" names some of the choices, any other one all of them.
        assert set(words) <= set(choices), (name, shown)
        assert shown.endswith("…") == (set(words) != set(choices)), (name, shown)
