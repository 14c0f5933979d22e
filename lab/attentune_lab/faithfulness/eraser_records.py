"""Exports an evaluation in the format of the ERASER benchmark, so that its program can compute the scores too.

Run `python -m rationale_benchmark.metrics --data_dir DIR --split test --results DIR/METHOD.ERASURE.jsonl` (DeYoung et
al. 2020, github.com/jayded/eraserbenchmark). A document consists of a row's non-special tokens; ground truth, if known,
is the evidence in `test.jsonl`.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attentune.errors import StorageError
from attentune.io.files import storage_errors, write_text
from attentune_lab.faithfulness.measure import SHARES, FaithfulnessResult, ProbabilityDrops

# ERASER uses the share of tokens that annotators marked; without annotations this share is used.
WHOLE_SHARE = 0.2


def record(
    name: str, scores: Sequence[float], probability_drops: ProbabilityDrops, row: int, classes: Sequence[str]
) -> dict[str, Any]:
    def named(chances_C: np.ndarray) -> dict[str, float]:
        return {name: float(chance) for name, chance in zip(classes, chances_C, strict=True)}

    def erased(place: int) -> dict[str, dict[str, float]]:
        return {
            "comprehensiveness_classification_scores": named(probability_drops.without_NKC[row, place]),
            "sufficiency_classification_scores": named(probability_drops.only_NKC[row, place]),
        }

    return {
        "annotation_id": name,
        "rationales": [{"docid": name, "soft_rationale_predictions": [float(score) for score in scores]}],
        "classification": classes[int(probability_drops.target_N[row])],
        "classification_scores": named(probability_drops.whole_NC[row]),
        **erased(SHARES.index(WHOLE_SHARE)),
        "thresholded_scores": [{"threshold": share, **erased(place)} for place, share in enumerate(SHARES)],
    }


def write_records(
    folder: str | Path, result: FaithfulnessResult, evidence: Mapping[int, Sequence[tuple[int, int]]] | None = None
) -> list[Path]:
    """Write documents, annotations, and one file of records per method and erasure."""
    home = Path(folder)
    with storage_errors(home):
        home.mkdir(parents=True, exist_ok=True)
    if (home / "docs").exists():
        raise StorageError(
            f"{home / 'docs'}: already exists, and ERASER's program would read it; choose another folder."
        )
    features, classes = result.explainer.scorer.features, result.explainer.scorer.label_space.names
    ids = list(result.rows.ids)
    names = ids if len(set(ids)) == len(ids) else [str(number) for number in range(len(ids))]
    ordinary = [features.non_special_positions(row) for row in range(len(names))]
    documents = [_words(result, row) for row in range(len(names))]
    lines = [{"docid": name, "document": " ".join(words)} for name, words in zip(names, documents, strict=True)]
    labels = result.rows.labels
    some = next(iter(result.probability_drops.values()))
    annotations = [
        {
            "annotation_id": name,
            "query": "",
            "evidences": [
                [{"text": " ".join(documents[row][first:end]), "docid": name, "start_token": first, "end_token": end}]
                for first, end in (evidence or {}).get(row, ())
            ],
            "classification": classes[int(some.target_N[row] if labels is None else labels[row])],
        }
        for row, name in enumerate(names)
    ]
    files: dict[str, list[dict[str, Any]]] = {"docs.jsonl": lines, "test.jsonl": annotations}
    for (method, erasure), drops in result.probability_drops.items():
        scores = [
            attribution.scores[places]
            for attribution, places in zip(result.ranked[method].attributions, ordinary, strict=True)
        ]
        files[f"{method}.{erasure}.jsonl"] = [
            record(name, scores[row].tolist(), drops, row, classes) for row, name in enumerate(names)
        ]
    for file, content in files.items():
        write_text(home / file, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in content))
    return [home / file for file in files]


def _words(result: FaithfulnessResult, row: int) -> list[str]:
    """Return the text of a row's non-special tokens without white space, which separates tokens in ERASER's files."""
    pieces = result.explainer.pieces(row, result.ranked[next(iter(result.ranked))].attributions[row].scores)
    return ["".join(piece.text.split()) or "_" for piece in pieces]
