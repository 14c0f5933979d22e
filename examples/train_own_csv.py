"""Train on a CSV of one's own and label new texts: python examples/train_own_csv.py [ENCODER] [FOLDER]"""

import csv
import sys
from pathlib import Path

import attentune

encoder = sys.argv[1] if len(sys.argv) > 1 else "embedded"  # or a folder, or a name on the Hugging Face hub
folder = Path(sys.argv[2] if len(sys.argv) > 2 else "runs/own-csv")
folder.mkdir(parents=True, exist_ok=True)

words = {"good": ["lovely", "great", "fine", "moving"], "bad": ["dull", "awful", "poor", "boring"]}
things = ["film", "story", "music", "ending", "hero", "dialogue", "picture", "plot"]
rows = [(f"The {thing} was {word}.", label) for label in words for word in words[label] for thing in things]
with (folder / "reviews.csv").open("w", newline="", encoding="utf-8") as file:
    csv.writer(file).writerows([("text", "label"), *rows])

data = {"data.train_file": str(folder / "reviews.csv"), "data.text_column": "text", "data.label_column": "label"}
training = {"training.output_dir": str(folder / "run"), "training.max_steps": 12, "training.learning_rate": 2e-4}
training["training.overwrite_output_dir"] = True  # so that the example can be run again
config = attentune.load_config(preset="bert-mean", overrides={"model.name_or_path": encoder, **data, **training})
result = attentune.train(config)
print(result.scores["validation"])
for text in ("The costumes were lovely.", "The sound was awful."):
    print(text, attentune.predict(folder / "run", [text])[0]["prediction"])
