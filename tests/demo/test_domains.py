"""The demo's sentences: as they were published, and split without overlap, in balance and independently of the size."""

import hashlib
from collections import Counter
from importlib.resources import files
from pathlib import Path

import pytest

from attentune.config import load_config
from attentune.data.load import load_data
from attentune.demo.domains import (
    FILES,
    HELD_OUT_ROWS,
    LABEL_NAMES,
    NEW_DOMAIN,
    TRAIN_DOMAINS,
    read_sentences,
    split_sentences,
    write_files,
)
from attentune.errors import ConfigError

SHA256 = {
    "amazon_cells_labelled.txt": "47003fc0a0d4840b00e96e715b6189bad09e7443a3da41c4cbe12ffc79f86ae3",
    "imdb_labelled.txt": "aef2e49e3da25714d61175e3a6e68eeef74a20a2f914318dc3be9947ea86512d",
    "yelp_labelled.txt": "c76468b7b5c6e56a0804d728345c5f84aa2142ddb214420f61cc9cfd4c00d2ea",
}


def domain_of(row_id: str) -> str:
    return row_id.rpartition("-")[0]


def texts_of(sentences: list) -> set[str]:
    return {" ".join(one.text.lower().split()) for one in sentences}


def test_the_files_are_the_published_ones_with_their_notice() -> None:
    folder = files("attentune.demo") / "sentences"
    assert {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES.values()} == SHA256
    notice = (folder / "NOTICE.md").read_text(encoding="utf-8")
    for wanted in ("Kotzias", "CC BY 4.0", "UCI Machine Learning", "KDD 2015", *SHA256):
        assert wanted in notice


@pytest.mark.parametrize("domain", FILES)
def test_a_domain_has_1000_sentences_half_of_them_positive(domain: str) -> None:
    sentences = read_sentences(domain)
    assert [one.id for one in sentences] == [f"{domain}-{number}" for number in range(1, 1001)]
    assert Counter(one.label for one in sentences) == {0: 500, 1: 500}
    assert all(one.text == one.text.strip() != "" and "\t" not in one.text for one in sentences)


def test_sentences_are_read_whole_with_the_label_of_their_line() -> None:
    films = read_sentences("films")
    assert (films[0].text[:35], films[0].label) == ("A very, very, very slow-moving, aim", 0)
    assert (films[-1].text, films[-1].label) == (
        "All in all its an insult to one's intelligence and a huge waste of money.",
        0,
    )
    # A line of this file has the control character NEL, at which str.splitlines would break it.
    assert any("\x85" in one.text for one in films)


@pytest.mark.parametrize("size", [1600, 400, 4])
def test_no_tested_text_is_in_train_and_all_parts_are_balanced(size: int) -> None:
    splits = split_sentences(train_size=size, seed=42)
    assert not texts_of(splits["train"]) & texts_of(splits["held_out"] + splits["films"])
    every = [one.id for sentences in splits.values() for one in sentences]
    assert len(set(every)) == len(every)
    for name, rows in (("train", size // 4), ("held_out", HELD_OUT_ROWS // 2)):
        counts = Counter((domain_of(one.id), one.label) for one in splits[name])
        assert counts == {(domain, label): rows for domain in TRAIN_DOMAINS for label in (0, 1)}
    assert splits["films"] == read_sentences(NEW_DOMAIN)


def test_a_smaller_size_takes_some_of_the_same_sentences_and_leaves_the_tests_as_they_are() -> None:
    small, large = (split_sentences(train_size=size, seed=7) for size in (200, 1600))
    assert small["held_out"] == large["held_out"]
    assert set(small["train"]) < set(large["train"])


def test_the_seed_chooses_the_held_out_sentences() -> None:
    ids = [{one.id for one in split_sentences(train_size=1600, seed=seed)["held_out"]} for seed in (1, 2, 1)]
    assert ids[0] == ids[2] != ids[1]


@pytest.mark.parametrize("size", [0, -4, 6, 1604])
def test_impossible_sizes_are_refused(size: int) -> None:
    with pytest.raises(ConfigError, match=f"train_size: got {size}, expected a multiple of 4 from 4 to 1600"):
        split_sentences(train_size=size, seed=1)


def test_the_written_files_load_as_the_sentences(tmp_path: Path) -> None:
    splits = split_sentences(train_size=40, seed=3)
    paths = write_files(tmp_path / "new" / "data", train_size=40, seed=3)
    settings = {
        "data.train_file": str(paths["train"]),
        "data.validation_file": str(paths["held_out"]),
        "data.test_file": str(paths["films"]),
        "data.text_column": "text",
        "data.label_column": "label",
        "data.label_names": LABEL_NAMES,
    }
    data = load_data(load_config(overrides=settings).data, seed=1)
    assert data.label_space.names == LABEL_NAMES
    for rows, sentences in zip(data.splits.values(), splits.values(), strict=True):
        assert rows.labels is not None
        assert list(zip(rows.ids, rows.texts, rows.labels.tolist(), strict=True)) == [
            (one.id, one.text, one.label) for one in sentences
        ]
