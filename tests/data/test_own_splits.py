"""The splits that are made of one file keep rows with equal texts on one side."""

import csv
import json
import re
from pathlib import Path

import pytest

from attentune.config import load_config
from attentune.data.doctor import examine
from attentune.data.load import load_data
from attentune.data.splits import normalised
from attentune.runs.search_settings import Search, SearchSettings
from attentune.runs.space import Space
from attentune.runs.trials import rows_of

WORDS = ("warm", "cold", "kind", "rude", "quick", "slow", "lovely", "dull", "clean", "noisy")
# Each text as it is, with other case and spaces, decomposed accents, and an invisible sign.
FORMS = ("{} caf\u00e9", " {} CAF\u00c9 ", "{}  cafe\u0301", "{}\u200b caf\u00e9")


def write(path: Path, *, pairs: bool = False) -> str:
    rows = []
    for number, form in enumerate(FORMS):
        for word in WORDS:
            one, other = form.format(word), form.format(word[::-1])
            if pairs and number % 2:
                one, other = other, one
            label = "pos" if WORDS.index(word) % 2 == 0 else "neg"
            rows.append({"text": one, "label": label} | ({"text2": other} if pairs else {}))
    if path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(path)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0], delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def keys(rows):
    both = zip(rows.texts, rows.pairs or [""] * len(rows), strict=True)
    return {frozenset(map(normalised, row)) for row in both}


@pytest.mark.parametrize(("name", "pairs"), [("a.csv", False), ("a.tsv", False), ("a.jsonl", False), ("a.csv", True)])
def test_no_text_is_in_two_splits(tmp_path, name, pairs):
    given = {"data.train_file": write(tmp_path / name, pairs=pairs), "data.text_column": "text"}
    if pairs:
        given["data.text_pair_column"] = "text2"
    for settings in (
        {},
        {"data.validation_share": 0.3, "data.calibration_share": 0.3, "training.calibrate": "temperature"},
        {"data.folds": 5, "data.fold": 2},
        {"data.folds": 3, "data.fold": 1, "data.calibration_share": 0.3, "training.calibrate": "temperature"},
    ):
        data = load_data(load_config(overrides=given | settings).data, seed=1)
        parts = [keys(rows) for rows in data.splits.values()]
        assert len(parts) == 2 + ("data.calibration_share" in settings)
        assert sum(map(len, parts)) == len(set.union(*parts)) == len(WORDS)
        assert all(len(set(rows.labels)) == 2 for rows in data.splits.values())
        together = [note for note in data.notes if re.search("rows .100.0 %. with equal.* texts stay together", note)]
        assert len(together) == len(parts) - 1
        assert not [finding for finding in examine(data).findings if finding.kind == "leak"]
    data = rows_of(Search(SearchSettings(), Space(), {}, 42), load_config(overrides=given))
    assert not keys(data.splits["train"]) & keys(data.splits["validation"])
    assert "stay together" in data.notes[-1]


def test_a_leak_that_cannot_be_avoided_is_not_put_down_to_the_user(tmp_path):
    path = tmp_path / "one.csv"
    path.write_text("text,label\n" + "good one,pos\nbad one,neg\n" * 20)
    data = load_data(load_config(overrides={"data.train_file": str(path)}).data, seed=1)
    assert any("Warning: 40 rows (100.0 %) with equal texts could not be kept together" in note for note in data.notes)
    (leak,) = [finding for finding in examine(data).findings if finding.kind == "leak"]
    assert "cut from one file with too few different texts" in leak.cure
    other = tmp_path / "other.csv"
    other.write_text("text,label\nGood  one,pos\n")
    given = {"data.train_file": str(path), "data.validation_file": str(other)}
    (leak,) = [f for f in examine(load_data(load_config(overrides=given).data, seed=1)).findings if f.kind == "leak"]
    assert leak.cure == "Remove these rows from train."
