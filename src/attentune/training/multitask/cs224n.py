"""The three tasks of Stanford CS224N's default project: their joint score, and predictions in the course's format."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

from attentune.data.builtin import load_spec
from attentune.io.files import storage_errors, write_text

# Task, file prefix, and column title; the misspelling of the third one is the course's.
_TASKS = (
    ("sst5", "sst", "Predicted_Sentiment"),
    ("quora", "para", "Predicted_Is_Paraphrase"),
    ("sts", "sts", "Predicted_Similiary"),
)
_SPLITS = (("validation", "dev"), ("test", "test"))


def course_tasks(tasks: Sequence[str]) -> list[str]:
    """Return those of these tasks that are the course's."""
    return [task for task, _, _ in _TASKS if task in tasks]


def leaderboard_score(scores: Mapping[str, Mapping[str, Mapping[str, float | None]]], split: str) -> float | None:
    """Return (accuracy + accuracy + (1 + Pearson) / 2) / 3 of SST-5, Quora and STS; None if one of them has no score.

    Args:
        scores: by task, split and metric.
        split: such as "validation".

    Source: the leaderboard of the course, as in task-specific attention (Jia 2024), results.
    """
    metrics = {"sst5": "accuracy", "quora": "accuracy", "sts": "pearson"}
    values = [scores.get(task, {}).get(split, {}).get(name) for task, name in metrics.items()]
    if any(value is None for value in values):
        return None
    sentiment, paraphrase, similarity = (float(value or 0.0) for value in values)
    return (sentiment + paraphrase + (1.0 + similarity) / 2.0) / 3.0


def write_course_files(folder: Path, tasks: Sequence[str]) -> list[Path]:
    """Write `predictions/{sst,para,sts}-{dev,test}-output.csv` from each existing `TASK/predictions_SPLIT.csv`.

    Raises:
        StorageError: the disk refused.
    """
    written = []
    for task, prefix, title in _TASKS:
        for split, short in _SPLITS:
            source = folder / task / f"predictions_{split}.csv"
            if task not in tasks or not source.is_file():
                continue
            target = folder / "predictions" / f"{prefix}-{short}-output.csv"
            with storage_errors(target):
                target.parent.mkdir(exist_ok=True)
                with source.open(encoding="utf-8", newline="") as opened:
                    rows = list(csv.DictReader(opened))
            lines = [f"{row['id']} , {_number(task, row['prediction'])} \n" for row in rows]
            write_text(target, f"id \t {title} \n" + "".join(lines))
            written.append(target)
    return written


def _number(task: str, prediction: str) -> str:
    """Return a class as its index, formatted as by the course's program; a score unchanged."""
    names = load_spec(task).label_names
    if not names:
        return prediction
    return f"{float(names.index(prediction))}" if task == "quora" else str(names.index(prediction))
