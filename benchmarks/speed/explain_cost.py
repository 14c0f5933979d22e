"""What explanations cost: each method by passes and seconds, and `predict --explain` beside `predict`.

    python -m benchmarks.speed.explain_cost RUN [--tokens 64] [--texts 1] [--methods ssa,integrated-gradients,shap,lime]
    python -m benchmarks.speed.explain_cost RUN --column --task sst2 --data_dir FOLDER

The first times methods on texts of these lengths and batches, with their default settings: integrated gradients 50
steps, SHAP 500 copies, LIME 5,000. The second times predictions of a file's rows with and without the column of
importance, alternating: from rows to the text of the CSV. Both write JSON to standard output. Times are CPU time of
this process; set OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

from attentune.config import DataConfig
from attentune.data.dataset import TextRows
from attentune.explain.predict_explained import EXPLANATION, predict_explained
from attentune.inference.predictions import predictions_csv
from attentune.inference.predictor import Predictor, predict_rows
from attentune.results import versions
from attentune_lab.faithfulness.cost import measure_cost


def methods_cost(saved: Predictor, rows: TextRows, given: argparse.Namespace) -> dict[str, Any]:
    """Each method's cost at these lengths and batches, and how many times that of `ssa` it is."""
    lengths, batches = ([int(number) for number in text.split(",")] for text in (given.tokens, given.texts))
    saved.model.config.max_seq_length = max(lengths)  # whatever it was trained on
    lines = measure_cost(
        saved,
        rows,
        methods=given.methods.split(","),
        lengths=lengths,
        batches=batches,
        precision=given.precision,
        budget_s=given.budget,
        clock=time.process_time,
    )
    ssa = {(line.tokens, line.texts): line.median_s for line in lines if line.method == "ssa"}
    found = []
    for line in lines:
        own = ssa.get((line.tokens, line.texts))
        times_ssa = line.median_s / own if own and line.median_s else None
        found.append({**dataclasses.asdict(line), "times_ssa": times_ssa})
    return {"lines": found, "precision": given.precision or saved.config.training.precision}


def column_cost(saved: Predictor, rows: TextRows, turns: int, precision: str | None) -> dict[str, Any]:
    """Seconds of CPU time of predictions with and without the column; CPU time, so that neighbours do not count."""

    def plain() -> str:
        return predictions_csv(rows, predict_rows(saved, rows, precision=precision), saved.label_space)

    def explained() -> str:
        logits, column = predict_explained(saved, rows, precision=precision)
        return predictions_csv(rows, logits, saved.label_space, {EXPLANATION: column})

    plain(), explained()
    pairs = [(spent(plain), spent(explained)) for _ in range(turns)]
    return {
        "rows": len(rows),
        "predict_s": statistics.median(own for own, _ in pairs),
        "predict_explain_s": statistics.median(own for _, own in pairs),
        "overhead": statistics.median(other / own for own, other in pairs) - 1.0,
        "turns": [list(pair) for pair in pairs],
    }


def spent(work: Callable[[], object]) -> float:
    """The CPU time that this process needs for it."""
    began = time.process_time()
    work()
    return time.process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run")
    parser.add_argument("--task")
    parser.add_argument("--data_dir")
    parser.add_argument("--tokens", default="64", help="tokens of a text, separated by commas")
    parser.add_argument("--texts", default="1", help="texts in a batch, separated by commas")
    parser.add_argument("--methods", default="ssa,gradient,attention,leave-one-out,integrated-gradients,shap,lime")
    parser.add_argument("--budget", type=float, default=60.0, help="seconds a method")
    parser.add_argument("--column", action="store_true", help="predict --explain beside predict")
    parser.add_argument("--repeats", "--turns", type=int, default=9)
    parser.add_argument("--precision")
    given = parser.parse_args()
    saved = Predictor.load(given.run)
    data = DataConfig(task=given.task, data_dir=given.data_dir) if given.task else None
    rows = next(iter(saved.data(data, ("validation",)).splits.values()))
    found = (
        column_cost(saved, rows, given.repeats, given.precision) if given.column else methods_cost(saved, rows, given)
    )
    words = {"threads": os.environ.get("OMP_NUM_THREADS", "all cores"), "versions": versions()}
    print(json.dumps({**found, **words}, indent=1))


if __name__ == "__main__":
    main()
