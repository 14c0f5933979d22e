"""Rows of further files in train: whose they are, what they weigh, and which cuts they take no part in."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attentune.config import DataConfig, load_config
from attentune.data.dataset import TaskData
from attentune.data.doctor import examine
from attentune.data.load import load_data, with_extra
from attentune.errors import DataError, LabelError
from attentune.results import ORIGINAL_TRAIN
from helpers.samples import write_reviews


def write(path: Path, *rows: tuple[object, ...], header: str = "text,label") -> str:
    path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")
    return str(path)


def loaded(folder: Path, *extra: object, weights: tuple[float, ...] | None = None, **settings: Any) -> TaskData:
    config = DataConfig(
        train_file=str(folder / "train.csv"),
        extra_train_files=tuple(map(str, extra)) or None,
        extra_train_weights=weights,
        **settings,
    )
    return load_data(config, seed=settings.pop("seed", 3))


@pytest.fixture
def folder(tmp_path):
    write_reviews(tmp_path / "train.csv", 40, seed=1)
    write_reviews(tmp_path / "silver.csv", 12, seed=5)
    rows = [{"text": "we saw it", "label": "good"}, {"text": "so dull", "label": "bad"}]
    (tmp_path / "web.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_rows_follow_those_of_train_in_the_order_of_the_files(folder):
    plain, mixed = loaded(folder), loaded(folder, folder / "silver.csv", folder / "web.jsonl", weights=(0.5, 0.25))
    own, train = plain.splits["train"], mixed.splits["train"]
    assert train.texts[: len(own)] == own.texts
    assert train.texts[-2:] == ("we saw it", "so dull")
    assert train.labels[-2:].tolist() == [1, 0]
    assert train.weights.tolist() == [1.0] * len(own) + [0.5] * 12 + [0.25] * 2
    assert [(part.rows, part.weight) for part in train.row_sources()] == [(len(own), 1.0), (12, 0.5), (2, 0.25)]
    assert [Path(part.source).name for part in train.row_sources()] == ["train.csv", "silver.csv", "web.jsonl"]
    assert train.where(len(train) - 1).endswith("web.jsonl:2")
    assert train.original_rows.tolist() == list(range(len(own)))
    assert mixed.notes[-2:] == (
        f"Mixed into the {len(own)} rows of train: 12 of {folder / 'silver.csv'}, each with weight 0.5.",
        f"Mixed into the {len(own)} rows of train: 2 of {folder / 'web.jsonl'}, each with weight 0.25.",
    )
    part = train.take([0, len(train) - 1])
    assert part.weights.tolist() == [1.0, 0.25]
    assert part.where(1).endswith("web.jsonl:2")


def test_weights_of_one_are_none_and_files_of_weight_zero_are_not_read(folder):
    assert loaded(folder, folder / "silver.csv").splits["train"].weights is None
    plain, without = loaded(folder), loaded(folder, "nowhere.csv", weights=(0.0,))
    assert without == replace(plain, splits=without.splits)
    assert without.fingerprint() == plain.fingerprint()
    assert without.splits["train"].sources is None


def test_what_is_cut_is_of_the_main_rows_alone(folder):
    """The same rows are scored, calibrated on and left to train on, with and without the extra file."""
    for settings in (
        {},
        {"validation_share": 0.3},
        {"calibration_share": 0.25},
        {"folds": 4, "fold": 2},
        {"max_train_samples": 10, "max_eval_samples": 3},
    ):
        plain, mixed = loaded(folder, **settings), loaded(folder, folder / "silver.csv", weights=(0.5,), **settings)
        assert list(mixed.splits) == list(plain.splits)
        for split, rows in plain.splits.items():
            found = mixed.splits[split]
            assert found.texts[: len(rows)] == rows.texts
            assert len(found) == len(rows) + (12 if split == "train" else 0), (settings, split)
        prints = mixed.fingerprint()
        assert prints.pop(ORIGINAL_TRAIN) == plain.fingerprint()["train"]
        assert prints["train"] != plain.fingerprint()["train"]
        assert {**prints, "train": ""} == {**plain.fingerprint(), "train": ""}


def test_rows_given_from_python_are_mixed_once_and_calibrated_on_their_own(folder):
    from attentune.data.load import with_calibration

    mixed = loaded(folder, folder / "silver.csv", weights=(0.5,))
    config = DataConfig(extra_train_files=(str(folder / "silver.csv"),), calibration_share=0.5)
    assert with_extra(mixed, config) is mixed
    cut = with_calibration(mixed, config, 1)
    assert cut.splits["calibration"].sources == (mixed.splits["train"].source,) * len(cut.splits["calibration"])
    assert len(cut.splits["train"]) + len(cut.splits["calibration"]) == len(mixed.splits["train"])
    assert cut.splits["train"].row_sources()[1].rows == 12


def test_the_print_tells_rows_and_weights_apart(folder):
    def train_print(*weights: float) -> str:
        return loaded(folder, folder / "silver.csv", weights=weights or None).fingerprint()["train"]

    assert train_print(0.5) == train_print(0.5)
    assert len({train_print(), train_print(0.5), train_print(0.25)}) == 3
    write_reviews(folder / "silver.csv", 12, seed=6)
    assert len({train_print(), train_print(0.5), train_print(0.25)}) == 3


def test_other_splits_do_not_need_the_files(folder):
    config = DataConfig(train_file=str(folder / "train.csv"), extra_train_files=("nowhere.csv",))
    assert list(load_data(config, seed=1, splits=("validation",)).splits) == ["validation"]
    with pytest.raises(DataError, match=r"nowhere\.csv"):
        load_data(config, seed=1, splits=("train",))


def test_labels_go_by_name(tmp_path):
    rows = [(f"word {n}", ("fair", "good", "poor")[n % 3]) for n in range(12)]
    write(tmp_path / "train.csv", *rows)
    extra = write(tmp_path / "extra.csv", ("a", "poor"), ("b", " good "), header="text,label")
    data = loaded(tmp_path, extra, task_type="ordinal", label_names=("poor", "fair", "good"))
    assert data.splits["train"].labels[-2:].tolist() == [0, 2]
    unknown = write(tmp_path / "odd.csv", ("a", "poor"), ("b", "godo"), ("c", "bad"), ("d", "bad"))
    with pytest.raises(LabelError) as caught:
        loaded(tmp_path, unknown, task_type="ordinal", label_names=("poor", "fair", "good"))
    assert str(caught.value).startswith(f"{unknown}:3: unknown labels: 'godo' (first at {unknown}:3. Did you mean")
    assert f"'bad' (first at {unknown}:4)" in str(caught.value)
    missing = write(tmp_path / "none.csv", ("a", ""), ("b", "good"))
    with pytest.raises(LabelError, match="has no label here"):
        loaded(tmp_path, missing, task_type="ordinal", label_names=("poor", "fair", "good"))


def test_scores_label_sets_and_pairs(tmp_path):
    write(tmp_path / "train.csv", *((f"word {n}", n / 2) for n in range(10)))
    extra = write(tmp_path / "extra.csv", ("a", 7.25))
    assert loaded(tmp_path, extra, task_type="regression").splits["train"].labels[-1] == 7.25
    write(tmp_path / "train.csv", *((f"word {n}", ("x;y", "y", "")[n % 3]) for n in range(9)))
    extra = write(tmp_path / "extra.csv", ("a", "y;x"), ("b", "x"))
    found = loaded(tmp_path, extra, task_type="multi_label", label_separator=";").splits["train"]
    assert found.labels[-2:].tolist() == [[1, 1], [1, 0]]
    header = "sentence1,sentence2,label"
    write(tmp_path / "train.csv", *((f"a {n}", f"b {n}", "yn"[n % 2]) for n in range(8)), header=header)
    extra = write(tmp_path / "extra.csv", ("one", "two", "y"), header=header)
    assert loaded(tmp_path, extra).splits["train"].pairs[-1] == "two"
    single = write(tmp_path / "single.csv", ("one", "y"))
    with pytest.raises(DataError, match="compares two texts, but only the column 'text' was found"):
        loaded(tmp_path, single)
    write(tmp_path / "train.csv", *((f"a {n}", "yn"[n % 2]) for n in range(8)))
    with pytest.raises(DataError, match="got pairs of texts, but the rows to train on are single texts"):
        loaded(tmp_path, extra)


@pytest.mark.integration
def test_a_known_tasks_own_columns_and_values_count(data_dir, tmp_path):
    own = tmp_path / "more.tsv"
    own.write_text("sentence\tlabel\na fine film\t1\na dull one\t0\n")
    named = tmp_path / "named.csv"
    named.write_text("text,label\ngood fun,positive\n")
    config = DataConfig(task="sst2", data_dir=str(data_dir), extra_train_files=(str(own), str(named)))
    plain = load_data(replace(config, extra_train_files=None), seed=1, splits=("train",))
    train = load_data(config, seed=1, splits=("train",)).splits["train"]
    assert train.texts[-3:] == ("a fine film", "a dull one", "good fun")
    assert train.labels[-3:].tolist() == [1, 0, 1]
    assert len(train) == len(plain.splits["train"]) + 3


def test_the_doctor_finds_extra_rows_among_the_scored_ones(folder):
    plain = loaded(folder)
    scored = plain.splits["validation"]
    leak = write(folder / "leak.csv", (scored.texts[1].upper(), "good"), ("of its own", "bad"))
    report = examine(loaded(folder, leak, weights=(0.5,)))
    assert report.splits["validation"].found_in_train == examine(plain).splits["validation"].found_in_train + 1
    (found,) = [one for one in report.findings if one.kind == "leak"]
    assert f"and train row 0 ({leak}:2)" in " ".join(found.examples)


def test_weights_are_numbers_in_every_spelling():
    for given in ("0.5,2", [0.5, 2], ("0.5", "2")):
        own = {"data.extra_train_files": "a.csv,b.csv", "data.extra_train_weights": given}
        config = load_config(overrides=own)
        assert config.data.extra_train == (("a.csv", 0.5), ("b.csv", 2.0))
        assert np.array(config.data.extra_train_weights).dtype == float
    assert load_config(overrides={"data.extra_train_files": "a.csv", "data.extra_train_weights": 0.5}).data.extra_train
