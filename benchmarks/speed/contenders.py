"""Run one contender once: `python -m benchmarks.speed.contenders training|prediction CONTENDER TASK ROWS ENCODER|RUN`.

For `peers.py`. Training takes the folder of an encoder, or `embedded`; prediction a run of preset `bert`, whose weights
all contenders have, the pipelines in transformers' own class. Prints a line of JSON: seconds (of prediction from texts
to labels, the median of three), texts and non-padding tokens, peak memory of the process (or of the GPU), the score on
the validation file. $ATTENTUNE_BENCH_DEVICE is "cpu" if not set, or "cuda". If $ATTENTUNE_BENCH_CLOCK is "cpu", seconds
are processor time instead of elapsed time: equal on one thread of a quiet machine, and nearly so where others use it.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForSequenceClassification,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    pipeline,
)

from attentune.config import Config, load_config
from attentune.data.dataset import TextRows
from attentune.data.load import load_data
from attentune.data.tokenization import encode_rows
from attentune.inference.predictor import ModelPredictor, Predictor, predict_rows
from attentune.integrations.transformers import stock_model, unavailable_reason
from attentune.metrics.metrics import predictions_of
from attentune.models.build import load_tokenizer, resolve_encoder
from attentune.models.precision import has_fast_bf16
from attentune.nn.compiled.memory import peak_memory_bytes
from attentune.training.callbacks import ProgressDisplay
from attentune.training.run import train
from benchmarks.common import data_dir, use_chosen_clock

OURS: dict[str, dict[str, Any]] = {
    "attentune bert": {"preset": "bert"},
    "attentune ssa-hybrid, flip": {"preset": "ssa-hybrid"},
    "attentune sesame": {"preset": "sesame"},
    "attentune task-attention": {"preset": "task-attention"},
}
# Arguments of transformers' Trainer: its schedule, nothing written or shown, and what makes it fast.
SCHEDULE: dict[str, Any] = {"warmup_steps": 0.1, "weight_decay": 0.01}
QUIET: dict[str, Any] = {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "logging_strategy": "no"}
AT_BEST: dict[str, Any] = {"train_sampling_strategy": "group_by_length", "optim": "adamw_torch_fused"}
DEVICE = torch.device(os.environ.get("ATTENTUNE_BENCH_DEVICE", "cpu"))
MAX_LENGTHS = {"cfimdb": 512}  # of the other tasks 128 tokens
BATCH_SIZE = int(os.environ.get("ATTENTUNE_BENCH_BATCH_SIZE", "32"))  # of training
SCORED_ROWS = os.environ.get("ATTENTUNE_BENCH_SCORED_ROWS")  # of the validation file; all if not set
Labels = Callable[[TextRows], np.ndarray]
EPOCHS = 2  # the first epoch of SSA has no labels yet


def uses_bf16() -> bool:
    """Whether contenders at their best compute in bf16: where the hardware does, unless the environment says fp32."""
    return os.environ.get("ATTENTUNE_BENCH_PRECISION") != "fp32" and has_fast_bf16(DEVICE)


def settings(task: str, rows: int, folder: str, **changes: Any) -> Config:
    """Return the settings that all contenders share."""
    return load_config(
        overrides={
            "preset": "bert",
            "data.task": task,
            "data.data_dir": str(data_dir() / ("cs224n" if task == "cfimdb" else "glue_data")),
            "data.max_length": MAX_LENGTHS.get(task, 128),
            "data.max_train_samples": rows,
            "training.num_train_epochs": EPOCHS,
            "training.learning_rate": 5e-5,
            "training.eval_strategy": "epoch",
            "training.eval_steps": None,
            "training.output_dir": folder,
            "training.overwrite_output_dir": True,
            "training.use_cpu": DEVICE.type == "cpu",
            "training.per_device_train_batch_size": BATCH_SIZE,
            "training.precision": "auto" if uses_bf16() else "fp32",
            **({"data.max_eval_samples": int(SCORED_ROWS)} if SCORED_ROWS else {}),
            **changes,
        },
    )


def ours(method: str, task: str, rows: int, encoder: str) -> dict[str, float]:
    """Our own loop; making labels counts as training."""
    with tempfile.TemporaryDirectory() as folder:
        config = settings(task, rows, folder, **OURS[method], **{"model.name_or_path": encoder})
        result = train(config, display=ProgressDisplay(quiet=True))
    scores = next(iter(result.scores.values()))
    facts = result.train
    seconds = facts["seconds"] + facts.get("label_seconds", 0)
    return {"seconds": seconds, "tokens": facts["tokens"], "score": next(iter(scores.values()))}


def examples_of(config: Config) -> tuple[dict[str, list[dict[str, Any]]], Any, int]:
    """Tokenised rows of both splits, the tokenizer, and the real tokens of the training rows."""
    data = load_data(config.data, seed=config.training.seed, splits=("train", "validation"))
    tokenizer = load_tokenizer(config.model)
    made, tokens = {}, 0
    for split, rows in data.splits.items():
        assert rows.labels is not None
        features = encode_rows(rows, tokenizer, max_length=config.data.max_length)
        made[split] = [
            {
                "input_ids": features.ids[features.row(row)].tolist(),
                "labels": int(rows.labels[row]),
                **(
                    {}
                    if features.type_ids is None
                    else {"token_type_ids": features.type_ids[features.row(row)].tolist()}
                ),
            }
            for row in range(len(features))
        ]
        tokens = int(features.lengths.sum()) if split == "train" else tokens
    return made, tokenizer, tokens


def trainer(at_best: bool, task: str, rows: int, encoder: str) -> dict[str, float]:
    """transformers' Trainer: as `run_glue` sets it (fp32, padded to 128), or at its best on this machine."""
    config = settings(task, rows, "unused", **{"model.name_or_path": encoder})
    examples, tokenizer, tokens = examples_of(config)
    best: dict[str, Any] = {"bf16": uses_bf16(), **AT_BEST}
    padding: dict[str, Any] = {} if at_best else {"padding": "max_length", "max_length": config.data.max_length}
    with tempfile.TemporaryDirectory() as folder:
        peer = Trainer(
            AutoModelForSequenceClassification.from_pretrained(resolve_encoder(encoder), num_labels=2),
            TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=BATCH_SIZE,
                per_device_eval_batch_size=32,
                num_train_epochs=EPOCHS,
                learning_rate=config.training.learning_rate,
                use_cpu=DEVICE.type == "cpu",
                **SCHEDULE,
                **QUIET,
                **(best if at_best else {}),
            ),
            train_dataset=examples["train"],
            data_collator=DataCollatorWithPadding(tokenizer, **padding),
        )
        began = time.perf_counter()
        peer.train()
        seconds = time.perf_counter() - began
        said = peer.predict(examples["validation"])
    return {
        "seconds": seconds,
        "tokens": EPOCHS * tokens,
        "score": score_of(task, said.predictions.argmax(-1), said.label_ids),
    }


