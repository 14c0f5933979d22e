"""Pairs in a bi-encoder with cross-attention: python examples/pairs_cross_attention.py [ENCODER] [FOLDER]"""

import csv
import random
import sys
from pathlib import Path

import attentune

encoder = sys.argv[1] if len(sys.argv) > 1 else "embedded"  # or a folder, or a name on the Hugging Face hub
folder = Path(sys.argv[2] if len(sys.argv) > 2 else "runs/pairs-example")
folder.mkdir(parents=True, exist_ok=True)

# A question, and an answer that is about the same thing or about another one.
answers = {"rice": "Boil it in water.", "the train": "It leaves at nine.", "the film": "It was moving."}
asked = ["What about {}?", "Tell me of {}.", "I want to know more of {}.", "How is it with {}?"]
draw = random.Random(0)
rows = []
for question in asked:
    for thing, answer in answers.items():
        other = draw.choice([text for name, text in answers.items() if name != thing])
        rows += [(question.format(thing), answer, "fits"), (question.format(thing), other, "does not")]
with (folder / "pairs.csv").open("w", newline="", encoding="utf-8") as file:
    csv.writer(file).writerows([("question", "answer", "label"), *rows])

settings = {
    "model.name_or_path": encoder,
    "model.head.combine": "concat",  # a linear on both vectors; the preset has a dot product
    "data.train_file": str(folder / "pairs.csv"),
    "data.text_column": "question",
    "data.text_pair_column": "answer",
    "training.output_dir": str(folder / "run"),
    "training.overwrite_output_dir": True,  # so that the example can be run again
    "training.max_steps": 20,
    "training.per_device_train_batch_size": 8,
    "training.learning_rate": 2e-4,
}
result = attentune.train(attentune.load_config(preset="task-attention", overrides=settings))
print(result.scores["validation"])
for row in attentune.predict(folder / "run", ["What of rice?", "What of rice?"], ["Boil it.", "It leaves at nine."]):
    print(row["prediction"], {name: round(value, 3) for name, value in row["probabilities"].items()})
