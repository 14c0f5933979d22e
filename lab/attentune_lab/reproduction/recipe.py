"""Recipes: methods, tasks and settings of a table or figure of a paper, in `recipes/`, or of an experiment of yours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from attentune.config import flatten
from attentune.config.parse import did_you_mean
from attentune.errors import ConfigError

KINDS = ("comparison", "explanation", "parameters")
LAYOUTS = ("tasks", "methods")
# In the layout "methods", joins the titles of the column and the row to the name of a method.
BETWEEN = " - "
# Titles of columns that are not tasks: the training time, summed over all tasks, and its ratio to the baseline's; the
# score on AX of the models of MNLI; the average over GLUE's tasks, as SSA and SESAME call it.
SECONDS, RATIO, AX, AVERAGES = "seconds", "time ratio", "AX", ("Avg", "GLUE score")
NO_TASK = (SECONDS, RATIO, AX, *AVERAGES)
# The end of the title of a row with scores of test rows, whose labels are not public.
TEST = f"{BETWEEN}test"
EMBEDDED = "embedded"
# What `--search` may be besides a number of trials.
GRID, NONE = "grid", "none"


@dataclass(frozen=True)
class Published:
    layout: str  # "tasks": one row per method, one column per task; "methods": one method per cell, for a single task
    columns: tuple[str, ...]  # the titles of the columns
    rows: dict[str, tuple[str | None, ...]]  # the entries of each row as printed, by the row's title
    scale: float = 100  # the factor for scores, which are computed from 0 to 1
    metric: str | None = None  # the metric that is shown; None for all metrics of the task


@dataclass(frozen=True)
class Sentence:
    text: str
    gold: str
    masked: str | None = None


@dataclass(frozen=True)
class RecipeSearch:
    """Which settings the paper searched for each task."""

    spaces: dict[str, dict[str, Any]]  # by method, the values of each setting by dotted name
    choose: str = "score"  # how trials are ranked, as for `attentune search`
    # Values that replace those of a space when the embedded encoder is used.
    on_embedded: dict[str, list[Any]] = field(default_factory=dict)
    instead_of: str = ""  # what the report says if the search is left out


@dataclass(frozen=True)
class Recipe:
    name: str  # the name, as in `attentune reproduce NAME`
    # title, source: what the table or figure shows, and where it was published.
    title: str
    source: str
    kind: str  # one of `KINDS`
    encoder: str  # the encoder in the paper
    tasks: tuple[str, ...]  # names of built-in tasks
    methods: dict[str, Any]  # the methods, as in a file for `attentune compare --settings`
    # settings, task_settings: the paper's settings, for all tasks and by task.
    settings: dict[str, Any]
    differences: tuple[str, ...]  # how the recipe differs from the paper's experiment
    task_settings: dict[str, dict[str, Any]] = field(default_factory=dict)
    # Settings that override them when the embedded encoder is used.
    on_embedded: dict[str, Any] = field(default_factory=dict)
    instead: dict[str, str] = field(default_factory=dict)  # the substitutes for tasks whose data may be unavailable
    search: RecipeSearch | None = None  # the search of settings for each method and task; None for none
    then: str | None = None  # a further evaluation of the trained models, "hans", "layers" or "ax"; None for none
    sentences: tuple[Sentence, ...] = ()  # sentences to explain
    published: Published | None = None  # the published values; None if the paper has no table
    claims: tuple[str, ...] = ()  # statements of the paper that the result can be compared with
    train_size: int | None = None  # the training rows of each task, a draw for each seed; None for all


@dataclass(frozen=True)
class Request:
    name: str  # a recipe, or a YAML file with one
    encoder: str = EMBEDDED  # its name or folder
    data_dir: str | None = None  # the folder of the data sets
    tasks: Sequence[str] | None = None  # some of the recipe's; None for all
    seeds: int | Sequence[int] = 3  # how many, or which
    fraction: float = 1.0  # the fraction of each task's rows, above 0
    overrides: Mapping[str, Any] = field(default_factory=dict)  # settings that the recipe's give way to
    search: str | int | None = None  # "none", a number of trials, or "grid", the default
    executor: Any = None  # `ExecutorOptions`

    @property
    def seed_count(self) -> int:
        return self.seeds if isinstance(self.seeds, int) else len(self.seeds)


def parse_search(text: str | int | None) -> str | int | None:
    """Parse the value of `--search`: "grid", "none" or a number of trials; None for the default."""
    if text is None or text in (GRID, NONE):
        return text
    if str(text).isdigit() and int(text) > 0:
        return int(text)
    raise ConfigError(
        f"--search: got {text!r}, expected grid, none or a number of trials, such as 8."
        f"{did_you_mean(str(text), ('grid', 'none'))}"
    )


@cache
def recipe_names() -> tuple[str, ...]:
    files = (entry.name for entry in (resources.files("attentune_lab.reproduction") / "recipes").iterdir())
    return tuple(sorted(name.removesuffix(".yaml") for name in files if name.endswith(".yaml")))


def load_recipe(name: str) -> Recipe:
    """Load a recipe by its name, or a YAML file with one."""
    if name.endswith((".yaml", ".yml")):
        return _read(Path(name))
    if name not in recipe_names():
        raise ConfigError(
            f"{name!r}: there is no such recipe.{did_you_mean(name, recipe_names())} Known:"
            f" {', '.join(recipe_names())}; or a file of yours, such as mine.yaml."
        )
    text = (resources.files("attentune_lab.reproduction") / "recipes" / f"{name}.yaml").read_text(encoding="utf-8")
    return _parse(name, yaml.safe_load(text))


def with_task_settings(methods: Mapping[str, Any], by_task: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return methods with further settings by task, over which their own settings go."""
    extended = {}
    for name, value in methods.items():
        method = dict(value or {})
        own, tasks = flatten(method.get("set") or {}), method.get("tasks") or {}
        added = {
            task: {key: setting for key, setting in settings.items() if key not in own}
            for task, settings in by_task.items()
        }
        method["tasks"] = {task: added.get(task, {}) | flatten(tasks.get(task, {})) for task in (*added, *tasks)}
        extended[name] = method
    return extended


