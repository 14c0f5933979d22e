"""Synthetic reviews with a spurious shortcut and known ground truth: the words that decide the label.

Each review has one decisive sentence of one of three kinds, one sentence that names a cinema, and neutral ones. Two of
the cinema names are the shortcut: they correlate with the label in the training and validation rows, and with the
opposite label in the challenge rows. The decisive words are always right. So a model that relies on the shortcut scores
well on validation and badly on the challenge rows, and explanations can be compared with the decisive words.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from attentune.errors import ConfigError
from attentune.io.files import csv_text, storage_errors, write_text
from attentune.seeding import derive_key, numpy_generator

LABEL_NAMES = ("negative", "positive")
KINDS = ("single", "context", "pair")
# Half of the rows are "single": with equal shares, positive words would be as frequent in negative rows as in positive
# ones, and a model could learn little but the shortcut.
_KIND_TURNS = ("single", "context", "single", "pair")
SPLITS = ("train", "validation", "challenge")
WORDS_IN_TEXT = (12, 30)
# The share of rows with a cinema that is not correlated with the label.
SHORTCUT_FREE_SHARE = 0.1
_MAX_DRAWS = 2000
WORDS: dict[str, Any] = yaml.safe_load(
    (resources.files("attentune_lab") / "synthetic.yaml").read_text(encoding="utf-8")
)
_MARK = re.compile(r"\[(\w+)\]|\{(\w+)\}")

Span = tuple[int, int]


@dataclass(frozen=True)
class DemoRow:
    text: str  # the review
    label: int  # 0 negative, 1 positive (`LABEL_NAMES`)
    kind: str  # "single" (one word decides)
    decisive: tuple[Span, ...]  # the characters `text[start:end]` of each word that decides the label, in reading order
    shortcut: Span | None  # the characters of the cinema name that is correlated with a label, or None


def generate(split: str, n: int, *, seed: int, shortcut_strength: float) -> list[DemoRow]:
    """Generate the first `n` rows of a split.

    Labels and kinds alternate (every other row is "single"), independently of each other and of the shortcut. The rows
    of a smaller `n` are the first rows of a larger one. Apart from the cinema, no text is repeated within or between
    splits, for any seeds and sizes.
    """
    _check(split, n, shortcut_strength)
    agreement = 1 - shortcut_strength if split == "challenge" else shortcut_strength
    rows: list[DemoRow] = []
    seen: set[str] = set()
    for index in range(n):
        label, kind = index % 2, _KIND_TURNS[index // 2 % len(_KIND_TURNS)]
        venue = _draw_venue(numpy_generator("demo-shortcut", seed, split, index), label, agreement)
        rows.append(_draw_row(numpy_generator("demo-text", seed, split, index), split, label, kind, venue, seen))
    return rows


def write_files(
    folder: str | Path,
    *,
    train_size: int = 1600,
    eval_size: int = 600,
    seed: int = 42,
    shortcut_strength: float = 0.8,
) -> dict[str, Path]:
    """Write train.csv, validation.csv and challenge.csv.

    The columns are id, text, label, kind, decisive and shortcut. The last two are JSON: [[start, end], ...], and
    [start, end] or null.
    """
    sizes = {"train": train_size, "validation": eval_size, "challenge": eval_size}
    paths = {}
    with storage_errors(folder):
        Path(folder).mkdir(parents=True, exist_ok=True)
    for split, size in sizes.items():
        rows = generate(split, size, seed=seed, shortcut_strength=shortcut_strength)
        paths[split] = Path(folder) / f"{split}.csv"
        write_text(paths[split], _as_csv(split, rows))
    return paths


def _check(split: str, n: int, shortcut_strength: float) -> None:
    problems = []
    if split not in SPLITS:
        problems.append(f"the demo has no split {split!r}; expected one of: {', '.join(SPLITS)}")
    if n < 0:
        problems.append(f"{n} rows were asked for; expected 0 or more")
    if not 0 <= shortcut_strength <= 1:
        problems.append(f"shortcut_strength is {shortcut_strength}; expected a chance from 0 to 1")
    if problems:
        raise ConfigError(problems)


def _draw_venue(rng: np.random.Generator, label: int, agreement: float) -> str:
    # A separate generator, so that the shortcut is independent of the text.
    free, agrees = rng.random() < SHORTCUT_FREE_SHARE, rng.random() < agreement
    if free:
        return _pick(rng, WORDS["neutral_venues"])
    return WORDS["shortcut_venues"][label if agrees else 1 - label]


def _draw_row(rng: np.random.Generator, split: str, label: int, kind: str, venue: str, seen: set[str]) -> DemoRow:
    """Draw texts until one has a valid length, belongs to this split and is new."""
    for _ in range(_MAX_DRAWS):
        marked = _draw_marked(rng, split, label, kind)
        if not WORDS_IN_TEXT[0] <= len(marked.split()) <= WORDS_IN_TEXT[1]:
            continue
        # The split of a text is a function of its hash, so that no seed or size leaks it.
        if derive_key("demo-split", marked) % len(SPLITS) != SPLITS.index(split) or marked in seen:
            continue
        seen.add(marked)
        return _unmark(marked, label, kind, venue)
    raise ConfigError(f"the demo ran out of new {kind} texts for {split} after {len(seen)} rows; ask for fewer")


def _draw_marked(rng: np.random.Generator, split: str, label: int, kind: str) -> str:
    """Draw a review with its decisive words in brackets, and {venue} for the name of the cinema."""
    fillers = rng.choice(len(WORDS["filler"]), size=rng.integers(0, 3), replace=False)
    sentences = [
        _draw_decisive(rng, split, label, kind),
        _pick(rng, WORDS["venue"]),
        *(WORDS["filler"][place] for place in fillers),
    ]
    return " ".join(_fill(rng, sentences[place]) for place in rng.permutation(len(sentences)))


def _draw_decisive(rng: np.random.Generator, split: str, label: int, kind: str) -> str:
    """Fill a template of this kind with sentiment words, in brackets, that match the label."""
    known = WORDS["train_words"] + (WORDS["other_words"] if split != "train" else [])
    words = {1: _pick(rng, known)[0], 0: _pick(rng, known)[1]}
    if kind == "pair":
        which = "earlier_decides" if rng.integers(2) else "later_decides"
        earlier = label if which == "earlier_decides" else 1 - label
        template = _pick(rng, WORDS[which]).replace("{earlier}", f"[{words[earlier]}]")
        return template.replace("{later}", f"[{words[1 - earlier]}]")
    return _pick(rng, WORDS[kind]).replace("{word}", f"[{words[1 - label if kind == 'context' else label]}]")


def _fill(rng: np.random.Generator, template: str) -> str:
    def choose(mark: re.Match[str]) -> str:
        slot = mark[2]
        return mark[0] if slot is None or slot == "venue" else _pick(rng, WORDS["slots"][slot])

    return _MARK.sub(choose, template)


def _unmark(marked: str, label: int, kind: str, venue: str) -> DemoRow:
    """Remove the brackets, insert the name of the cinema, and return the positions of the marked words."""
    text, done = "", 0
    decisive: list[Span] = []
    shortcut: Span | None = None
    for mark in _MARK.finditer(marked):
        text += marked[done : mark.start()]
        done = mark.end()
        word = mark[1] or venue
        span = (len(text), len(text) + len(word))
        text += word
        if mark[1]:
            decisive.append(span)
        elif venue in WORDS["shortcut_venues"]:
            shortcut = span
    return DemoRow(text + marked[done:], label, kind, tuple(decisive), shortcut)


def _pick(rng: np.random.Generator, choices: Sequence[Any]) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _as_csv(split: str, rows: Sequence[DemoRow]) -> str:
    lines = [("id", "text", "label", "kind", "decisive", "shortcut")]
    for index, row in enumerate(rows):
        spans = (json.dumps(row.decisive), json.dumps(row.shortcut))
        lines.append((f"{split}-{index}", row.text, LABEL_NAMES[row.label], row.kind, *spans))
    return csv_text(lines)
