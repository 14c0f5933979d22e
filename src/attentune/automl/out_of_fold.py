"""The out-of-fold predictions of what `auto` delivers, in `auto/oof.safetensors` of its run folder."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.label_errors import HIGH_SHARE, Disagreement, disagreement
from attentune.errors import CheckpointError
from attentune.io.files import read_json, storage_errors
from attentune.metrics.metrics import probabilities_of

WORK_FOLDER, PLAN_FILE, OOF_FILE = "auto", "plan.json", "oof.safetensors"


def save_out_of_fold(work: Path, logits_NC: np.ndarray) -> None:
    """Write the (N, C) fused out-of-fold logits of the training rows; NaN in rows that no fold predicts."""
    with storage_errors(work):
        save_file({"logits": np.ascontiguousarray(logits_NC)}, work / OOF_FILE)


def read_out_of_fold(folder: str | Path, rows: TextRows, label_space: LabelSpace) -> np.ndarray:
    """Read what `save_out_of_fold` wrote."""
    work = Path(folder) / WORK_FOLDER
    if not (work / OOF_FILE).is_file() or not (work / PLAN_FILE).is_file():
        raise CheckpointError(
            f"{folder}: has no out-of-fold predictions ({WORK_FOLDER}/{OOF_FILE}), expected the run folder of attentune"
            " auto. Other runs have seen the rows that they would judge; leave out --run, or make one with attentune"
            " auto."
        )
    try:
        identity = read_json(work / PLAN_FILE)["identity"]
        logits_NC = load_file(work / OOF_FILE)["logits"]
    except Exception as error:  # safetensors has its own
        raise CheckpointError(f"{work}: cannot be read ({error}). Make the run again, or use another copy.") from error
    labels = json.loads(json.dumps(dataclasses.asdict(label_space)))
    same_labels = {name: identity["labels"].get(name) for name in ("task_type", "names")} == {
        name: labels[name] for name in ("task_type", "names")
    }
    if identity["rows"] != rows.fingerprint() or not same_labels or len(logits_NC) != len(rows):
        raise CheckpointError(
            f"{folder}: was made from other rows or labels than these {len(rows):,} ({rows.source}), expected the same,"
            " with the same flags for columns and labels. Give it those, or leave out --run."
        )
    return logits_NC


def label_note(folder: Path, labels: np.ndarray, logits_NC: np.ndarray, label_space: LabelSpace) -> str | None:
    """A sentence if many labels contradict out-of-fold predictions; None if not, or for scores and label sets."""
    if label_space.task_type not in ("classification", "ordinal"):
        return None
    share: Disagreement = disagreement(labels, probabilities_of(logits_NC, label_space))
    if share.low < HIGH_SHARE:
        return None
    return f"{share_sentence(share)} To see which: attentune doctor --labels --run {folder}"


def share_sentence(share: Disagreement) -> str:
    """Say in words how many labels may be wrong."""
    return (
        f"Where out-of-fold predictions are most certain ({share.rows:,} rows), {100 * share.value:.1f} % have another"
        f" label (95 % interval {100 * share.low:.1f} to {100 * share.high:.1f} %): wrong labels, or texts that the"
        " model gets wrong."
    )