def select_tasks(recipe: Recipe, tasks: Sequence[str] | None) -> list[str]:
    """Return those of the recipe's tasks that are wanted, in its order; all for None."""
    if unknown := [task for task in tasks or () if task not in recipe.tasks]:
        raise ConfigError(f"--tasks: got {', '.join(unknown)}, expected some of {', '.join(recipe.tasks)}.")
    return [task for task in recipe.tasks if tasks is None or task in tasks]


def _read(file: Path) -> Recipe:
    """Read a user's recipe; title, source, encoder, settings and kind have defaults."""
    try:
        raw = yaml.safe_load(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{file}: no such file; expected a recipe, see docs/reproducing.md.") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{file}: cannot be read as YAML: {error}") from error
    known = [one.name for one in fields(Recipe) if one.name != "name"]
    if not isinstance(raw, dict):
        raise ConfigError(f"{file}: got {type(raw).__name__}, expected a mapping with some of {', '.join(known)}.")
    problems = [
        f"{file}: got the key {key!r}, expected some of {', '.join(known)}.{did_you_mean(str(key), known)}"
        for key in raw
        if key not in known
    ]
    problems += [f"{file}: lacks {key!r}, which a recipe needs." for key in ("tasks", "methods") if not raw.get(key)]
    if problems:
        raise ConfigError(problems)
    defaults = {
        "title": file.stem,
        "source": str(file),
        "kind": "comparison",
        "encoder": "embedded",
        "settings": {},
        "differences": (),
    }
    try:
        return _parse(file.name, defaults | raw)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(
            f"{file}: is no recipe ({type(error).__name__}: {error}); see docs/reproducing.md."
        ) from error


def _parse(name: str, raw: dict[str, Any]) -> Recipe:
    values = dict(raw)
    for key in ("tasks", "differences", "claims"):
        values[key] = tuple(values.get(key, ()))
    values["sentences"] = tuple(Sentence(**one) for one in values.get("sentences", ()))
    if "search" in values:
        values["search"] = RecipeSearch(**values["search"])
    published = values.pop("published", None)
    if published is not None:
        rows = {title: tuple(entries) for title, entries in published.pop("rows").items()}
        values["published"] = Published(**published | {"columns": tuple(published["columns"])}, rows=rows)
        if values["published"].layout not in LAYOUTS:
            raise ValueError(f"recipe {name}: unknown layout {values['published'].layout!r}")
    if values["kind"] not in KINDS:
        raise ValueError(f"recipe {name}: unknown kind {values['kind']!r}")
    return Recipe(name=name, **values)
