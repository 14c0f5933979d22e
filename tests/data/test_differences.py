"""Differences between a split and train: shifted splits are told with numbers, random ones are not."""

import numpy as np

from attentune.data.doctor import examine
from helpers.doctor_samples import make_rows, make_task

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
