"""The demo's sentences, its leaderboard, and its run of `auto`."""

import dataclasses
import hashlib
import json
from collections import Counter
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
from statsmodels.stats.proportion import proportion_confint

from attentune.automl.leaderboard import AutoResult
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
from attentune.demo.leaderboard import FILMS, HELD_OUT, Score, ScoredRun, cells, ranked
from attentune.demo.run import _auto_run, data_settings
from attentune.errors import ConfigError
from attentune.results import to_json
from attentune.runs.records import Predictions, Run, RunRecord
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train

SHA256 = {
    "amazon_cells_labelled.txt": "47003fc0a0d4840b00e96e715b6189bad09e7443a3da41c4cbe12ffc79f86ae3",
    "imdb_labelled.txt": "aef2e49e3da25714d61175e3a6e68eeef74a20a2f914318dc3be9947ea86512d",
    "yelp_labelled.txt": "c76468b7b5c6e56a0804d728345c5f84aa2142ddb214420f61cc9cfd4c00d2ea",
}


def texts_of(sentences: list) -> set[str]:
    return {" ".join(one.text.lower().split()) for one in sentences}


def test_the_files_are_the_published_ones_with_their_notice():
    folder = files("attentune.demo") / "sentences"
    assert {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in FILES.values()} == SHA256
    notice = (folder / "NOTICE.md").read_text(encoding="utf-8")
    for wanted in ("Kotzias", "CC BY 4.0", "UCI Machine Learning", "KDD 2015", *SHA256):
        assert wanted in notice


@pytest.mark.parametrize("domain", FILES)
def test_a_domain_has_1000_sentences_half_of_them_positive(domain):
    sentences = read_sentences(domain)
    assert [one.id for one in sentences] == [f"{domain}-{number}" for number in range(1, 1001)]
    assert Counter(one.label for one in sentences) == {0: 500, 1: 500}
    assert all(one.text == one.text.strip() != "" and "\t" not in one.text for one in sentences)


def test_sentences_are_read_whole_with_the_label_of_their_line():
    films = read_sentences("films")
    assert (films[0].text[:35], films[0].label) == ("A very, very, very slow-moving, aim", 0)
    assert (films[-1].text, films[-1].label) == (
        "All in all its an insult to one's intelligence and a huge waste of money.",
        0,
    )
    # A line of this file has the control character NEL, at which str.splitlines would break it.
    assert any("\x85" in one.text for one in films)


