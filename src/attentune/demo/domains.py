"""Real labelled sentences of three domains: reviews of products, restaurants and films.

The sentences come with the package, in `sentences/`; its NOTICE.md has the source and the licence (CC BY 4.0).
"""

from collections import Counter
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from attentune.errors import ConfigError
from attentune.io.files import csv_text, storage_errors, write_text
from attentune.seeding import numpy_generator

LABEL_NAMES = ("negative", "positive")
# The published files by domain.
FILES = {
    "products": "amazon_cells_labelled.txt",
    "restaurants": "yelp_labelled.txt",
    "films": "imdb_labelled.txt",
}
TRAIN_DOMAINS = ("products", "restaurants")
NEW_DOMAIN = "films"
# Held-out sentences of each training domain; all others are for training.
HELD_OUT_ROWS = 200


@dataclass(frozen=True)
class Sentence:
    """A labelled sentence."""

    id: str  # the domain (a key of `FILES`) and the line of the published file, from 1: "films-17"
    text: str  # the sentence
    label: int  # 0 negative, 1 positive (`LABEL_NAMES`)


def read_sentences(domain: str) -> list[Sentence]:
    """Read the 1,000 sentences of a domain, in the order of the published file."""
    content = files("attentune.demo").joinpath("sentences", FILES[domain]).read_bytes().decode("utf-8")
    # Only "\n" ends a line: some sentences contain other characters that str.splitlines breaks at.
    lines = [line.rsplit("\t", 1) for line in content.split("\n") if line]
    return [
        Sentence(f"{domain}-{number}", text.strip(), int(label)) for number, (text, label) in enumerate(lines, start=1)
    ]


def split_sentences(*, train_size: int, seed: int) -> dict[str, list[Sentence]]:
    """Split the sentences into "train", "held_out" and "films".

    "train" has as many sentences about products as about restaurants, "held_out" has `HELD_OUT_ROWS` other sentences
    about each, "films" has all sentences about films. The classes are balanced in each. No text of the other two occurs
    in "train": texts that occur twice in their domain are not held out, and those that occur among the films are.
    """
    largest = sum(len(read_sentences(domain)) - HELD_OUT_ROWS for domain in TRAIN_DOMAINS)
    groups = len(TRAIN_DOMAINS) * len(LABEL_NAMES)
    if train_size % groups or not 0 < train_size <= largest:
        raise ConfigError(
            f"train_size: got {train_size}, expected a multiple of {groups} from {groups} to {largest}: as many"
            " positive as negative sentences of each domain."
        )
    new = read_sentences(NEW_DOMAIN)
    new_texts = {_normalised(one.text) for one in new}
    train: list[Sentence] = []
    held_out: list[Sentence] = []
    for domain in TRAIN_DOMAINS:
        sentences = read_sentences(domain)
        copies = Counter(_normalised(one.text) for one in sentences)
        order = numpy_generator("demo-sentences", seed, domain).permutation(len(sentences))
        texts = {one.id: _normalised(one.text) for one in sentences}
        # The sort is stable: within the three groups, the order stays random.
        shuffled = sorted(
            (sentences[place] for place in order),
            key=lambda one: (texts[one.id] not in new_texts, copies[texts[one.id]] > 1),
        )
        for label in range(len(LABEL_NAMES)):
            own = [one for one in shuffled if one.label == label]
            first = HELD_OUT_ROWS // len(LABEL_NAMES)
            held_out += own[:first]
            train += own[first : first + train_size // groups]
    return {"train": train, "held_out": held_out, "films": new}


def write_files(folder: str | Path, *, train_size: int, seed: int) -> dict[str, Path]:
    """Write the sentences of `split_sentences` to train.csv, held_out.csv and films.csv: id, text, label."""
    folder = Path(folder)
    splits = split_sentences(train_size=train_size, seed=seed)
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    paths = {split: folder / f"{split}.csv" for split in splits}
    for split, sentences in splits.items():
        rows = ((one.id, one.text, LABEL_NAMES[one.label]) for one in sentences)
        write_text(paths[split], csv_text([("id", "text", "label"), *rows]))
    return paths


def _normalised(text: str) -> str:
    return " ".join(text.lower().split())
