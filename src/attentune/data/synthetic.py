"""Short made-up reviews with a planted shortcut, for which it is known which words decide the label.

Each review holds one decisive sentence of one of three kinds, one sentence that names a cinema, and some that say
nothing. Two of the cinema names are the shortcut: in the training and validation rows they go with the label, in the
challenge rows against it, while the decisive words tell the truth everywhere. So a model that leans on the shortcut
scores well on validation and falls on the challenge, and an explanation can be held against the words that decide.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attentune.data import synthetic_vocabulary as vocabulary
from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.errors import ConfigError, StorageError
from attentune.seeding import derive_key, numpy_generator

LABEL_NAMES = ("negative", "positive")
KINDS = ("single", "context", "pair")
# Half of the rows are of the first kind: if all were as frequent, a good word would stand in as many negative as
# positive rows, and a model would have next to nothing to start from but the shortcut.
_KIND_TURNS = ("single", "context", "single", "pair")
SPLITS = ("train", "validation", "challenge")
WORDS_IN_TEXT = (12, 30)
# These rows name a cinema that goes with neither label: they show what the decisive words do on their own.
SHORTCUT_FREE_SHARE = 0.1
_MAX_DRAWS = 2000
_MARK = re.compile(r"\[(\w+)\]|\{(\w+)\}")

Span = tuple[int, int]


@dataclass(frozen=True)
class DemoRow:
    """One made-up review and the truth about it.

    Attributes:
        text: the review.
        label: 0 negative, 1 positive (`LABEL_NAMES`).
        kind: "single" (one word decides), "context" (a word and what reverses it) or "pair" (a good and a bad word,
            whose order decides).
        decisive: the characters `text[start:end]` of each word that decides the label, in reading order.
        shortcut: the characters of the cinema name that goes with a label, or None where the row has none.
    """

    text: str
    label: int
    kind: str
    decisive: tuple[Span, ...]
    shortcut: Span | None


def generate(split: str, n: int, *, seed: int, shortcut_strength: float) -> list[DemoRow]:
    """Make the first `n` rows of a split.

    Labels alternate and kinds take turns (every other one is "single"), independent of each other and of the shortcut.
    The rows of a smaller `n` are the first rows of a larger one. No text, with the cinema's name left out, stands twice
    in a split, or in two splits, whatever the seeds and sizes.

    Args:
        split: "train", "validation" or "challenge". About a third of the sentiment words of the last two never stand
            in the first.
        n: rows.
        seed: the key of all random choices.
        shortcut_strength: in train and validation the chance that the cinema's name goes with the label; in the
            challenge rows the chance that it goes against it. 0.5 is no shortcut at all.

    Raises:
        ConfigError: for an unknown split, a negative `n`, a strength outside 0..1, or more rows than there are texts.
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


def demo_task(
    *, train_size: int = 1600, eval_size: int = 600, seed: int = 42, shortcut_strength: float = 0.8
) -> TaskData:
    """The demo as a task with the splits train, validation and challenge; `eval_size` rows in each of the last two.

    A row's id is "SPLIT-NUMBER"; `look_up` gives the truth behind ids.

    Raises:
        ConfigError: as `generate`.
    """
    sizes = {"train": train_size, "validation": eval_size, "challenge": eval_size}
    splits = {}
    for split, size in sizes.items():
        rows = generate(split, size, seed=seed, shortcut_strength=shortcut_strength)
        splits[split] = TextRows(
            ids=tuple(f"{split}-{index}" for index in range(size)),
            texts=tuple(row.text for row in rows),
            pairs=None,
            labels=np.array([row.label for row in rows], dtype=np.int64),
            source=f"demo ({split})",
        )
    note = (
        f"These reviews are made up: in {100 * shortcut_strength:g} % of the training and validation rows that name "
        "the shortcut, it goes with the label; in the challenge rows it goes against the label as often."
    )
    return TaskData("demo", LabelSpace("classification", LABEL_NAMES), ("accuracy",), splits, (note,))


def look_up(ids: Sequence[str], *, seed: int = 42, shortcut_strength: float = 0.8) -> list[DemoRow]:
    """The rows behind ids of `demo_task`, made again with the same seed and strength.

    Raises:
        ConfigError: for an id that `demo_task` does not give.
    """
    places = []
    for name in ids:
        split, _, number = name.rpartition("-")
        if split not in SPLITS or not (number.isascii() and number.isdigit()):
            raise ConfigError(f"{name!r} is no id of the demo; expected a split and a number, such as 'validation-7'")
        places.append((split, int(number)))
    made = {}
    for split in {split for split, _ in places}:
        size = 1 + max(number for home, number in places if home == split)
        made[split] = generate(split, size, seed=seed, shortcut_strength=shortcut_strength)
    return [made[split][number] for split, number in places]


