"""The portfolio of `attentune auto`: a fixed list of members, in `portfolio.yaml`, from cheap to expensive."""

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from attentune.config.parse import did_you_mean
from attentune.errors import ConfigError

BASELINE = "baseline"
_ROWS = {"single": "single texts", "pair": "pairs of texts"}


@dataclass(frozen=True)
class Member:
    """A model of the portfolio, trained once on each fold."""

    name: str  # its unique name, also that of its folder
    kind: str  # "baseline" or "fine-tuned"
    method: str  # the baseline's or the preset's name
    encoder: str | None = None  # the name or folder of its encoder; None if it has none
    settings: Mapping[str, Any] = field(default_factory=dict)  # overrides of the preset, by dotted name
    cost: float = 1.0  # the time of an update relative to the preset `bert`
    passes: float = 0.0  # how often it predicts all training rows before each epoch
    probed: bool = False  # whether its classifier starts at a linear probe of the training rows
    seed: int = 0  # added to the run's seed
    rows: str | None = None  # "single" or "pair", if it reads only such rows
    columns: bool = False  # whether it reads the columns beside the text
    max_labels: int | None = None  # the most classes that it can have, without several labels per row
    fewest_classes: int = 0  # the fewest classes of a row with one class that it is tried with unless it is named
    most_classes: int | None = None  # the most of them
    adapted: bool = False  # whether its encoder is adapted to the texts before its folds are trained

    @property
    def is_baseline(self) -> bool:
        return self.kind == BASELINE

    def misfit(self, rows: str, task_type: str, num_labels: int, has_columns: bool) -> str | None:
        """Return why it does not take these rows ("single" or "pair") and labels; None if it does."""
        if self.rows is not None and self.rows != rows:
            return f"is for {_ROWS[self.rows]}, but the rows are {_ROWS[rows]}. Leave it out."
        if self.max_labels is not None and task_type == "multi_label":
            return "is for rows with one label each. Leave it out."
        if self.max_labels is not None and num_labels > self.max_labels:
            return f"is for at most {self.max_labels} classes, but there are {num_labels}. Leave it out."
        return "reads columns beside the text. Name some: --extra_columns" if self.columns and not has_columns else None

    def suits(self, classes: int) -> bool:
        """Whether it is tried with so many classes of a row with one class, else 0, unless it is named."""
        return self.fewest_classes <= classes <= (self.most_classes or classes)


@functools.cache
def all_members() -> tuple[Member, ...]:
    """Return the members of `portfolio.yaml`; the encoder of those that have one is ""."""
    text = (resources.files("attentune.automl") / "portfolio.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    members = [Member(**{"method": one["name"], "encoder": "", **one}) for one in content["members"]]
    by_name = {member.name: member for member in members}
    return (*members, *(replace(by_name[name], name=f"{name}-2", seed=1) for name in content["again"]))


def unknown_members(names: Sequence[str], exclude: Sequence[str]) -> list[str]:
    """Return an error for each name that is no member's."""
    known = [member.name for member in all_members()]
    return [
        f"{flag}: got {name!r}, expected some of {', '.join(known)}.{did_you_mean(name, known)}"
        for flag, given in (("--portfolio", names), ("--exclude", exclude))
        for name in given
        if name not in known
    ]


def choose_members(
    *,
    is_pair: bool,
    task_type: str,
    num_labels: int = 2,
    has_columns: bool = False,
    encoders: Sequence[str],
    names: Sequence[str] | None = None,
    exclude: Sequence[str] = (),
    has_unlabeled: bool = False,
) -> tuple[Member, ...]:
    """Choose the members for some rows, in their order; with further encoders again, as NAME@ENCODER."""
    given = ("pair" if is_pair else "single", task_type, num_labels, has_columns)
    misfits = {member.name: member.misfit(*given) for member in all_members()}
    problems = unknown_members(names or (), exclude)
    problems += [f"--portfolio: {name} {misfits[name]}" for name in names or () if misfits.get(name)]
    if problems:
        raise ConfigError(problems)
    fitting = [member for member in all_members() if misfits[member.name] is None]
    classes = num_labels if task_type == "classification" else 0
    chosen = (
        [one for one in fitting if one.name in names]
        if names is not None
        else [one for one in fitting if one.suits(classes) or (one.adapted and has_unlabeled)]
    )
    chosen = [one for one in chosen if one.name not in exclude]
    if not chosen:
        known = ", ".join(member.name for member in fitting)
        raise ConfigError(f"--portfolio and --exclude leave no member. Known for these rows: {known}.")
    if has_columns and not any(member.columns for member in chosen):
        raise ConfigError(
            "--extra_columns: no member reads the columns. Leave them out, or add columns-linear to --portfolio."
        )
    labels = encoder_labels(encoders)
    return tuple(
        member if member.encoder is None else replace(member, name=f"{member.name}{labels[encoder]}", encoder=encoder)
        for member in chosen
        for encoder in (encoders if member.encoder is not None else encoders[:1])
    )


def encoder_labels(encoders: Sequence[str]) -> dict[str, str]:
    """Return what is added to a member's name for each encoder: "" for the first, else "@" and a unique short name."""
    if len(set(encoders)) < len(encoders):
        raise ConfigError(f"--encoders: got {', '.join(encoders)}, expected each encoder once.")
    labels: dict[str, str] = {}
    for encoder in encoders:
        short = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(encoder).name).strip(".-") or "encoder"
        label, number = f"@{short}" if labels else "", 2
        while label in labels.values():
            label, number = f"@{short}-{number}", number + 1
        labels[encoder] = label
    return labels
