"""The table of docs/explaining.md: which methods explain which kinds of runs, cell by cell on trained runs."""

import csv
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attentune.config import load_config
from attentune.errors import AttentuneError
from attentune.explain.explainer import default_method
from attentune.explain.methods import METHODS
from attentune.explain.texts import explain_texts, fit_explainer
from attentune.inference.predictor import Predictor
from attentune.training.run import train
from helpers.samples import FILLER, settings
from helpers.tiny_runs import saved_ensemble

PAGE = Path(__file__).parents[2] / "docs" / "explaining.md"
LABELS = {
    "classification": ("bad", "good"),
    "regression": ("0.5", "1.5", "2.25"),
    "ordinal": ("low", "middle", "high"),
    "multi_label": ("bad", "bad|good", "good", ""),
}
PAIRS = {"data__text_pair_column": "second"}
# The rows of the table, and the settings of such a run.
RUNS: dict[str, dict[str, Any]] = {
    "one text, classes": {},
    "pairs, cross-encoder": PAIRS,
    "pairs, [bi-encoder](task-attention.md#bi-encoder-pairs)": {**PAIRS, "preset": "bi-encoder-mean"},
    "presets with a [token gate](ssa.md)": {"preset": "ssa-hybrid"},
    "scores (regression)": {"data__task_type": "regression"},
    "ordered classes": {"data__task_type": "ordinal", "data__label_names": "low,middle,high"},
    "label sets": {"data__task_type": "multi_label"},
    "long texts in windows": {"data__long_texts": "windows", "data__max_length": 16, "data__stride": 4},
    "adapters (LoRA)": {"training__lora_rank": 2},
    "frozen encoder": {"training__freeze_encoder": True},
    "ensembles of `auto`": {},
    "baselines": {"preset": "tfidf-linear"},
}
TEXTS = ["a very good film", " ".join(["the film was very good and we saw it in town so"] * 4)]


def cells() -> dict[str, dict[str, str]]:
    """Read the table: by row, what stands in each column."""
    block = PAGE.read_text(encoding="utf-8").split("## Kinds of runs")[1].split("\n## ")[0]
    header, _, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines() if line.startswith("|")
    )
    return {row[0]: dict(zip(header[1:], row[1:], strict=True)) for row in rows}


TABLE = cells()


def write_rows(file: Path, task_type: str) -> Path:
    draw = random.Random(3)
    with file.open("w", newline="") as lines:
        writer = csv.writer(lines)
        writer.writerow(["text", "second", "label"])
        for number in range(32):
            words, labels = draw.choices(FILLER, k=6), LABELS[task_type]
            writer.writerow([" ".join(words), " ".join(words[::-1]), labels[number % len(labels)]])
    return file


def trained(folder: Path, encoder: Path, changes: dict[str, Any]) -> Path:
    task_type = changes.get("data__task_type", "classification")
    changes = {
        "data__train_file": str(write_rows(folder / "rows.csv", task_type)),
        "data__validation_file": None,
        "data__text_column": "text",
        "data__label_column": "label",
        "data__task_type": task_type,
        "training__max_steps": 2,
        "training__eval_strategy": "no",
        **changes,
    }
    train(load_config(overrides=settings(folder, encoder, **changes)))
    return folder / "run"


def test_the_table_has_each_kind_of_run_and_each_method() -> None:
    assert list(TABLE) == list(RUNS)
    columns = next(iter(TABLE.values()))
    named = re.findall(r"`([a-z-]+)`", " ".join(columns))
    assert sorted(named) == sorted([*METHODS, "--contrast"])


@pytest.mark.integration
@pytest.mark.parametrize("kind", RUNS)
def test_each_cell_is_true(kind: str, tiny: Callable[..., Path], tmp_path: Path) -> None:
    if kind == "ensembles of `auto`":
        run = saved_ensemble(tmp_path / "run", tiny, members={"bert": 1, "roberta": 1})
    else:
        run = trained(tmp_path, tiny("bert"), RUNS[kind])
    saved = Predictor.load(run)
    pairs = ["so lovely in town"] * len(TEXTS) if saved.is_pair else None
    assert default_method(saved) == "leave-one-out"

    refusals: list[str] = []

    def works(call: Callable[[], Any]) -> bool:
        try:
            call()
        except AttentuneError as error:
            refusals.append(str(error))
            return False
        return True

    def explains(method: str, texts: list[str] = TEXTS, **options: Any) -> bool:
        def explain() -> None:
            seconds = pairs and pairs[: len(texts)]
            for one in explain_texts(run, texts, seconds, method=method, samples=8, steps=2, **options):
                assert len(one.tokens) > 3
                assert np.isfinite([token.score for token in one.tokens]).all()

        return works(explain)

    works(lambda: fit_explainer(run, copies=2))
    for column, cell in TABLE[kind].items():
        for name in re.findall(r"`([a-z-]+)`", column):
            if name == "--contrast":
                found = explains("leave-one-out", contrast="high" if "ordinal" in str(RUNS[kind]) else "good")
            else:
                found = explains(name)
                assert cell != "of one window" or (not found and explains(name, TEXTS[:1])), f"{name}: {cell}"
            assert found == (cell == "yes"), f"{name}: the table has {cell!r}"
    assert all(re.search("expected|Methods that|Use |leave it out", refusal) for refusal in refusals), refusals
