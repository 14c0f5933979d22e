"""The table of docs/explaining.md: which methods explain which kinds of runs, cell by cell on trained runs."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attentune.errors import AttentuneError
from attentune.explain.explainer import default_method
from attentune.explain.methods import METHODS
from attentune.explain.texts import explain_texts, fit_explainer
from attentune.inference.predictor import Predictor
from cli.test_kinds_of_tasks import TRAINED, home, run_of

__all__ = ["home"]
PAGE = Path(__file__).parents[2] / "docs" / "explaining.md"
# The rows of the table, and the kind of such a run.
RUNS = {
    "one text, classes": "classes",
    "pairs, cross-encoder": "pair",
    "pairs, [bi-encoder](task-attention.md#bi-encoder-pairs)": "bi-encoder",
    "presets with a [token gate](ssa.md)": "ssa",
    "scores (regression)": "score",
    "ordered classes": "ordered",
    "label sets": "multi-label",
    "long texts in windows": "long",
    "adapters (LoRA)": "lora",
    "frozen encoder": "frozen encoder",
    "ensembles of `auto`": "ensemble",
    "baselines": "tfidf",
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


def test_the_table_has_each_kind_of_run_and_each_method() -> None:
    assert list(TABLE) == list(RUNS)
    columns = next(iter(TABLE.values()))
    named = re.findall(r"`([a-z-]+)`", " ".join(columns))
    assert sorted(named) == sorted([*METHODS, "--contrast"])


@pytest.mark.integration
@pytest.mark.parametrize("kind", RUNS)
def test_each_cell_is_true(kind: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(TRAINED, "frozen encoder", "--preset bert-mean --freeze_encoder")
    run = run_of(RUNS[kind], home)
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
                last = saved.label_space.names[-1] if saved.label_space.names else "good"
                found = explains("leave-one-out", contrast=last)
            else:
                found = explains(name)
                assert cell != "of one window" or (not found and explains(name, TEXTS[:1])), f"{name}: {cell}"
            assert found == (cell == "yes"), f"{name}: the table has {cell!r}"
    assert all(re.search("expected|Methods that|Use |leave it out", refusal) for refusal in refusals), refusals
