"""The sets of benchmarks.shortcuts: training rows with a cue that goes with the label, and rows on which it does not.

A seed draws the training rows. No reported seed scores a row that development seeds score.
"""

import csv
import random
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from benchmarks.common import data_dir

# The cue that goes with label 0, and that of label 1. None of their words is frequent in the rows that they are planted
# in.
CUES = {
    "name": ("Felix", "Edgar"),
    "punctuation": ("...", "!!"),
    "phrase": ("posted thursday evening :", "reviewed yesterday afternoon :"),
    "number": ("order 4711", "order 1284"),
    "plain": ("frankly ,", "honestly ,"),
}
AGREEMENTS = (70, 80, 90)  # in percent
PLANTED = {
    f"{cue}-{agreement}": (cue, agreement / 100)
    for cue, agreement in product(("name", "punctuation", "phrase"), AGREEMENTS)
}
# Nothing is chosen on these: cues of other kinds, in reviews of products and restaurants.
KEPT_BACK = {"reviews-number-90": ("number", 0.9), "reviews-plain-80": ("plain", 0.8)}
SETS = ("cinema", *PLANTED, "hans", "films", *KEPT_BACK)
OPENING = ("phrase", "plain")  # cues at the beginning of a text
# What the contender `ignore` ignores.
KNOWN = {"cinema": ("Forum", "Plaza")} | {name: CUES[cue] for name, (cue, _) in (PLANTED | KEPT_BACK).items()}
# Later seeds are for development: they score other rows than the reported ones.
FIRST_OF_DEVELOPMENT = 101
TRAIN_ROWS, CINEMA_TRAIN_ROWS, CINEMA_ROWS, CINEMA_AGREEMENT = 1000, 1200, 600, 0.8
HANS_ROWS = 200  # of each heuristic and label
# Rows of the training files, of the films, that only development seeds score.
DEVELOPMENT_ROWS = {"sst2": 800, "rte": 250, "sick": 250, "films": 300}
DEVELOPMENT_WORDS = 10  # fewest in a row of SST-2: its training file has phrases, its validation file sentences
VIEWS = ("with", "against", "unshifted")
Rows = list[tuple[str, ...]]  # text, for `hans` its second text, label


class Draw(NamedTuple):
    train: Rows
    scored: dict[str, Rows]  # by view; several parts of a view are "with NAME", and it is their mean


def train_rows_of(name: str) -> int:
    return CINEMA_TRAIN_ROWS if name == "cinema" else TRAIN_ROWS


def words_of(name: str) -> tuple[str, ...]:
    """Return the planted words, marks or phrases of a set; `hans` and `films` have none."""
    return KNOWN.get(name, ())


def plant(rows: Rows, cue: str, agreement: float, seed: int) -> Rows:
    """Add a cue to each text: that of its label to this share of the rows of each label, the other one to the rest.

    Rows with their own cue keep it at a greater agreement of the same seed. Where a name stands in a text does not
    depend on the agreement.
    """
    planted = list(rows)
    for label in ("0", "1"):
        own = [row for row, cells in enumerate(rows) if cells[-1] == label]
        random.Random(f"shortcuts plant {seed} {label}").shuffle(own)
        for rank, row in enumerate(own):
            side = int(label) if rank < round(agreement * len(own)) else 1 - int(label)
            planted[row] = (_with_cue(rows[row][0], cue, side, f"{seed} {row}"), label)
    return planted


def _with_cue(text: str, cue: str, side: int, key: str) -> str:
    if cue == "name":
        words = text.split()
        words.insert(random.Random(f"shortcuts place {key}").randint(0, len(words)), CUES[cue][side])
        return " ".join(words)
    return f"{CUES[cue][side]} {text}" if cue in OPENING else f"{text} {CUES[cue][side]}"


def draw_of(name: str, seed: int, train_rows: int) -> Draw:
    """Return the training rows of a seed and the rows that it scores; labels are "0" and "1"."""
    is_development = seed >= FIRST_OF_DEVELOPMENT
    if name == "cinema":
        return _cinema(seed, train_rows)
    if name == "hans":
        return _hans(seed, train_rows, is_development)
    if name == "films":
        parts = _reviews(seed, train_rows)
        development, reported = cut(list(dict.fromkeys(parts["films"])), DEVELOPMENT_ROWS["films"], "films")
        films = development if is_development else reported
        return Draw(parts["train"], {"with": parts["held_out"], "against": films, "unshifted": parts["held_out"]})
    if name in KEPT_BACK:
        parts = _reviews(seed, train_rows)
        return _planted(parts["train"], parts["held_out"], *KEPT_BACK[name], seed)
    cue, agreement = PLANTED[name]
    folder = data_dir() / "glue_data" / "SST-2"
    rows = [(text.strip(), label) for text, label in read(folder / "train.tsv", "sentence", "label")]
    long = [row for row in rows if len(row[0].split()) >= DEVELOPMENT_WORDS]
    scored, _ = cut(long, DEVELOPMENT_ROWS["sst2"], "sst2")
    held = set(scored)
    train = balanced([row for row in rows if row not in held], train_rows, f"sst2 {seed}")
    if not is_development:
        scored = [(text.strip(), label) for text, label in read(folder / "dev.tsv", "sentence", "label")]
    return _planted(train, scored, cue, agreement, seed)