def write_files(
    folder: str | Path,
    *,
    train_size: int = 1600,
    eval_size: int = 600,
    seed: int = 42,
    shortcut_strength: float = 0.8,
) -> dict[str, Path]:
    """Write train.csv, validation.csv and challenge.csv, to look at or to train on.

    Columns: id, text, label, kind, and decisive and shortcut as JSON ([[start, end], ...]; [start, end] or null).

    Returns:
        The file of each split.

    Raises:
        ConfigError: as `generate`.
        StorageError: where the folder or a file cannot be written.
    """
    sizes = {"train": train_size, "validation": eval_size, "challenge": eval_size}
    paths = {}
    for split, size in sizes.items():
        rows = generate(split, size, seed=seed, shortcut_strength=shortcut_strength)
        paths[split] = Path(folder) / f"{split}.csv"
        _write_whole(paths[split], _as_csv(split, rows))
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
    # Drawn apart from the text, so that nothing in the text can lean with it.
    free, agrees = rng.random() < SHORTCUT_FREE_SHARE, rng.random() < agreement
    if free:
        return _pick(rng, vocabulary.NEUTRAL_VENUES)
    return vocabulary.SHORTCUT_VENUES[label if agrees else 1 - label]


def _draw_row(rng: np.random.Generator, split: str, label: int, kind: str, venue: str, seen: set[str]) -> DemoRow:
    """Draw texts until one is of the right length, belongs to this split and is new."""
    for _ in range(_MAX_DRAWS):
        marked = _draw_marked(rng, split, label, kind)
        if not WORDS_IN_TEXT[0] <= len(marked.split()) <= WORDS_IN_TEXT[1]:
            continue
        # A text belongs to one split for good, by its hash: so no seed and no size can make it leak.
        if derive_key("demo-split", marked) % len(SPLITS) != SPLITS.index(split) or marked in seen:
            continue
        seen.add(marked)
        return _unmark(marked, label, kind, venue)
    raise ConfigError(f"the demo ran out of new {kind} texts for {split} after {len(seen)} rows; ask for fewer")


def _draw_marked(rng: np.random.Generator, split: str, label: int, kind: str) -> str:
    """A whole review with its decisive words in brackets, and {venue} where the cinema's name will stand."""
    fillers = rng.choice(len(vocabulary.FILLER_TEMPLATES), size=rng.integers(0, 3), replace=False)
    sentences = [
        _draw_decisive(rng, split, label, kind),
        _pick(rng, vocabulary.VENUE_TEMPLATES),
        *(vocabulary.FILLER_TEMPLATES[place] for place in fillers),
    ]
    return " ".join(_fill(rng, sentences[place]) for place in rng.permutation(len(sentences)))


def _draw_decisive(rng: np.random.Generator, split: str, label: int, kind: str) -> str:
    """A template of this kind with its sentiment words chosen and bracketed, so that it says what the label says."""
    known = vocabulary.WORD_PAIRS[: vocabulary.TRAIN_WORDS] if split == "train" else vocabulary.WORD_PAIRS
    words = {1: _pick(rng, known)[0], 0: _pick(rng, known)[1]}
    if kind == "pair":
        earlier_decides = bool(rng.integers(2))
        template = _pick(rng, vocabulary.EARLIER_DECIDES if earlier_decides else vocabulary.LATER_DECIDES)
        earlier = label if earlier_decides else 1 - label
        template = template.replace("{earlier}", f"[{words[earlier]}]")
        return template.replace("{later}", f"[{words[1 - earlier]}]")
    if kind == "context":
        return _pick(rng, vocabulary.CONTEXT_TEMPLATES).replace("{word}", f"[{words[1 - label]}]")
    return _pick(rng, vocabulary.SINGLE_TEMPLATES).replace("{word}", f"[{words[label]}]")


def _fill(rng: np.random.Generator, template: str) -> str:
    def choose(mark: re.Match[str]) -> str:
        slot = mark[2]
        return mark[0] if slot is None or slot == "venue" else _pick(rng, vocabulary.SLOTS[slot])

    return _MARK.sub(choose, template)


def _unmark(marked: str, label: int, kind: str, venue: str) -> DemoRow:
    """Take the marks out, put the cinema's name in, and keep where the marked words stand."""
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
        elif venue in vocabulary.SHORTCUT_VENUES:
            shortcut = span
    return DemoRow(text + marked[done:], label, kind, tuple(decisive), shortcut)


def _pick(rng: np.random.Generator, choices: Sequence[Any]) -> Any:
    return choices[int(rng.integers(len(choices)))]


def _as_csv(split: str, rows: Sequence[DemoRow]) -> str:
    sheet = io.StringIO(newline="")
    writer = csv.writer(sheet, lineterminator="\n")
    writer.writerow(("id", "text", "label", "kind", "decisive", "shortcut"))
    for index, row in enumerate(rows):
        spans = (json.dumps(row.decisive), json.dumps(row.shortcut))
        writer.writerow((f"{split}-{index}", row.text, LABEL_NAMES[row.label], row.kind, *spans))
    return sheet.getvalue()


def _write_whole(path: Path, content: str) -> None:
    """Write under another name first, so that a full disk leaves no half file behind."""
    draft = path.with_name(path.name + ".tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(content, encoding="utf-8", newline="")
        draft.replace(path)
    except OSError as error:
        # Where the folder itself is the trouble there is no draft, and taking it away fails too.
        with contextlib.suppress(OSError):
            draft.unlink()
        raise StorageError(f"{path} cannot be written ({error.strerror}); free space or name another folder") from error
