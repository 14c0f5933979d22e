"""AX, GLUE's diagnostic set: its phenomena, and scores of a run by phenomenon."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sklearn.metrics import matthews_corrcoef

from attentune.errors import DataError
from attentune.suites.glue import CATEGORIES, read_phenomena, score_phenomena
from helpers.glue_samples import write_glue, write_run

HEADER = "\t".join([*CATEGORIES, "Domain", "Premise", "Hypothesis", "Label"])
LINES = [
    "Lexical entailment;Factivity\t\tNegation\t\tNews\tA cat sat.\tA cat stood.\tcontradiction",
    "\tCore args\tNegation; Disjunction\t\tNews\tA cat sat.\tA cat sat.\tentailment",
    "\t\t\t\t\tA cat sat.\tA dog sat.\tneutral",
]


def write(folder, lines=LINES, header=HEADER):
    file = folder / "diagnostic-full.tsv"
    file.write_text("\n".join([header, *lines]) + "\n")
    return file


def test_a_row_has_several_phenomena_or_none(tmp_path):
    found = read_phenomena(write(tmp_path))
    assert found == {
        "Lexical Semantics": ({"Lexical entailment", "Factivity"}, set(), set()),
        "Predicate-Argument Structure": (set(), {"Core args"}, set()),
        "Logic": ({"Negation"}, {"Negation", "Disjunction"}, set()),
        "Knowledge": (set(), set(), set()),
    }
    assert read_phenomena(tmp_path / "diagnostic-full.tsv", [4, 2])["Logic"] == (set(), {"Negation"})


def test_a_file_without_phenomena_is_refused(tmp_path):
    with pytest.raises(DataError, match="has no column 'Logic', expected the columns of diagnostic-full.tsv"):
        read_phenomena(write(tmp_path, header=HEADER.replace("Logic", "Reason")))


def test_scores_are_those_of_the_rows_with_the_phenomenon():
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 400)
    predictions = np.where(generator.random(400) < 0.5, labels, generator.integers(0, 3, 400))
    has = {name: generator.random(400) < 0.4 for name in ("Negation", "Disjunction")}
    phenomena = {"Logic": tuple(frozenset(name for name in has if has[name][row]) for row in range(400))}
    found = {(one.category, one.phenomenon): one for one in score_phenomena(labels, predictions, phenomena)}
    chosen = {
        (None, None): np.ones(400, bool),
        ("Logic", None): has["Negation"] | has["Disjunction"],
        **{("Logic", name): inside for name, inside in has.items()},
    }
    assert list(found) == [(None, None), ("Logic", None), ("Logic", "Disjunction"), ("Logic", "Negation")]
    for key, inside in chosen.items():
        one = found[key]
        assert one.rows == inside.sum()
        assert one.score == pytest.approx(matthews_corrcoef(labels[inside], predictions[inside]))
        assert one.low < one.score < one.high
    assert (
        found[None, None].high - found[None, None].low
        < found["Logic", "Negation"].high - found["Logic", "Negation"].low
    )


@pytest.mark.integration
def test_intervals_are_those_of_a_bootstrap_over_rows():
    generator = np.random.default_rng(1)
    labels = generator.integers(0, 3, 200)
    predictions = np.where(generator.random(200) < 0.6, labels, generator.integers(0, 3, 200))
    (found,) = score_phenomena(labels, predictions, {})
    draws = [generator.integers(0, 200, 200) for _ in range(2000)]
    expected = np.quantile([matthews_corrcoef(labels[d], predictions[d]) for d in draws], [0.025, 0.975])
    assert (found.low, found.high) == pytest.approx(tuple(expected), abs=0.03)


def test_evaluate_prints_them_for_ax(attentune, tiny, tmp_path):
    glue = write_glue(tmp_path / "glue", rows=30)
    run = write_run(tmp_path / "run", tiny("bert"), "mnli", glue)
    words = ("evaluate", run, "--task", "ax", "--data_dir", glue)
    status, out, err = attentune(*words)
    assert status == 0, err
    assert "Matthews correlation by phenomenon; a row may have several" in out
    assert [line.split()[:4] for line in out.splitlines() if line.startswith("Logic")] == [
        ["Logic", "all", "30", out.split("matthews_correlation")[1].split()[0]],
        ["Logic", "Negation", "30", out.split("matthews_correlation")[1].split()[0]],
    ]
    status, out, _ = attentune(*words, "--format", "json", "--details", "--max_eval_samples", "12")
    lines = json.loads(out)["details"]["phenomena"]
    assert [line["rows"] for line in lines] == [12] * 5
    status, out, _ = attentune("evaluate", run, "--task", "mnli", "--data_dir", glue)
    assert "phenomenon" not in out
