"""The demo: trains presets on synthetic reviews with a shortcut that is reversed in a challenge set."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from attentune.config import load_config
from attentune.data.synthetic import write_files
from attentune.training.progress import ProgressDisplay
from attentune.training.train import train

# Enough reviews and learning rate to learn the words, few enough reviews that the shortcut is still learnt too.
TRAIN_ROWS = 1200
LEARNING_RATE = 2e-4
# Five minutes on two cores; `--presets all` runs the other presets too.
DEFAULT_PRESETS = (
    "bert",
    "bert-mean",
    "bert-cls-mean",
    "bert-mask",
    "ssa-co",
    "ssa-hybrid",
    "sesame",
    "task-attention",
)


@dataclass(frozen=True)
class DemoLine:
    """One preset's line of the table.

    Attributes:
        preset: its name.
        validation: accuracy where the shortcut agrees with the label, as in training.
        challenge: accuracy where the shortcut contradicts the label.
        seconds: wall time of training steps.
        folder: the run folder.
    """

    preset: str
    validation: float
    challenge: float
    seconds: float
    folder: str


def run_demo(
    presets: Sequence[str], folder: Path, *, seed: int, model: str, epochs: float, display: ProgressDisplay
) -> Iterator[DemoLine]:
    """Train each preset on the demo's files, and yield its line when it is done.

    Finished runs are reused; interrupted ones resume.

    Args:
        presets: names of presets.
        folder: the folder of data and runs.
        seed: of the reviews and of training.
        model: the encoder.
        epochs: passes over the reviews.
        display: shows progress.
    """
    files = write_files(folder / "data", train_size=TRAIN_ROWS, seed=seed)
    for number, preset in enumerate(presets, start=1):
        run = folder / preset
        display.info(f"{preset} ({number} of {len(presets)})")
        overrides = {
            "data.train_file": str(files["train"]),
            "data.validation_file": str(files["validation"]),
            "data.test_file": str(files["challenge"]),
            "data.text_column": "text",
            "data.label_column": "label",
            "data.id_column": "id",
            "model.name_or_path": model,
            "training.output_dir": str(run),
            "training.seed": seed,
            "training.num_train_epochs": epochs,
            "training.learning_rate": LEARNING_RATE,
            "training.resume": (run / "config.yaml").is_file(),
        }
        result = train(load_config(overrides=overrides, preset=preset), display=display)
        scores = {split: part["accuracy"] for split, part in result.scores.items()}
        yield DemoLine(
            preset=preset,
            validation=float(scores["validation"] or 0.0),
            challenge=float(scores["test"] or 0.0),
            seconds=float(result.train["seconds"]),
            folder=str(run),
        )
