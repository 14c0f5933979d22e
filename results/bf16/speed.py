"""Time predictions of a run's validation rows on one thread: `speed.py RUN ROWS`, from the root of the repository.

Prints seconds of processor time, the least of three, of `predict` and of transformers' pipeline (32 texts at a time,
sorted by length).
"""

import sys
import time
from collections.abc import Callable

import torch

from attentune import Predictor
from attentune.inference.predictor import predict_rows
from benchmarks.speed.contenders import pipeline_labels

torch.set_num_threads(1)
run, most = sys.argv[1], int(sys.argv[2])
rows = Predictor.load(run).data(None, ("validation",)).splits["validation"]
rows = rows.take(range(min(most, len(rows))))


def seconds(work: Callable[[], object]) -> float:
    """Return the least seconds of processor time of three calls; the first one does not count."""
    work()
    times = []
    for _ in range(3):
        began = time.process_time()
        work()
        times.append(time.process_time() - began)
    return min(times)


for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
    saved = Predictor.load(run)
    own = seconds(lambda saved=saved, precision=precision: predict_rows(saved, rows, precision=precision))
    labels = pipeline_labels(
        Predictor.load(run), device=torch.device("cpu"), dtype=dtype, batch_size=32, max_length=128
    )
    print(f"{precision}: predict {own:.2f} s, pipeline {seconds(lambda labels=labels: labels(rows)):.2f} s", flush=True)
