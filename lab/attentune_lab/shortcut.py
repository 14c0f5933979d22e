"""The shortcut experiment: methods trained on synthetic reviews with a planted shortcut that is reversed in a test set.

The shortcut is the name of a cinema that agrees with the label in 80 % of the training and validation reviews and
contradicts it in 80 % of the challenge reviews (`data.synthetic`). How much accuracy a method loses from the first to
the second is how much it relies on the shortcut instead of the words that decide.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from attentune.demo.run import check_all_done
from attentune.runs.compare import compare
from attentune.runs.progress import ComparisonProgress
from attentune.runs.records import Predictions, RecordStore, read_predictions
from attentune.stats.estimate import mean_over_seeds_and_examples
from attentune_lab.interval import Interval
from attentune_lab.synthetic import write_files

TRAIN_ROWS = 1200
# Enough reviews and learning rate to learn the words, few enough reviews that the shortcut is still learnt too.
SETTINGS: dict[str, Any] = {
    "training.learning_rate": 2e-4,
    "training.num_train_epochs": 3.0,
    "training.per_device_train_batch_size": 32,
    "training.warmup_ratio": 0.1,
}
SEEDS = 3
# A method resists the shortcut if the whole interval of its fall is below this.
TOLERATED_FALL = 0.1
# Two kinds of pooling without further parts, and one method of each paper.
DEFAULT_PRESETS = ("bert", "bert-mean", "ssa-hybrid", "sesame", "task-attention")
NOTES = (
    "validation: the cinema's name agrees with the label in 80 % of the reviews, as in training; challenge: it"
    " contradicts it in 80 %; fall: the first minus the second.",
    "Mean accuracy over the seeds, on 600 reviews each; the 95 % interval of the fall covers seeds and reviews.",
)
RESISTS, RELIES, UNDECIDED = "resists", "relies on it", "undecided"


@dataclass(frozen=True)
class ShortcutLine:
    preset: str  # its name
    validation: Interval  # accuracy where the shortcut agrees with the label, as in training
    challenge: Interval  # accuracy where the shortcut contradicts the label
    fall: Interval  # validation minus challenge
    seconds: float  # mean wall time of a run
    folders: tuple[str, ...]  # the run folders, one per seed

    @property
    def verdict(self) -> str:
        """`RESISTS` if the whole interval of the fall is below `TOLERATED_FALL`, `RELIES` if it is above 0."""
        if self.fall.high < TOLERATED_FALL:
            return RESISTS
        return RELIES if self.fall.low > 0 else UNDECIDED

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "verdict": self.verdict}


def run_shortcut(
    folder: str | Path,
    *,
    presets: Sequence[str] = DEFAULT_PRESETS,
    seed: int = 42,
    overrides: Mapping[str, Any] | None = None,
    jobs: int | None = None,
    quiet: bool = False,
) -> list[ShortcutLine]:
    """Train each preset on the synthetic reviews with several seeds.

    Finished runs in the folder are reused, and interrupted ones resume.
    """
    folder = Path(folder)
    files = write_files(folder / "data", train_size=TRAIN_ROWS, seed=seed)
    settings = {
        "data.train_file": str(files["train"]),
        "data.validation_file": str(files["validation"]),
        "data.test_file": str(files["challenge"]),
        "data.text_column": "text",
        "data.label_column": "label",
        "data.id_column": "id",
        **SETTINGS,
        **(overrides or {}),
    }
    comparison = folder / "comparison"
    records = compare(
        comparison,
        presets=presets,
        seeds=range(seed, seed + SEEDS),
        overrides=settings,
        keep_runs=True,
        retry_failed=True,
        jobs=jobs,
        display=ComparisonProgress(quiet=quiet),
    )
    check_all_done(records, comparison)
    store = RecordStore(comparison)
    lines = []
    for preset in presets:
        own = [record for record in records if record.run.method == preset]
        correct = {
            split: np.stack(
                [_correct(read_predictions(store.file(one.run).with_name(one.predictions[split]))) for one in own]
            )
            for split in ("validation", "test")
        }
        lines.append(
            ShortcutLine(
                preset,
                validation=mean_of(correct["validation"]),
                challenge=mean_of(correct["test"]),
                # Reviews of the same number have the same label and kind, so their pairs are a stratified sample.
                fall=mean_of(correct["validation"] - correct["test"]),
                seconds=float(np.mean([one.wall_seconds for one in own])),
                folders=tuple(str(store.run_folder(one.run)) for one in own),
            )
        )
    return lines


def _correct(predictions: Predictions) -> np.ndarray:
    return (predictions.labels_N == predictions.predictions_N).astype(np.float64)


def mean_of(values_SN: np.ndarray) -> Interval:
    """Return a mean with its 95 % interval over seeds and reviews; NaN bounds with one seed."""
    if len(values_SN) < 2:
        return Interval(float(values_SN.mean()), math.nan, math.nan)
    estimate = mean_over_seeds_and_examples(values_SN)
    return Interval(float(estimate.value), float(estimate.low), float(estimate.high))


def sentences(lines: Sequence[ShortcutLine]) -> list[str]:
    """Return the verdicts in words: a sentence for each verdict that some preset has."""
    meanings = {
        RESISTS: f"Resist the shortcut (the whole interval of the fall is below {TOLERATED_FALL:g})",
        RELIES: "Rely on the shortcut (the whole interval of the fall is above 0)",
        UNDECIDED: f"Undecided (the interval of the fall includes 0 and {TOLERATED_FALL:g})",
    }
    named = {verdict: [line.preset for line in lines if line.verdict == verdict] for verdict in meanings}
    return [f"{meaning}: {', '.join(named[verdict])}." for verdict, meaning in meanings.items() if named[verdict]]
