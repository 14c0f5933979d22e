"""Which words made it say that? Two methods side by side: python examples/explain_one_text.py [ENCODER] [FOLDER]"""

import csv
import sys
from pathlib import Path

import attentune

encoder = sys.argv[1] if len(sys.argv) > 1 else "embedded"  # or a folder, or a name on the Hugging Face hub
folder = Path(sys.argv[2] if len(sys.argv) > 2 else "runs/explain-example")
folder.mkdir(parents=True, exist_ok=True)

words = {"good": ["lovely", "great", "fine", "moving"], "bad": ["dull", "awful", "poor", "boring"]}
things = ["film", "story", "music", "ending", "hero", "dialogue", "picture", "plot"]
rows = [(f"The {thing} was {word}.", label) for label in words for word in words[label] for thing in things]
with (folder / "reviews.csv").open("w", newline="", encoding="utf-8") as file:
    csv.writer(file).writerows([("text", "label"), *rows])

settings = {
    "model.name_or_path": encoder,
    "data.train_file": str(folder / "reviews.csv"),
    "training.output_dir": str(folder / "run"),
    "training.overwrite_output_dir": True,  # so that the example can be run again
    "training.num_train_epochs": 4,
    "training.per_device_train_batch_size": 16,
    "training.learning_rate": 2e-4,
}
attentune.train(attentune.load_config(preset="ssa-hybrid", overrides=settings))

run = attentune.Predictor.load(folder / "run")
text = "The costumes were lovely, and nobody was bored."
for method in ("ssa", "leave-one-out"):  # from the very pass that predicts; and one pass a word, the words masked
    (found,) = attentune.explain_texts(run, [text], method=method)
    print(f"{method}: {found.label} ({found.probability:.2f}), {found.passes} passes; scores: {found.unit}")
    highest = max(abs(word.score) for word in found.tokens) or 1.0
    for word in found.tokens:
        sign = "-" if word.score < 0 else "+"
        print(f"  {word.text:<12}{word.score:+.3f} {sign * round(20 * abs(word.score) / highest)}")
