"""Self-Supervised Attention in transformers' own Trainer: python examples/ssa_in_trainer.py [ENCODER] [FOLDER]"""

import sys
from pathlib import Path

from datasets import Dataset
from transformers import Trainer, TrainingArguments

import attentune
from attentune.integrations.hf_trainer import new_model

encoder = sys.argv[1] if len(sys.argv) > 1 else "embedded"  # or a folder, or a name on the Hugging Face hub
folder = Path(sys.argv[2] if len(sys.argv) > 2 else "runs/trainer-example")

words = {"good": ["lovely", "great", "fine", "moving"], "bad": ["dull", "awful", "poor", "boring"]}
things = ["film", "story", "music", "ending", "hero", "dialogue", "picture", "plot"]
names = ["bad", "good"]
texts = [(f"The {thing} was {word}.", label) for label in words for word in words[label] for thing in things]

model, tokenizer = new_model(encoder, names, preset="ssa-hybrid", max_length=32)
rows = Dataset.from_list([{"text": text, "label": names.index(label)} for text, label in texts])
rows = rows.map(lambda row: tokenizer(row["text"], truncation=True))

ssa = attentune.SSACallback(model, tokenizer, rows)  # labels tokens before each epoch but the first
arguments = TrainingArguments(
    str(folder),
    num_train_epochs=4,
    per_device_train_batch_size=16,
    learning_rate=2e-4,
    report_to="none",
    save_strategy="no",
    disable_tqdm=True,
    use_cpu=True,
)
trainer = Trainer(model, arguments, ssa.collator, train_dataset=rows, processing_class=tokenizer, callbacks=[ssa])
trainer.train()
trainer.save_model(str(folder / "final"))

print("labels of the last epoch:", ssa.facts[-1])
for text in ("The costumes were lovely.", "The sound was awful."):
    print(text, attentune.predict(folder / "final", [text])[0]["prediction"])
