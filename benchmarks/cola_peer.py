"""transformers' Trainer on all of CoLA in the regime of `bert`: what a plain run scores, to set ours beside.

    python benchmarks/cola_peer.py [--seed 42] [--sampling random]

Prints the dev Matthews correlation after each of four epochs: the embedded encoder with its own pooler, learning rate
5e-5, batches of 32, warm-up over a tenth of the steps, weight decay 0.01, bf16. Needs CoLA: $ATTENTUNE_DATA, else
../shared/data.
"""

from __future__ import annotations

import argparse
import tempfile

from sklearn.metrics import matthews_corrcoef
from transformers import AutoModelForSequenceClassification, DataCollatorWithPadding, Trainer, TrainingArguments

from attentune.config import load_config
from attentune.models.build import resolve_encoder
from peer_runs import examples_of
from places import data_dir


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--sampling", choices=("random", "group_by_length"), default="random")
    asked = parser.parse_args()
    config = load_config(
        preset="bert",
        overrides={"data.task": "cola", "data.data_dir": str(data_dir() / "glue_data"), "training.seed": asked.seed},
    )
    examples, tokenizer, _ = examples_of(config)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            model=AutoModelForSequenceClassification.from_pretrained(resolve_encoder("embedded"), num_labels=2),
            args=TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=32,
                num_train_epochs=4,
                learning_rate=5e-5,
                warmup_steps=0.1,
                weight_decay=0.01,
                bf16=True,
                use_cpu=True,
                train_sampling_strategy=asked.sampling,
                seed=asked.seed,
                save_strategy="no",
                eval_strategy="epoch",
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=examples["train"],
            eval_dataset=examples["validation"],
            data_collator=DataCollatorWithPadding(tokenizer),
            compute_metrics=lambda said: {"mcc": matthews_corrcoef(said.label_ids, said.predictions.argmax(-1))},
        )
        trainer.train()
    print(*(f"{facts['eval_mcc']:.3f}" for facts in trainer.state.log_history if "eval_mcc" in facts))


if __name__ == "__main__":
    main()
