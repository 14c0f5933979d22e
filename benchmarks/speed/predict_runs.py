"""Time one contender's predictions, for `predict.py`.

    python -m benchmarks.speed.predict_runs CONTENDER RUN TASK ROWS REPEATS

Prints a line of JSON: seconds from texts to labels (the median of the repeats), real tokens, the process's peak memory,
and the score on the validation file. All contenders have the weights of RUN, a run of preset `bert`; the pipelines have
them in transformers' own class.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import BertForSequenceClassification, pipeline

from attentune.data.dataset import TextRows
from attentune.data.tokenization import encode_rows
from attentune.inference.predictor import Predictor, predict_rows
from attentune.metrics.metrics import predictions_of
from attentune.training.memory import peak_memory_bytes
from benchmarks.common import use_chosen_clock
from benchmarks.speed.peer_runs import MAX_LENGTHS, score_of, settings, uses_bf16

CPU = torch.device("cpu")
Labels = Callable[[TextRows], np.ndarray]


def stock_model(saved: Predictor) -> BertForSequenceClassification:
    """The run's weights in transformers' own class."""
    model = BertForSequenceClassification(saved.model.encoder.config)
    own = saved.model.state_dict()
    names = {f"bert.{name.removeprefix('encoder.')}": name for name in own if name.startswith("encoder.")}
    for part in ("weight", "bias"):
        names[f"bert.pooler.dense.{part}"] = f"head.pooler.dense.{part}"
        names[f"classifier.{part}"] = f"classifier.{part}"
    model.load_state_dict({theirs: own[mine] for theirs, mine in names.items()})
    return model.eval()


def ours(precision: str | None, saved: Predictor, max_length: int) -> Labels:
    """`attentune predict`, from texts on."""
    precision = precision or (None if uses_bf16() else "fp32")
    return lambda rows: predictions_of(predict_rows(saved, rows, precision=precision), saved.label_space)


def stock(at_best: bool, saved: Predictor, max_length: int) -> Labels:
    """transformers' pipeline: as it comes (fp32, row by row), or at its best here (bf16, 32 rows, sorted by length)."""
    dtype = torch.bfloat16 if at_best and uses_bf16() else torch.float32
    batch_size = 32 if at_best else None
    return pipeline_labels(saved, device=CPU, dtype=dtype, batch_size=batch_size, max_length=max_length)


def pipeline_labels(
    saved: Predictor,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    batch_size: int | None = None,
    max_length: int | None = None,
) -> Labels:
    """Return a function from rows to the labels that transformers' pipeline predicts with the weights of a run."""
    model = stock_model(saved).to(dtype)
    classify = pipeline("text-classification", model=model, tokenizer=saved.tokenizer, device=device)
    max_length = max_length or int(saved.model.config.max_seq_length)
    more: dict[str, Any] = {} if batch_size is None else {"batch_size": batch_size}

    def labels(rows: TextRows) -> np.ndarray:
        texts: Sequence[Any] = rows.texts
        if rows.pairs is not None:
            texts = [{"text": one, "text_pair": two} for one, two in zip(rows.texts, rows.pairs, strict=True)]
        sizes = [len(text) + len(pair) for text, pair in zip(rows.texts, rows.pairs or rows.texts, strict=True)]
        order = np.arange(len(texts)) if batch_size is None else np.argsort(sizes)[::-1]
        said = classify([texts[place] for place in order], truncation=True, max_length=max_length, **more)
        found = np.empty(len(texts), dtype=np.int64)
        found[order] = [model.config.label2id[one["label"]] for one in said]
        return found

    return labels


CONTENDERS: dict[str, Callable[[Predictor, int], Labels]] = {
    "pipeline": partial(stock, False),
    "pipeline at its best": partial(stock, True),
    "attentune": partial(ours, None),
    "attentune fp32": partial(ours, "fp32"),
    "attentune bf16-true": partial(ours, "bf16-true"),
    "attentune int8": partial(ours, "int8"),
}


def main(contender: str, run: str, task: str, rows: int, repeats: int) -> None:
    saved = Predictor.load(run)
    data = saved.data(settings(task, rows, "unused").data, ("train", "validation"))
    texts, dev = data.splits["train"], data.splits["validation"]
    max_length = MAX_LENGTHS.get(task, 128)
    labels = CONTENDERS[contender](saved, max_length)
    score = score_of(task, labels(dev), dev.labels)
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        labels(texts)
        times.append(time.perf_counter() - began)
    facts = {
        "seconds": statistics.median(times),
        "tokens": int(encode_rows(texts, saved.tokenizer, max_length=max_length).lengths.sum()),
        "score": score,
        "peak_memory_bytes": peak_memory_bytes(CPU),
    }
    print(json.dumps(facts))


if __name__ == "__main__":
    use_chosen_clock()
    main(*sys.argv[1:4], *map(int, sys.argv[4:]))
