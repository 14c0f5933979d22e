"""Is one preset better, or was it luck? python examples/compare_two_presets.py [ENCODER] [FOLDER] [SEEDS]"""

import csv
import random
import sys
from pathlib import Path

import attentune
from attentune.report.analysis import compare_methods
from attentune.report.contents import make_report
from attentune.report.load import collect
from attentune.report.writing import write_report

encoder = sys.argv[1] if len(sys.argv) > 1 else "embedded"  # or a folder, or a name on the Hugging Face hub
folder = Path(sys.argv[2] if len(sys.argv) > 2 else "runs/compare-example")
seeds = int(sys.argv[3]) if len(sys.argv) > 3 else 3
folder.mkdir(parents=True, exist_ok=True)

words = {"good": ["lovely", "great", "fine", "moving"], "bad": ["dull", "awful", "poor", "boring"]}
things = ["film", "story", "music", "ending", "hero", "dialogue", "picture", "plot"]
rows = [(f"The {thing} was {word}.", label) for label in words for word in words[label] for thing in things]
random.Random(0).shuffle(rows)
for name, part in (("train", rows[:40]), ("validation", rows[40:])):
    with (folder / f"{name}.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("text", "label"), *part])

records = attentune.compare(
    folder / "comparison",  # the same command goes on where it was, and adds nothing to what is done
    presets=["bert", "bert-mean"],
    seeds=seeds,
    overrides={
        "model.name_or_path": encoder,
        "data.train_file": str(folder / "train.csv"),
        "data.validation_file": str(folder / "validation.csv"),
        "training.num_train_epochs": 4,
        "training.learning_rate": 2e-4,
    },
)
for record in records:
    print(record.run.method, record.run.seed, record.status, record.score)

data = collect([str(folder / "comparison")])
for comparison in compare_methods(data.runs, "bert").comparisons:
    print(comparison.sentence)
write_report(make_report(data, baseline="bert"), folder / "report.html")
