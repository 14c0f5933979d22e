"""Do token labels point at the words that decide, or at the shortcut? On synthetic reviews the truth is known.

    python -m benchmarks.quality.label_truth [GENERATOR ...]

Trains `ssa-hybrid` with each label generator on the 1,200 reviews of `attentune demo --shortcut`, and compares the
last epoch's labels and the trained token head's scores on three kinds of tokens: the words that decide the label by
construction, the cinema's name that goes with it in training, and all others. The record goes to results/.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from typing import Any

from attentune.config import load_config
from attentune.token_labels.listing import list_tokens
from attentune.training.progress import ProgressDisplay
from attentune.training.train import train
from attentune_lab.shortcut import SETTINGS, data_settings
from attentune_lab.synthetic import DemoRow, look_up
from benchmarks.common import RESULTS, ROOT, command_of, write_record

FOLDER = ROOT / "runs" / "label-truth"
SEED = 42


def kind_of(row: DemoRow, start: int, end: int) -> str:
    """What a token at these characters is, by construction."""
    if any(first < end and start < last for first, last in row.decisive):
        return "decisive"
    if row.shortcut is not None and row.shortcut[0] < end and start < row.shortcut[1]:
        return "shortcut"
    return "other"


def measure(generator: str) -> dict[str, Any]:
    """Train with one generator, and sum up its labels by kind of token."""
    run = FOLDER / generator
    overrides = {
        "labels.generator": generator,
        **data_settings(FOLDER / "data", seed=SEED),
        "training.seed": SEED,
        **SETTINGS,
        "training.output_dir": str(run),
        "training.overwrite_output_dir": True,
    }
    result = train(load_config(overrides=overrides, preset="ssa-hybrid"), display=ProgressDisplay(quiet=True))
    kinds: dict[str, list[tuple[float | None, float]]] = {"decisive": [], "shortcut": [], "other": []}
    for line in list_tokens(run):
        (row,) = look_up([line["id"]], seed=SEED)
        for token in line["tokens"]:
            kinds[kind_of(row, token["start"], token["end"])].append((token["label"], token["score"]))
    return {
        "accuracy": {split: scores["accuracy"] for split, scores in result.scores.items()},
        "tokens": {kind: summed_up(found) for kind, found in kinds.items()},
    }


def summed_up(found: list[tuple[float | None, float]]) -> dict[str, float]:
    """How many tokens, how many labelled, their mean label, and the mean score of all."""
    labels = [label for label, _ in found if label is not None]
    return {
        "tokens": len(found),
        "labelled": len(labels),
        "mean_label": round(statistics.mean(labels), 4) if labels else float("nan"),
        "mean_score": round(statistics.mean(score for _, score in found), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("generators", nargs="*", default=["flip", "gradient", "leave-one-out"])
    given = parser.parse_args()
    record = {
        "command": command_of("benchmarks.quality.label_truth", given.generators),
        "generators": {generator: measure(generator) for generator in given.generators},
        "threads": os.environ.get("OMP_NUM_THREADS", "all cores"),
    }
    write_record(RESULTS / "label-truth.json", record)
    print(json.dumps(record["generators"], indent=1))


if __name__ == "__main__":
    main()
