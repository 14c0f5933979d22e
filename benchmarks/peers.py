"""Training speed beside transformers' Trainer: same encoder, same rows, same epochs, batch 32, in one run.

    python benchmarks/peers.py [--rows 1000] [--repeats 3]

Writes results/bench/peers.json. The Trainer runs at its best on this machine: bf16 where the hardware has it, batches
by length, dynamic padding, fused AdamW, no checkpoints. Each repeat runs both, in turn, so that a machine whose speed
drifts does not favour one. Needs CoLA: $ATTENTUNE_DATA, else ../shared/data.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding, Trainer, TrainingArguments

from attentune.config import Config, load_config
from attentune.data.features import encode_rows
from attentune.data.load import load_data
from attentune.models.build import load_tokenizer, resolve_encoder
from attentune.models.precision import has_fast_bf16
from attentune.results import versions
from attentune.training.display import Display
from attentune.training.run import train

ROOT = Path(__file__).resolve().parents[1]


def settings(rows: int, folder: str) -> Config:
    """One epoch of CoLA, without scoring."""
    return load_config(
        preset="bert",
        overrides={
            "data.task": "cola",
            "data.data_dir": str(Path(os.environ.get("ATTENTUNE_DATA", ROOT / "../shared/data")) / "glue_data"),
            "data.max_train_samples": rows,
            "training.num_train_epochs": 1,
            "training.eval_strategy": "no",
            "training.output_dir": folder,
            "training.overwrite_output_dir": True,
        },
    )


def ours(rows: int) -> dict[str, float]:
    """Seconds and tokens of our own loop."""
    with tempfile.TemporaryDirectory() as folder:
        facts = train(settings(rows, folder), display=Display(quiet=True)).train
    return {"seconds": facts["seconds"], "tokens": facts["tokens"]}


def trainer(rows: int) -> dict[str, float]:
    """Seconds and tokens of transformers' Trainer on the same rows."""
    config = settings(rows, "unused")
    data = load_data(config.data, seed=config.training.seed, splits=("train",))
    tokenizer = load_tokenizer(config.model)
    features = encode_rows(data.splits["train"], tokenizer, max_length=config.data.max_length)
    examples = [
        {"input_ids": features.ids[features.row(row)].tolist(), "labels": int(data.splits["train"].labels[row])}
        for row in range(len(features))
    ]
    model = AutoModelForSequenceClassification.from_pretrained(resolve_encoder("embedded"), num_labels=2)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            per_device_train_batch_size=32,
            num_train_epochs=1,
            learning_rate=5e-5,
            bf16=has_fast_bf16(torch.device("cpu")),
            use_cpu=True,
            train_sampling_strategy="group_by_length",
            optim="adamw_torch_fused",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            logging_strategy="no",
        )
        peer = Trainer(model, arguments, train_dataset=examples, data_collator=DataCollatorWithPadding(tokenizer))
        began = time.perf_counter()
        peer.train()
        return {"seconds": time.perf_counter() - began, "tokens": int(features.lengths.sum())}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    runs = [{"trainer": trainer(given.rows), "attentune": ours(given.rows)} for _ in range(given.repeats)]
    speeds = {
        name: [round(run[name]["tokens"] / run[name]["seconds"], 1) for run in runs]
        for name in ("trainer", "attentune")
    }
    ratios = [b / a for a, b in zip(speeds["trainer"], speeds["attentune"], strict=True)]
    record = {
        "command": f"python benchmarks/peers.py --rows {given.rows} --repeats {given.repeats}",
        "task": "cola",
        "tokens_per_second": speeds,
        "median_ratio": round(statistics.median(ratios), 3),
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }
    target = ROOT / "results" / "bench" / "peers.json"
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(record, indent=1) + "\n")
    print(json.dumps({key: record[key] for key in ("tokens_per_second", "median_ratio", "threads")}, indent=1))


if __name__ == "__main__":
    main()
