"""A recipe: what one table or figure of a paper needs to be made again. One YAML file each, beside this module."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

import yaml

from attentune.config.parse import did_you_mean
from attentune.errors import ConfigError

KINDS = ("comparison", "explanation", "parameters")
LAYOUTS = ("tasks", "methods")
# What a method of the layout "methods" is called: its column and its row.
BETWEEN = " - "
# A column of the time that training took, over all tasks.
SECONDS = "seconds"


@dataclass(frozen=True)
class Published:
    """The figures of a paper's table.

    Attributes:
        layout: "tasks": a row a method, a column a task; "methods": a row and a column make a method, of one task.
        columns: their titles; of tasks in the order of the recipe's tasks, and perhaps `SECONDS` after them.
        rows: by title, the entries as they are printed; None where the paper has none.
        scale: what a score from 0 to 1 is multiplied with.
        metric: the one that is shown; None for all that a task has.
    """

    layout: str
    columns: tuple[str, ...]
    rows: dict[str, tuple[str | None, ...]]
    scale: float = 100
    metric: str | None = None


@dataclass(frozen=True)
class Sentence:
    """A sentence to explain: its text, its true class, and a word to mask."""

    text: str
    gold: str
    masked: str | None = None


@dataclass(frozen=True)
class Recipe:
    """One table or figure.

    Attributes:
        name: what it is called, as in `attentune reproduce NAME`.
        title, source: what it shows, and where it was published.
        kind: a key of `KINDS`.
        encoder: the paper's.
        tasks: known tasks.
        methods: as in a file of `attentune compare --settings`.
        settings, task_settings: the paper's, for all and by task.
        on_embedded: settings that go before, with the embedded encoder.
        instead: by task another one for where its data are not at hand.
        then: "hans" or "layers", to be done with the trained models.
        sentences: to explain.
        published: the paper's figures, where it has any.
        claims: what it says where it has none.
        differences: in what the recipe is not what the paper did.
    """

    name: str
    title: str
    source: str
    kind: str
    encoder: str
    tasks: tuple[str, ...]
    methods: dict[str, Any]
    settings: dict[str, Any]
    differences: tuple[str, ...]
    task_settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    on_embedded: dict[str, Any] = field(default_factory=dict)
    instead: dict[str, str] = field(default_factory=dict)
    then: str | None = None
    sentences: tuple[Sentence, ...] = ()
    published: Published | None = None
    claims: tuple[str, ...] = ()


@cache
def recipe_names() -> tuple[str, ...]:
    """The names of all recipes, sorted."""
    files = (entry.name for entry in (resources.files("attentune.reproduction") / "recipes").iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml")))


def load_recipe(name: str) -> Recipe:
    """A recipe by its name.

    Raises:
        ConfigError: there is none of this name.
    """
    if name not in recipe_names():
        raise ConfigError(
            f"{name!r}: there is no such recipe.{did_you_mean(name, recipe_names())} Known:"
            f" {', '.join(recipe_names())}."
        )
    text = (resources.files("attentune.reproduction") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    return _parse(name, yaml.safe_load(text))


def _parse(name: str, raw: dict[str, Any]) -> Recipe:
    """A recipe from its YAML file. These files are the project's own: a mistake in one is a bug, not a user's error."""
    values = dict(raw)
    for key in ("tasks", "differences", "claims"):
        values[key] = tuple(values.get(key, ()))
    values["sentences"] = tuple(Sentence(**one) for one in values.get("sentences", ()))
    published = values.pop("published", None)
    if published is not None:
        rows = {title: tuple(entries) for title, entries in published.pop("rows").items()}
        values["published"] = Published(**published | {"columns": tuple(published["columns"])}, rows=rows)
        if values["published"].layout not in LAYOUTS:
            raise ValueError(f"recipe {name}: unknown layout {values['published'].layout!r}")
    if values["kind"] not in KINDS:
        raise ValueError(f"recipe {name}: unknown kind {values['kind']!r}")
    return Recipe(name=name, **values)