def cross_encoder(task: str, rows: int, encoder: str) -> dict[str, float]:
    """sentence-transformers' CrossEncoder trainer, with its defaults but for batch size, epochs and rate."""
    from datasets import Dataset
    from sentence_transformers.cross_encoder import CrossEncoder, CrossEncoderTrainer, CrossEncoderTrainingArguments
    from sentence_transformers.cross_encoder.losses import CrossEntropyLoss

    config = settings(task, rows, "unused", **{"model.name_or_path": encoder})
    data = load_data(config.data, seed=config.training.seed, splits=("train", "validation"))
    _, _, tokens = examples_of(config)
    train_rows, dev = data.splits["train"], data.splits["validation"]
    assert train_rows.labels is not None
    assert dev.labels is not None
    if train_rows.pairs is None or dev.pairs is None:
        raise SystemExit("CrossEncoder reads pairs")
    columns = {"sentence1": list(train_rows.texts), "sentence2": list(train_rows.pairs)}
    model = CrossEncoder(resolve_encoder(encoder), num_labels=2, max_length=config.data.max_length, device=str(DEVICE))
    with tempfile.TemporaryDirectory() as folder:
        peer = CrossEncoderTrainer(
            model=model,
            args=CrossEncoderTrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=BATCH_SIZE,
                num_train_epochs=EPOCHS,
                learning_rate=config.training.learning_rate,
                bf16=has_fast_bf16(DEVICE),
                use_cpu=DEVICE.type == "cpu",
                **QUIET,
            ),
            train_dataset=Dataset.from_dict({**columns, "label": [int(label) for label in train_rows.labels]}),
            loss=CrossEntropyLoss(model),
        )
        began = time.perf_counter()
        peer.train()
        seconds = time.perf_counter() - began
    said = model.predict(list(zip(dev.texts, dev.pairs, strict=True)), show_progress_bar=False)
    return {"seconds": seconds, "tokens": EPOCHS * tokens, "score": score_of(task, said.argmax(-1), dev.labels)}