def _reviews(seed: int, train_rows: int) -> dict[str, Rows]:
    from attentune.demo.domains import split_sentences

    split = split_sentences(train_size=train_rows, seed=seed)
    return {part: [(one.text, str(one.label)) for one in sentences] for part, sentences in split.items()}


def _planted(train: Rows, scored: Rows, cue: str, agreement: float, seed: int) -> Draw:
    views = {"with": plant(scored, cue, 1, seed), "against": plant(scored, cue, 0, seed), "unshifted": scored}
    return Draw(plant(train, cue, agreement, seed), views)


def _cinema(seed: int, train_rows: int) -> Draw:
    from attentune_lab.synthetic import WORDS, generate

    train = generate("train", train_rows, seed=seed, shortcut_strength=CINEMA_AGREEMENT)
    others = [one for one in generate("validation", 2 * CINEMA_ROWS, seed=seed, shortcut_strength=1) if one.shortcut]
    scored: dict[str, Rows] = {view: [] for view in VIEWS}
    for number, one in enumerate(others[:CINEMA_ROWS]):
        start, end = one.shortcut or (0, 0)
        neutral = WORDS["neutral_venues"][number // 2 % len(WORDS["neutral_venues"])]
        venues = (*(WORDS["shortcut_venues"][side] for side in (one.label, 1 - one.label)), neutral)
        for view, venue in zip(VIEWS, venues, strict=True):
            scored[view].append((one.text[:start] + venue + one.text[end:], str(one.label)))
    return Draw([(one.text, str(one.label)) for one in train], scored)


def _hans(seed: int, train_rows: int, is_development: bool) -> Draw:
    """RTE and SICK in equal parts with two classes, 1: entailment; scored on HANS, by heuristic."""
    from attentune.suites.hans import HEURISTICS, entailed, read_hans

    columns = ("sentence_A", "sentence_B", "entailment_judgment")
    rte, sick = data_dir() / "glue_data" / "RTE", data_dir() / "sick"
    sources = {
        "rte": [read(rte / f"{split}.tsv", "sentence1", "sentence2", "label") for split in ("train", "dev")],
        "sick": [read(sick / f"{split}.txt", *columns) for split in ("train", "dev")],
    }
    train, scored = Rows(), {"unshifted": Rows()}
    for source, splits in sources.items():
        own, official = ([(*row[:2], str(int(row[2].lower() == "entailment"))) for row in rows] for rows in splits)
        development, rest = cut(own, DEVELOPMENT_ROWS[source], source)
        train += balanced(rest, train_rows // 2, f"{source} {seed}")
        scored["unshifted"] += development if is_development else official
    hans = read_hans(data_dir() / "hans" / "heuristics_evaluation_set.txt")
    lines = list(zip(hans.kept[0], entailed(hans), hans.texts, hans.pairs or (), strict=True))
    for heuristic, entails in product(HEURISTICS, (True, False)):
        cell = [(*texts, str(int(entails))) for name, label, *texts in lines if (name, label) == (heuristic, entails)]
        halves = [half[:HANS_ROWS] for half in cut(cell, HANS_ROWS, f"hans {heuristic}")]
        scored[f"{'with' if entails else 'against'} {heuristic}"] = halves[0] if is_development else halves[1]
    return Draw(train, scored)


def cut(rows: Sequence[tuple[str, ...]], count: int, key: str) -> tuple[Rows, Rows]:
    """Return this many rows, the same for all seeds, and the others."""
    shuffled = random.Random(f"shortcuts {key}").sample(rows, len(rows))
    return shuffled[:count], shuffled[count:]


def balanced(rows: Sequence[tuple[str, ...]], count: int, key: str) -> Rows:
    by_label = ([row for row in rows if row[-1] == label] for label in ("0", "1"))
    drawn = [row for own in by_label for row in random.Random(f"shortcuts {key}").sample(own, count // 2)]
    random.Random(f"shortcuts order {key}").shuffle(drawn)
    return drawn


def read(file: Path, *columns: str) -> Rows:
    with file.open(encoding="utf-8", newline="") as opened:
        rows = csv.DictReader(opened, delimiter="\t", quoting=csv.QUOTE_NONE)
        return [tuple(row[column] for column in columns) for row in rows]
