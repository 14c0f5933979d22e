"""Folds of the training rows, and what was predicted out of fold: by each member, and by what `auto` delivers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from attentune.automl.leaderboard import WORK_FOLDER
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.splits import deal_groups, row_groups, strata_of, stratified_sample
from attentune.errors import CheckpointError
from attentune.io.files import read_json, storage_errors
from attentune.metrics.metrics import probabilities_of
from attentune.metrics.rejection import energy
from attentune.stats.estimate import wilson_interval

PLAN_FILE, OOF_FILE = "plan.json", "oof.safetensors"
# The predictions of the held-out rows in the run folder of a fold or baseline.
HELD_OUT_FILE = "heldout.safetensors"
# The share of the most confident predictions on which wrong labels are counted.
CERTAIN_SHARE = 0.2
# A share of disagreement is worth a line if the lower bound of its interval is at least this.
HIGH_SHARE = 0.05
# Above this share the predictions are wrong, not the labels.
_USELESS_SHARE = 0.5


@dataclass(frozen=True)
class Disagreement:
    """How often label and prediction disagree among the most confident predictions."""

    value: float  # the share of these rows
    low: float  # the lower bound of its 95 % Wilson interval over rows
    high: float  # the upper bound
    rows: int  # the number of these rows


def disagreement(labels: np.ndarray, probabilities_NC: np.ndarray) -> Disagreement:
    """Estimate the share of wrong labels: that of other labels in the most confident fifth of each predicted class.

    A model that is wrong there too makes it too high. docs/data.md has how far it was off.
    """
    predicted, certainty = probabilities_NC.argmax(axis=1), probabilities_NC.max(axis=1)
    certain = []
    for name in np.unique(predicted):
        own = np.flatnonzero(predicted == name)
        count = max(1, round(CERTAIN_SHARE * len(own)))
        certain.append(own[np.argsort(-certainty[own], kind="stable")[:count]])
    rows = np.concatenate(certain)
    others = int((predicted[rows] != labels[rows]).sum())
    return Disagreement(others / len(rows), *wilson_interval(others, len(rows)), len(rows))


def make_folds(rows: TextRows, label_space: LabelSpace, *, folds: int, seed: int) -> np.ndarray:
    """Assign rows to folds, groups together, with equal shares of each class, tenth of the scores or label."""
    assert rows.labels is not None
    group_N = row_groups(rows)
    if label_space.is_multilabel:
        strata_NK = np.column_stack([rows.labels, ~rows.labels.any(axis=1)]).astype(np.float64)
    else:
        strata_N = strata_of(rows.labels)
        strata_NK = np.eye(int(strata_N.max()) + 1)[strata_N]
    return deal_groups(strata_NK, group_N, min(folds, int(group_N.max()) + 1), "auto folds", seed)


def fold_numbers(rows: TextRows, space: LabelSpace, plan: Any, seed: int) -> np.ndarray:
    """Return the (N,) fold of each row, from 1; 0 for rows that are only trained on, -1 for rows that are not used."""
    if plan.folds > 1:
        return np.unique(make_folds(rows, space, folds=plan.folds, seed=seed), return_inverse=True)[1] + 1
    count = min(len(rows), max(2, round(len(rows) / plan.held_rows)))
    numbers = make_folds(rows, space, folds=count, seed=seed)
    folds_N = (numbers == np.unique(numbers)[0]).astype(np.int64)
    trained = np.flatnonzero(folds_N == 0)
    if plan.train_rows < len(trained) and rows.labels is not None:
        kept = trained[stratified_sample(rows.labels[trained], plan.train_rows, seed, "auto train")]
        folds_N[np.setdiff1d(trained, kept)] = -1
    return folds_N


def save_folds(file: Path, folds_N: np.ndarray) -> None:
    with storage_errors(file):
        save_file({"folds": folds_N.astype(np.int64)}, file)


def load_folds(file: Path) -> np.ndarray:
    return _arrays(file)["folds"]


def _arrays(file: Path) -> dict[str, np.ndarray]:
    try:
        return load_file(file)
    except Exception as error:  # safetensors has its own
        raise CheckpointError(f"{file}: cannot be read ({error}). Start again with --overwrite_output_dir.") from error


def held_out_energies(folders: Sequence[Path], rows: int) -> np.ndarray:
    """Return the (N,) out-of-fold energies in these run folders, of baselines with the penalty of all rows."""
    energies_N = np.full(rows, np.nan)
    for part in (_arrays(folder / HELD_OUT_FILE) for folder in folders):
        energies_N[part["rows"]] = part["energies"] if "energies" in part else energy(part["logits"])
    return energies_N


def held_out_logits(folders: Sequence[Path], rows: int) -> np.ndarray:
    """Return the (N, C) float64 out-of-fold logits in these run folders; NaN in rows that no fold predicts."""
    parts = [_arrays(folder / HELD_OUT_FILE) for folder in folders]
    logits_NC = np.full((rows, parts[0]["logits"].shape[1]), np.nan)
    for part in parts:
        logits_NC[part["rows"]] = part["logits"]
    return logits_NC


def save_out_of_fold(work: Path, logits_NC: np.ndarray) -> None:
    """Write the (N, C) fused out-of-fold logits of the training rows; NaN in rows that no fold predicts."""
    with storage_errors(work):
        save_file({"logits": np.ascontiguousarray(logits_NC)}, work / OOF_FILE)


def read_out_of_fold(folder: str | Path, rows: TextRows, label_space: LabelSpace) -> np.ndarray:
    work = Path(folder) / WORK_FOLDER
    if not (work / OOF_FILE).is_file() or not (work / PLAN_FILE).is_file():
        raise CheckpointError(
            f"{folder}: has no out-of-fold predictions ({WORK_FOLDER}/{OOF_FILE}), expected the run folder of attentune"
            " auto. Other runs have seen the rows that they would judge; leave out --run, or make one with attentune"
            " auto."
        )
    try:
        identity = read_json(work / PLAN_FILE)["identity"]
        made_of = (identity["rows"], identity["labels"]["task_type"], identity["labels"]["names"])
        logits_NC = load_file(work / OOF_FILE)["logits"]
    except Exception as error:  # safetensors has its own
        raise CheckpointError(f"{work}: cannot be read ({error}). Make the run again, or use another copy.") from error
    these = (rows.fingerprint(), label_space.task_type, list(label_space.names))
    if made_of != these or len(logits_NC) != len(rows):
        raise CheckpointError(
            f"{folder}: was made from other rows or labels than these {len(rows):,} ({rows.source}), expected the same,"
            " with the same flags for columns and labels. Give it those, or leave out --run."
        )
    return logits_NC


def label_note(folder: Path, labels: np.ndarray, logits_NC: np.ndarray, label_space: LabelSpace) -> str | None:
    """A sentence if many labels contradict out-of-fold predictions; None if not, or for scores and label sets."""
    if label_space.task_type not in ("classification", "ordinal"):
        return None
    share = disagreement(labels, probabilities_of(logits_NC, label_space))
    if share.low < HIGH_SHARE or share.value > _USELESS_SHARE:
        return None
    return f"{share_sentence(share)} To see which: attentune doctor --labels --run {folder}"


def share_sentence(share: Disagreement) -> str:
    return (
        f"Where out-of-fold predictions are most certain ({share.rows:,} rows), {100 * share.value:.1f} % have another"
        f" label (95 % interval {100 * share.low:.1f} to {100 * share.high:.1f} %): wrong labels, or texts that the"
        " model gets wrong."
    )
