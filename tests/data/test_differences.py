"""Differences between a split and train: shifted splits are told with numbers, random ones are not."""

import datetime

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from attentune.config.schema import DataConfig
from attentune.data.doctor import examine
from attentune.data.load import load_data
from helpers.samples import make_rows, make_task

SHIFTS = ("label-shift", "length-shift", "vocabulary-shift")


def rows_of(generator, count, *, share=0.5, words=8, first=0, source="a.csv"):
    texts = [" ".join(f"w{n}" for n in generator.integers(first, first + 300, words)) for _ in range(count)]
    return make_rows(texts, (generator.random(count) < share).astype(int).tolist(), source=source)


def shifts(train, test, **task):
    found = examine(make_task({"train": train, "test": test}, **task)).findings
    return {finding.kind: finding.message for finding in found if finding.kind in SHIFTS}


def test_each_difference_is_told_once_with_its_numbers():
    generator = np.random.default_rng(0)
    train = rows_of(generator, 800, share=0.54)
    (message,) = shifts(train, rows_of(generator, 600, share=0.68)).items()
    assert message[0] == "label-shift"
    assert "in train" in message[1]
    assert set(shifts(train, rows_of(generator, 600, share=0.54, words=14))) == {"length-shift"}
    assert set(shifts(train, rows_of(generator, 600, share=0.54, first=150))) == {"vocabulary-shift"}
    scores = {"task_type": "regression", "names": ()}
    first, second = (make_rows(train.texts, generator.normal(mean, 1, 800).tolist()) for mean in (0.0, 0.7))
    assert set(shifts(first, second, **scores)) == {"label-shift"}


def test_chance_is_not_told():
    found = []
    for seed in range(60):
        generator = np.random.default_rng(seed)
        found += shifts(rows_of(generator, 300), rows_of(generator, 60))
    assert not found


def days(first, last, count=40):
    start, end = map(datetime.datetime.fromisoformat, (first, last))
    return [start + (end - start) * place / (count - 1) for place in range(count)]


TRAIN, LATER = days("2021-01-04", "2023-12-20"), days("2024-03-02", "2024-06-28")
WAYS = {
    "date": lambda date: date.strftime("%Y-%m-%d"),
    "posted": lambda date: date.isoformat() + "Z",
    "when": lambda date: date.strftime("%Y-%m-%d %H:%M:%S"),
    "day": lambda date: date.strftime("%d/%m/%Y"),
    "sent": lambda date: date.strftime("%d.%m.%Y"),
    "us_date": lambda date: date.strftime("%m/%d/%Y %H:%M"),
    "created_at": lambda date: date.strftime("%a %b %d %H:%M:%S +0000 %Y"),
    "header": lambda date: date.strftime("%B %d, %Y"),
    "created_utc": lambda date: str(int(date.replace(tzinfo=datetime.UTC).timestamp())),
    "timestamp": lambda date: str(int(date.replace(tzinfo=datetime.UTC).timestamp()) * 1000),
}


def write_dated(path, cells, name="date"):
    rows = "".join(
        f'{word} {place},{"yes" if place % 2 else "no"},"{cell}"\n'
        for place, (word, cell) in enumerate(zip(["tea", "cake"] * len(cells), cells, strict=False))
    )
    path.write_text(f"text,label,{name}\n{rows}")
    return str(path)


def time_shift(train, test, **settings):
    data = load_data(DataConfig(train_file=train, test_file=test, **settings), seed=1, allow_doubt=True)
    return [f.message for f in examine(data).findings if f.kind == "time-shift"]


@pytest.mark.parametrize("name", WAYS)
def test_a_later_test_file_is_told_with_its_months(name, tmp_path):
    way = WAYS[name]
    train = write_dated(tmp_path / "a.csv", list(map(way, TRAIN)), name)
    (message,) = time_shift(train, write_dated(tmp_path / "b.csv", list(map(way, LATER)), name))
    assert "the texts are from 2024-03 to 2024-06, those of train from 2021-01 to 2023-12" in message
    assert "half of them" not in message


def test_typed_dates_of_a_parquet_file_and_names_that_differ(tmp_path):
    def write(path, dates, name):
        labels = ["yes", "no"] * (len(dates) // 2)
        columns = {"text": [f"t {n} of {path.name}" for n in range(len(dates))], "label": labels, name: dates}
        pq.write_table(pa.table(columns), path)
        return str(path)

    train = write(tmp_path / "a.parquet", TRAIN, "created")
    (message,) = time_shift(train, write(tmp_path / "b.parquet", [date.date() for date in LATER], "day"))
    assert "from 2024-03 to 2024-06, those of train from 2021-01 to 2023-12" in message


def test_times_that_overlap_are_told_with_their_medians(tmp_path):
    train = write_dated(tmp_path / "a.csv", [date.date() for date in TRAIN])
    test = write_dated(tmp_path / "b.csv", [date.date() for date in days("2023-01-05", "2024-06-28")])
    (message,) = time_shift(train, test)
    assert "2023-01 to 2024-06" in message
    assert "half of them up to 2023-10 and 2022-07" in message
    few = write_dated(tmp_path / "c.csv", [date.date() for date in days("2024-03-02", "2024-06-28", 8)])
    assert "from 2024-03 to 2024-06" in time_shift(train, few)[0]
    years = write_dated(tmp_path / "d.csv", [date.year for date in TRAIN], "year")
    later = write_dated(tmp_path / "e.csv", [date.year for date in LATER], "year")
    assert "from 2024 to 2024, those of train from 2021 to 2023" in time_shift(years, later)[0]


@pytest.mark.parametrize(
    ("train", "test", "name"),
    [
        (TRAIN, TRAIN[::2], "date"),  # the same time
        (["03/04/2021", "05/06/2021"] * 20, ["07/08/2024", "01/02/2024"] * 20, "date"),  # open which is the day
        (["13/04/2021", "05/16/2021"] * 20, ["17/08/2024"] * 40, "date"),  # both orders
        (range(1_500_000_000, 1_500_000_040), range(1_700_000_000, 1_700_000_040), "number"),  # may be ids
        (range(2000, 2040), range(2050, 2090), "price"),
        ([""] * 40, [date.date() for date in LATER], "date"),
        (["soon", "late", "2021-03-04"] * 13, [date.date() for date in LATER], "date"),
    ],
)
def test_what_is_no_date_without_doubt_is_not_compared(train, test, name, tmp_path):
    first, second = write_dated(tmp_path / "a.csv", list(train), name), write_dated(tmp_path / "b.csv", test, name)
    assert time_shift(first, second) == []


def test_one_file_without_dates_is_not_compared(tmp_path):
    train = write_dated(tmp_path / "a.csv", [date.date() for date in TRAIN])
    assert time_shift(train, write_dated(tmp_path / "b.csv", ["x"] * 40, "source")) == []