@pytest.mark.parametrize("size", [1600, 400, 4])
def test_no_tested_text_is_in_train_and_all_parts_are_balanced(size):
    splits = split_sentences(train_size=size, seed=42)
    assert not texts_of(splits["train"]) & texts_of(splits["held_out"] + splits["films"])
    every = [one.id for sentences in splits.values() for one in sentences]
    assert len(set(every)) == len(every)
    for name, rows in (("train", size // 4), ("held_out", HELD_OUT_ROWS // 2)):
        counts = Counter((one.id.rpartition("-")[0], one.label) for one in splits[name])
        assert counts == {(domain, label): rows for domain in TRAIN_DOMAINS for label in (0, 1)}
    assert splits["films"] == read_sentences(NEW_DOMAIN)


def test_a_smaller_size_takes_some_of_the_same_sentences_and_leaves_the_tests_as_they_are():
    small, large = (split_sentences(train_size=size, seed=7) for size in (200, 1600))
    assert small["held_out"] == large["held_out"]
    assert set(small["train"]) < set(large["train"])


@pytest.mark.parametrize("size", [6, 1604])
def test_other_sizes_are_refused(size):
    with pytest.raises(ConfigError, match=f"train_size: got {size}, expected a multiple of 4 from 4 to 1600"):
        split_sentences(train_size=size, seed=42)


def test_the_seed_chooses_the_held_out_sentences():
    ids = [{one.id for one in split_sentences(train_size=1600, seed=seed)["held_out"]} for seed in (1, 2, 1)]
    assert ids[0] == ids[2] != ids[1]


def test_the_written_files_load_as_the_sentences(tmp_path):
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
        assert list(zip(rows.ids, rows.texts, rows.labels.tolist(), strict=True)) == [
            (one.id, one.text, one.label) for one in sentences
        ]


# The demo's leaderboard: accuracies by test set, their intervals, the order of the lines


RECORD = RunRecord(
    scores={}, train={}, best=None, config={}, seed=1, versions={}, data_fingerprint={},
    run=Run("own", None, "bert", 1), status="done", metric="accuracy", score=0.5, wall_seconds=12.4,
)  # fmt: skip


def predictions(ids: list[str], labels: list[int], predicted: list[int]) -> Predictions:
    return Predictions(tuple(ids), ("negative", "positive"), np.array(labels), np.array(predicted))


def run_of(method: str, held_out: int, films: int) -> ScoredRun:
    """A run with so many right predictions of 400 and 1,000."""
    parts = {
        name: predictions([str(row) for row in range(rows)], [1] * rows, [1] * right + [0] * (rows - right))
        for name, rows, right in ((HELD_OUT, 400, held_out), (FILMS, 1000, films))
    }
    record = dataclasses.replace(RECORD, run=Run("own", None, method, 1), wall_seconds=61.7)
    return ScoredRun(record, parts, Path(f"runs/{method}"))


@pytest.mark.parametrize(("correct", "rows"), [(0, 10), (10, 10), (370, 400), (899, 1000)])
def test_the_interval_is_wilson_s(correct, rows):
    score = Score(correct, rows)
    assert score.accuracy == correct / rows
    assert score.interval == pytest.approx(proportion_confint(correct, rows, method="wilson"), abs=1e-12)


def test_a_run_is_scored_on_both_test_sets():
    parts = {
        HELD_OUT: predictions(["products-1", "restaurants-3"], [0, 1], [0, 0]),
        FILMS: predictions(["films-2", "films-4", "films-9"], [1, 0, 1], [1, 0, 0]),
    }
    made = ScoredRun(RECORD, parts, Path("runs/bert"))
    assert (made.method, made.scores) == ("bert", {HELD_OUT: Score(1, 2), FILMS: Score(2, 3)})


def test_lines_are_ranked_by_held_out_accuracy_and_then_by_that_on_films():
    lines = [run_of("third", 300, 990), run_of("second", 380, 800), run_of("first", 380, 900)]
    assert [one.method for one in ranked(lines)] == ["first", "second", "third"]


def test_the_table_shows_accuracies_intervals_and_seconds():
    header, rows = cells([run_of("bert", 372, 899)])
    assert header == ("method", "held out", "95 % interval", "films", "95 % interval", "seconds")
    assert rows == [("bert", "0.930", "0.901 to 0.951", "0.899", "0.879 to 0.916", "62")]


# The demo's run of `auto`, whose time may be up before it has scored its rows


@pytest.mark.integration
def test_rows_that_auto_had_no_time_to_score_are_scored(tmp_path):
    folder = tmp_path / "auto"
    settings = data_settings(tmp_path / "data", train_size=40) | {"training.output_dir": str(folder)}
    config = load_config(overrides=settings, preset="tfidf-linear")
    train(config, display=ProgressDisplay(quiet=True))
    result = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**result, "scores": {}}))
    (folder / "auto").mkdir()
    finished = AutoResult(folder, "accuracy", [], "", {"metric": "accuracy"}, {}, 1.0)
    (folder / "auto" / "leaderboard.json").write_text(to_json(finished.to_dict()))
    for file in folder.glob("predictions_*.csv"):
        file.unlink()
    scores = _auto_run(config, 1.0, quiet=True).scores
    assert {name: score.rows for name, score in scores.items()} == {"held out": 400, "films": 1000}
    assert all(score.accuracy > 0.5 for score in scores.values())
