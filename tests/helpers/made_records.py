"""Writes synthetic records of comparisons, without training."""

import csv
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attentune.config import Config, to_dict
from attentune.runs.records import RecordStore, Run, RunRecord
from attentune.seeding import numpy_generator


def predictions(labels: Sequence[Any], predicted: Sequence[Any], names: Sequence[str]) -> list[list[str]]:
    shares = [["0.5"] * len(names) for _ in labels]
    rows = [[f"r{n}", str(a), str(b), *s] for n, (a, b, s) in enumerate(zip(labels, predicted, shares, strict=True))]
    return [["id", "label", "prediction", *(f"p_{name}" for name in names)], *rows]


def write_record(
    folder: Path,
    run: Run,
    rows: list[list[str]] | None,
    *,
    metric: str = "accuracy",
    score: float | None = 0.5,
    settings: Mapping[str, Any] | None = None,
    **changes: Any,
) -> RunRecord:
    """Write a record, with its predictions if rows are given."""
    config = to_dict(Config())
    for name, value in (settings or {}).items():
        *path, last = name.split(".")
        part = config
        for key in path:
            part = part[key]
        part[last] = value
    record = RunRecord(
        run=run,
        status="done",
        metric=metric,
        score=score,
        scores={"validation": {metric: score}},
        train={
            "seconds": 12.0 + run.seed,
            "tokens": 1000,
            "tokens_per_second": 1000 / (12.0 + run.seed),
            "peak_memory_bytes": 1_500_000_000,
            "label_seconds": 1.0,
            "evaluation_seconds": 2.0,
            "parameters": 22_000_000,
            "device": "cpu",
            "precision": "fp32",
        },
        best=None,
        config=config,
        seed=run.seed,
        versions={"attentune": "0.1.0", "torch": "2.13.0"},
        data_fingerprint={"train": f"{run.seed}", "validation": "v"},
        predictions={} if rows is None else {"validation": f"seed-{run.seed}.validation.csv"},
        curve=[
            {"step": n, "epoch": 0, "seconds": n * 1.0, "tokens": n, "loss": 1 / (n + run.seed)} for n in range(1, 9)
        ],
        wall_seconds=20.0,
        host="here",
    )
    record = dataclasses.replace(record, **changes)
    file = RecordStore(folder).file(run)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(record.to_json(), encoding="utf-8")
    if rows is not None:
        with file.with_name(f"seed-{run.seed}.validation.csv").open("w", newline="", encoding="utf-8") as opened:
            csv.writer(opened, lineterminator="\n").writerows(rows)
    return record


def answers(task: str, method: str, seed: int, right: float, labels: Sequence[str], names: Sequence[str]) -> list[str]:
    """Return predictions that are correct with probability `right`."""
    draw = numpy_generator("made-records", task, method, seed)
    return [label if draw.random() < right else names[(names.index(label) + 1) % len(names)] for label in labels]


def write_comparison(
    folder: Path,
    chances: Mapping[str, float],
    *,
    tasks: Sequence[str] = ("rte",),
    seeds: int = 3,
    sizes: Sequence[int | None] = (None,),
    names: Sequence[str] = ("no", "yes"),
    examples: int = 200,
    settings: Mapping[str, Mapping[str, Any]] | None = None,
    labelled: Sequence[str] = (),
) -> list[RunRecord]:
    """Write the records of a comparison; each method has its own probability of a correct prediction.

    The probability increases with the training size.
    """
    made = []
    for task in tasks:
        labels = [names[n] for n in numpy_generator("made-labels", task).integers(len(names), size=examples)]
        for size in sizes:
            for method, chance in chances.items():
                for seed in range(1, seeds + 1):
                    more = 0.0 if size is None else -0.1 / np.log10(size + 10)
                    given = answers(f"{task}{size}", method, seed, chance + more, labels, names)
                    score = float(np.mean([a == b for a, b in zip(labels, given, strict=True)]))
                    epochs = [{"epoch": n, "ones": 20 + 5 * n, "zeros": 80, "token_accuracy": 0.8} for n in range(3)]
                    made.append(
                        write_record(
                            folder,
                            Run(task, size, method, seed),
                            predictions(labels, given, names),
                            score=score,
                            settings=(settings or {}).get(method),
                            labels_by_epoch=epochs if method in labelled else [],
                        )
                    )
    return made


# How files of figures begin.
SIGNATURES = {".png": b"\x89PNG\r\n\x1a\n", ".svg": b"<?xml", ".pdf": b"%PDF"}
