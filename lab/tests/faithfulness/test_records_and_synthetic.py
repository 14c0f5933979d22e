"""Records of faithfulness that ERASER's program can score, and words that were planted as ground truth."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attentune.data.dataset import LabelSpace
from attentune.errors import StorageError
from attentune.inference.predictor import Predictor
from attentune_lab.faithfulness.eraser_records import write_records
from attentune_lab.faithfulness.measure import FaithfulnessResult, Measures, measure_faithfulness
from attentune_lab.faithfulness.synthetic import (
    decisive_tokens,
    evidence_of,
    places_of,
    score_synthetic,
    synthetic_rows,
)
from attentune_lab.synthetic import KINDS
from helpers.explain_references import aopc
from helpers.tiny_runs import tiny_run

# Records


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_eraser_s_formula_gives_the_same_means_from_the_records(found: FaithfulnessResult, tmp_path: Path) -> None:
    write_records(tmp_path / "eraser", found)
    for own in found.report.scores:
        records = lines_of(tmp_path / "eraser" / f"{own.method}.{own.erasure}.jsonl")
        if own.method != "random":
            assert aopc(records, "comprehensiveness") == pytest.approx(own.comprehensiveness.value, abs=1e-9)
            assert aopc(records, "sufficiency") == pytest.approx(own.sufficiency.value, abs=1e-9)


def test_records_fit_their_documents_and_annotations(found: FaithfulnessResult, tmp_path: Path) -> None:
    write_records(tmp_path, found, {0: [(1, 3)]})
    documents = {line["docid"]: line["document"].split(" ") for line in lines_of(tmp_path / "docs.jsonl")}
    annotations = lines_of(tmp_path / "test.jsonl")
    records = lines_of(tmp_path / "ssa.mask.jsonl")
    assert [line["annotation_id"] for line in annotations] == [line["annotation_id"] for line in records]
    assert len(annotations[0]["evidences"]) == 1
    for record in records:
        (rationale,) = record["rationales"]
        assert len(rationale["soft_rationale_predictions"]) == len(documents[rationale["docid"]])
        chances = [record["classification_scores"], record["comprehensiveness_classification_scores"]]
        chances += [part["sufficiency_classification_scores"] for part in record["thresholded_scores"]]
        assert all(sum(own.values()) == pytest.approx(1) and set(own) == {"bad", "good"} for own in chances)
        assert [part["threshold"] for part in record["thresholded_scores"]] == [0.01, 0.05, 0.1, 0.2, 0.5]


def test_a_folder_that_eraser_would_read_otherwise_is_refused(found: FaithfulnessResult, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    with pytest.raises(StorageError, match="choose another folder"):
        write_records(tmp_path, found)


# Planted words


@pytest.fixture(scope="module")
def demo_run(tiny) -> Predictor:
    run = tiny_run(tiny(), max_length=150)
    return dataclasses.replace(run, label_space=LabelSpace("classification", ("positive", "negative")))


def test_planted_tokens_spell_the_words_that_decide(quick: Measures, demo_run: Predictor) -> None:
    rows, truths = synthetic_rows(demo_run, 24, "challenge")
    measures = dataclasses.replace(quick, beam=0, erasures=("mask",))
    found = measure_faithfulness(demo_run, rows, methods=("gradient",), measures=measures)
    evidence = evidence_of(found, truths)
    for row, truth in enumerate(truths):
        spans = found.explainer.spans(row)
        decisive, shortcut = decisive_tokens(spans, truth)
        text = "".join(truth.text[spans[place][1] : spans[place][2]] for place in decisive)  # type: ignore[index]
        assert text == "".join(truth.text[start:end] for start, end in truth.decisive)
        name = "".join(truth.text[spans[place][1] : spans[place][2]] for place in shortcut)  # type: ignore[index]
        assert name == ("" if truth.shortcut is None else truth.text[slice(*truth.shortcut)])
        assert sum(end - first for first, end in evidence[row]) == len(decisive)
        assert len(evidence[row]) == len(truth.decisive)
        assert demo_run.label_space.names[int(rows.labels[row])] == ("negative", "positive")[truth.label]
    lines = score_synthetic(found, truths)
    right = [own.target == label for own, label in zip(found.ranked["random"].attributions, rows.labels, strict=True)]
    assert sum(own.rows for own in lines if own.method == "random") == sum(right)
    assert [own.kind for own in lines if own.method == "gradient"] == [
        kind for kind in KINDS if any(truth.kind == kind and ok for truth, ok in zip(truths, right, strict=True))
    ]


def test_places_in_an_order() -> None:
    order = np.array([4, 2, 7, 1])
    assert places_of(order, np.array([2, 4]), np.array([1])) == (1.0, 1.0, 1.5, 0.0)
    assert places_of(order, np.array([1, 2]), np.array([4])) == (0.0, 0.5, 3.0, 1.0)
