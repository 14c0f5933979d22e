"""Train CoLA with transformers' Trainer and the settings of preset `bert`, to compare the scores.

    python -m benchmarks.quality.cola_trainer [--seed 42] [--sampling random]

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
from benchmarks.common import data_dir
from benchmarks.speed.peer_runs import examples_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--sampling", choices=("random", "group_by_length"), default="random")
    given = parser.parse_args()
    config = load_config(
        preset="bert",
        overrides={"data.task": "cola", "data.data_dir": str(data_dir() / "glue_data"), "training.seed": given.seed},
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
                train_sampling_strategy=given.sampling,
                seed=given.seed,
                save_strategy="no",
                eval_strategy="epoch",
                report_to="none",
                disable_tqdm=True,
            ),
            train_dataset=examples["train"],
            eval_dataset=examples["validation"],
            data_collator=DataCollatorWithPadding(tokenizer),
            compute_metrics=lambda output: {"mcc": matthews_corrcoef(output.label_ids, output.predictions.argmax(-1))},
        )
        trainer.train()
    print(*(f"{facts['eval_mcc']:.3f}" for facts in trainer.state.log_history if "eval_mcc" in facts))


if __name__ == "__main__":
    main()
