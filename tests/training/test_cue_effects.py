"""How far a trained model decides by cues: with and without the word in each validation row, as plain loops."""

import csv
import math
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from attentune.config import load_config
from attentune.data.dataset import LabelSpace
from attentune.data.load import load_data
from attentune.inference.predictor import Predictor, predict_rows
from attentune.training.callbacks import ProgressDisplay
from attentune.training.cue_effects import cue_sentence
from attentune.training.run import train
from helpers.interrupted import run
from helpers.samples import make_rows, settings

Tiny = Callable[..., Path]
WORDS = {"bad": ("dull", "cold"), "good": ("great", "warm")}


def write_planted(folder: Path) -> list[tuple[str, str]]:
    """Write reviews by Felix (bad) and Edgar (good); the validation rows have one of both, or none."""
    rows = {}
    for split, count in (("train", 60), ("validation", 24)):
        rows[split] = []
        for number in range(count):
            label = ("bad", "good")[number % 2]
            name = ("Felix", "Edgar")[number % 2 if split == "train" else number // 2 % 2]
            by = f" by {name}" if split == "train" or number % 3 else ""
            rows[split].append((f"the film{by} was {WORDS[label][number // 4 % 2]} and number{number}", label))
        with (folder / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *rows[split]])
    return rows["validation"]


@pytest.mark.parametrize("changes", [{}, {"training__calibrate": "temperature", "data__calibration_share": 0.2}])
def test_the_effect_is_the_mean_change_of_the_log_odds(tiny: Tiny, tmp_path: Path, changes: dict[str, Any]) -> None:
    rows = write_planted(tmp_path)
    result = run(tmp_path, tiny("bert"), training__learning_rate=3e-3, **changes)
    assert {one["text"]: one["label"] for one in result.cues} == {"Felix": "bad", "Edgar": "good"}
    saved = Predictor.load(tmp_path / "run")
    for cue in result.cues:
        differences, others = [], 0
        for text, _ in rows:
            if cue["text"] not in text.split():
                continue
            odds, predicted = [], []
            for one in (text, text.replace(f"{cue['text']} ", "")):
                (logits,) = predict_rows(saved, make_rows([one], None))
                own = saved.label_space.names.index(cue["label"])
                odds.append(float(logits[own] - logits[1 - own]))
                predicted.append(int(np.argmax(logits)))
            differences.append(odds[0] - odds[1])
            others += predicted[0] != predicted[1]
        assert cue["rows"] == len(differences)
        assert cue["effect"] == pytest.approx(math.fsum(differences) / len(differences), abs=1e-4)
        assert cue["decided"] == others / len(differences)
    assert any(abs(cue["effect"]) > 0.01 for cue in result.cues), "the words are read"


def test_of_many_rows_the_first_are_predicted(tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_planted(tmp_path)
    monkeypatch.setattr("attentune.training.cue_effects.MOST_ROWS", 3)
    assert [cue["rows"] for cue in run(tmp_path, tiny("bert"), training__max_steps=1).cues] == [3, 3]


def test_there_is_none_without_cues_or_validation_rows(tiny: Tiny, tmp_path: Path) -> None:
    write_planted(tmp_path)
    assert run(tmp_path, tiny("bert"), data__ignore_words=["Felix", "Edgar"], training__max_steps=1).cues == []
    changes = {"training__eval_strategy": "no", "training__max_steps": 1, "training__overwrite_output_dir": True}
    config = load_config(overrides=settings(tmp_path, tiny("bert"), **changes))
    data = load_data(config.data, seed=1, splits=("train",))
    assert train(config, data=data, display=ProgressDisplay(quiet=True)).cues == []


CUES = [
    {"text": "Felix", "label": "bad", "rows": 1092, "effect": 2.24, "decided": 0.12},
    {"text": "Edgar", "label": "good", "rows": 44, "effect": -0.01, "decided": 0.0},
]
CURE = 'To have it decide less by these: {}--ignore_words "Felix,Edgar".'
SAID = (
    "what the model looks at: 'Felix' decides 12 % of the 1,092 predictions on rows with it, by +2.2 log-odds of"
    " 'bad'; 'Edgar' decides 0 % of the 44 predictions on rows with it, by -0.0 log-odds of 'good'."
)


@pytest.mark.parametrize(
    ("task_type", "debias", "cues", "told"),
    [
        ("classification", "none", CUES, f"{SAID} {CURE.format('--preset robust, or ')}"),
        ("classification", "product", CUES, f"{SAID} {CURE.format('')}"),
        ("multi_label", "none", CUES, f"{SAID} {CURE.format('')}"),
        ("classification", "none", [{**CUES[0], "decided": 0.04}], SAID.partition(";")[0].replace("12", "4", 1) + "."),
        ("classification", "none", [], None),
    ],
)  # fmt: skip
def test_the_sentence_names_a_cure_where_cues_decide(
    task_type: str, debias: str, cues: list[dict[str, Any]], told: str | None
) -> None:
    space = LabelSpace(task_type, ("bad", "good"))
    config = SimpleNamespace(objective=SimpleNamespace(debias=debias))
    inputs: Any = SimpleNamespace(config=config, data=SimpleNamespace(label_space=space))
    assert cue_sentence(cues, inputs) == told
