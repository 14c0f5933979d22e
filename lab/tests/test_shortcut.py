"""The shortcut experiment: means and intervals over seeds and reviews, and the verdicts."""

import json
import math

import numpy as np
import pytest

from attentune.seeding import numpy_generator
from attentune.stats.estimate import Interval, mean_over_seeds_and_examples
from attentune_lab.shortcut import RELIES, RESISTS, UNDECIDED, ShortcutLine, mean_of, sentences


def line(preset: str, low: float, high: float) -> ShortcutLine:
    fall = Interval((low + high) / 2, low, high)
    return ShortcutLine(preset, Interval(0.9, 0.88, 0.92), Interval(0.8, 0.7, 0.9), fall, 10.0, ("run",))


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [
        (-0.02, 0.05, RESISTS),
        (0.01, 0.09, RESISTS),
        (0.01, 0.1, RELIES),
        (0.2, 0.6, RELIES),
        (-0.1, 0.3, UNDECIDED),
        (math.nan, math.nan, UNDECIDED),
    ],
)
def test_verdicts_follow_from_the_interval_of_the_fall(low: float, high: float, verdict: str) -> None:
    assert line("bert", low, high).verdict == verdict


def test_sentences_name_the_presets_of_each_verdict() -> None:
    lines = [line("a", -0.1, 0.3), line("b", -0.02, 0.05), line("c", 0.2, 0.3), line("d", 0.3, 0.4)]
    assert [text.rpartition(": ")[2] for text in sentences(lines)] == ["b.", "c, d.", "a."]
    assert sentences(lines[1:2]) == ["Resist the shortcut (the whole interval of the fall is below 0.1): b."]


def test_means_cover_seeds_and_reviews_and_one_seed_has_no_interval() -> None:
    values_SN = numpy_generator("shortcut").integers(-1, 2, size=(3, 600)).astype(float)
    made, expected = mean_of(values_SN), mean_over_seeds_and_examples(values_SN)
    assert (made.value, made.low, made.high) == (expected.value, expected.low, expected.high)
    assert made.low < np.mean(values_SN) < made.high
    alone = mean_of(values_SN[:1])
    assert alone.value == pytest.approx(values_SN[0].mean())
    assert math.isnan(alone.low)
    assert math.isnan(alone.high)


@pytest.mark.integration
def test_the_shortcut_experiment_prints_its_table(attentune, tiny, tmp_path):
    flags = ("--model_name_or_path", tiny("bert"), "--num_train_epochs", "0.1", "--output_dir", tmp_path / "shortcut")
    status, out, err = attentune("shortcut", "--presets", "bert", *flags)
    assert status == 0, err
    assert "3 of 3:" in err
    assert out.splitlines()[0].split()[:4] == ["preset", "validation", "challenge", "fall"]
    assert out.splitlines()[2].split()[0] == "bert"
    assert "Undecided (" in out or "Resist the shortcut" in out or "Rely on the shortcut" in out
    status, again, _ = attentune("shortcut", "--presets", "bert", *flags, "--format", "json")
    (line,) = json.loads(again)
    assert len(line["folders"]) == 3
    fall = line["validation"]["value"] - line["challenge"]["value"]
    assert line["fall"]["value"] == pytest.approx(fall)
    assert line["fall"]["low"] < fall < line["fall"]["high"]
