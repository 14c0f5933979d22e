"""Compare predictions in bf16 with those in float32, alone and in batches: `measure.py RUN ...`; a line a run."""

import json
import sys

import numpy as np

from attentune import Predictor
from attentune.inference.predictor import predict_rows
from attentune.metrics.metrics import probabilities_of

MOVED = 0.001


def compare(one_NC: np.ndarray, other_NC: np.ndarray) -> dict[str, float]:
    """Count the rows whose class differs, and those whose probabilities differ by more than a thousandth."""
    differences_N = np.abs(one_NC - other_NC).max(axis=1)
    return {
        "flipped": int((one_NC.argmax(axis=1) != other_NC.argmax(axis=1)).sum()),
        "moved": int((differences_N > MOVED).sum()),
        "largest": float(f"{differences_N.max():.3g}"),
    }


for run in sys.argv[1:]:
    saved = Predictor.load(run)
    rows = saved.data(None, ("validation",)).splits["validation"]
    order = np.random.default_rng(0).permutation(len(rows))
    found = {}
    for precision in ("fp32", "bf16"):
        for size in (1, 50, len(rows)):
            logits = np.zeros((len(rows), saved.label_space.num_labels))
            for start in range(0, len(rows), size):
                batch = order[start : start + size]
                logits[batch] = predict_rows(saved, rows.take(batch), precision=precision)
            found[precision, size] = probabilities_of(logits, saved.label_space)
    whole = found["fp32", len(rows)]
    facts = {
        "rows": len(rows),
        "bf16 and fp32": compare(found["bf16", len(rows)], whole),
        "bf16, alone and in batches of 50": compare(found["bf16", 1], found["bf16", 50]),
        "fp32, alone and in batches of 50": compare(found["fp32", 1], found["fp32", 50]),
        "fp32, alone and all at once": compare(found["fp32", 1], whole),
    }
    print(json.dumps({"task": saved.config.data.task, **facts}))