def score_of(task: str, predicted: np.ndarray, gold: np.ndarray) -> float:
    """The task's first metric."""
    from sklearn.metrics import accuracy_score, matthews_corrcoef

    return float(matthews_corrcoef(gold, predicted) if task == "cola" else accuracy_score(gold, predicted))


def our_labels(precision: str | None, saved: ModelPredictor, max_length: int) -> Labels:
    """`attentune predict`, from texts on."""
    if precision == "bf16" and not uses_bf16():
        raise SystemExit("bf16 is not fast here")
    return lambda rows: predictions_of(predict_rows(saved, rows, precision=precision), saved.label_space)


def pipeline_contender(at_best: bool, in_bf16: bool, saved: ModelPredictor, max_length: int) -> Labels:
    """transformers' pipeline: as it comes (fp32, row by row), or at its best here (32 rows, sorted by length)."""
    dtype = torch.bfloat16 if in_bf16 and uses_bf16() else torch.float32
    batch_size = 32 if at_best else None
    return pipeline_labels(saved, device=DEVICE, dtype=dtype, batch_size=batch_size, max_length=max_length)


def pipeline_labels(
    saved: ModelPredictor,
    *,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    batch_size: int | None = None,
    max_length: int | None = None,
) -> Labels:
    """Return a function from rows to the labels that transformers' pipeline predicts with the weights of a run."""
    if reason := unavailable_reason(saved.model):
        raise SystemExit(reason)
    model: Any = stock_model(saved.model).to(dtype)
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


def predicted(labels_by: Callable[[ModelPredictor, int], Labels], task: str, rows: int, run: str) -> dict[str, float]:
    """Time the predictions of a run."""
    saved = Predictor.load(run).single_model("the benchmark")
    data = saved.data(settings(task, rows, "unused").data, ("train", "validation"))
    texts, dev = data.splits["train"], data.splits["validation"]
    max_length = MAX_LENGTHS.get(task, 128)
    labels = labels_by(saved, max_length)
    assert dev.labels is not None
    score = score_of(task, labels(dev), dev.labels)
    times = []
    for _ in range(3):
        began = time.perf_counter()
        labels(texts)
        times.append(time.perf_counter() - began)
    tokens = int(encode_rows(texts, saved.tokenizer, max_length=max_length).lengths.sum())
    return {"seconds": statistics.median(times), "texts": len(texts), "tokens": tokens, "score": score}


TRAINERS: dict[str, Callable[[str, int, str], dict[str, float]]] = {
    "Trainer as run_glue": partial(trainer, False),
    "Trainer at its best": partial(trainer, True),
    "CrossEncoder": cross_encoder,
    **{name: partial(ours, name) for name in OURS},
}
PREDICTORS: dict[str, Callable[[ModelPredictor, int], Labels]] = {
    "pipeline": partial(pipeline_contender, False, False),
    "pipeline at its best, fp32": partial(pipeline_contender, True, False),
    "pipeline at its best": partial(pipeline_contender, True, True),
    "attentune": partial(our_labels, None),
    "attentune bf16": partial(our_labels, "bf16"),
}
CONTENDERS: dict[str, Mapping[str, Callable[..., dict[str, float]]]] = {
    "training": TRAINERS,
    "prediction": {name: partial(predicted, labels_by) for name, labels_by in PREDICTORS.items()},
}


if __name__ == "__main__":
    use_chosen_clock()
    facts = CONTENDERS[sys.argv[1]][sys.argv[2]](sys.argv[3], int(sys.argv[4]), sys.argv[5])
    print(json.dumps({"texts": EPOCHS * int(sys.argv[4]), **facts, "peak_memory_bytes": peak_memory_bytes(DEVICE)}))
