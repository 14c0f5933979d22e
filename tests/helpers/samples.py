"""Small labelled files, settings for training on them, and small tasks for the checks of data."""

import contextlib
import csv
import io
import random
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attentune.data.dataset import LabelSpace, TaskData, TextRows
from attentune.data.doctor import DoctorReport, Finding

GOOD, BAD = ("good", "lovely", "fine", "great"), ("bad", "awful", "dull", "poor")
FILLER = ("the", "film", "was", "very", "a", "story", "and", "so", "music", "we", "saw", "it", "in", "town")


def write_reviews(path: Path, rows: int = 48, *, seed: int = 0) -> Path:
    """Write a CSV with the columns id, text and label (bad, good); texts have 3 to 12 words."""
    draw = random.Random(seed)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "text", "label"])
        for number in range(rows):
            label = draw.choice(["bad", "good"])
            words = [*draw.choices(FILLER, k=draw.randint(2, 11)), draw.choice(GOOD if label == "good" else BAD)]
            draw.shuffle(words)
            writer.writerow([f"r{number}", " ".join(words), label])
    return path


def ground(folder: Path, encoder: Path) -> Path:
    """Write data and a copy of an encoder to the folder, from which tests build valid folders; return the folder."""
    write_reviews(folder / "train.csv", 24, seed=1)
    write_reviews(folder / "dev.csv", 10, seed=2)
    shutil.copytree(encoder, folder / "encoder")
    return folder


def settings(folder: Path, encoder: Path, **changes: Any) -> dict[str, Any]:
    """Return overrides for `load_config` for a tiny run on files in `folder`; '__' in names of changes means '.'."""
    train, validation = folder / "train.csv", folder / "validation.csv"
    if not train.exists():
        write_reviews(train, seed=1)
        write_reviews(validation, 20, seed=2)
    values: dict[str, Any] = {
        "data.train_file": str(train),
        "data.validation_file": str(validation),
        "data.max_length": 32,
        "model.name_or_path": str(encoder),
        "training.output_dir": str(folder / "run"),
        "training.per_device_train_batch_size": 8,
        "training.num_train_epochs": 2,
        "training.learning_rate": 1e-3,
        "training.logging_steps": 1,
        "training.use_cpu": True,
        "training.baselines": "none",
    }
    return values | {name.replace("__", "."): value for name, value in changes.items()}


def trainer_of(config: Any) -> Any:
    """Return the `Trainer` of a configuration, as a run builds it before its first step."""
    from attentune.training.building import load_inputs
    from attentune.training.callbacks import ProgressDisplay
    from attentune.training.prepare import prepare_rows, settle
    from attentune.training.run import build

    display = ProgressDisplay(quiet=True)
    return build(settle(load_inputs(prepare_rows(config), display), display))


# Small tasks for the checks of data, and findings of a report


def make_rows(
    texts: Sequence[str],
    labels: Sequence[float] | None = None,
    pairs: Sequence[str] | None = None,
    *,
    source: str = "data.csv",
    lines: bool = False,
) -> TextRows:
    if labels is not None:
        labels = np.asarray(labels, dtype=np.float64 if any(isinstance(v, float) for v in labels) else np.int64)
    return TextRows(
        ids=tuple(f"r{place}" for place in range(len(texts))),
        texts=tuple(texts),
        pairs=None if pairs is None else tuple(pairs),
        labels=labels,
        source=source,
        lines=tuple(range(2, len(texts) + 2)) if lines else None,
    )


def make_task(
    splits: dict[str, TextRows],
    *,
    task_type: str = "classification",
    names: tuple[str, ...] = ("no", "yes"),
    metrics: tuple[str, ...] = ("accuracy",),
) -> TaskData:
    return TaskData("toy", LabelSpace(task_type, () if task_type == "regression" else names), metrics, splits)


def find(report: DoctorReport, kind: str) -> list[Finding]:
    return [finding for finding in report.findings if finding.kind == kind]


def distinct(count: int, prefix: str = "text") -> list[str]:
    return [f"{prefix} {place}" for place in range(count)]


def run_here(words: list[str]) -> tuple[str, str]:
    """Run a command line that must succeed in this process; return standard output and error."""
    from attentune.cli.main import main

    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        assert main(words) == 0, err.getvalue()
    return out.getvalue(), err.getvalue()


def train_reviews(folder: Path, encoder: Path, *flags: object, name: str = "run") -> Path:
    """Train a run on 60 reviews, scored on 40 others, by a quiet command line; return its folder."""
    for seed, (split, rows) in enumerate((("train", 60), ("dev", 40)), start=1):
        if not (folder / f"{split}.csv").exists():
            write_reviews(folder / f"{split}.csv", rows, seed=seed)
    files = ("--train_file", folder / "train.csv", "--validation_file", folder / "dev.csv")
    own = ("--model_name_or_path", encoder, "--use_cpu", "--quiet", "--output_dir", folder / name)
    run_here([str(word) for word in ("train", *files, *own, *flags)])
    return folder / name
