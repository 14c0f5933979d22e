"""Write the cuts of results/reject: python cuts.py INTENTS_DIR OUTPUT_DIR."""

import csv
import random
import sys
from pathlib import Path

intents, output = Path(sys.argv[1]), Path(sys.argv[2])
output.mkdir(exist_ok=True)


def read(name):
    with (intents / name).open(newline="") as file:
        header, *rows = csv.reader(file)
    return header, rows


def write(name, header, rows):
    with (output / name).open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def cut(rows, seed):
    """Draw at most 50 rows of each class."""
    by_class = {}
    for row in rows:
        by_class.setdefault(row[1], []).append(row)
    drawn = []
    for name in sorted(by_class):
        random.Random(f"{seed} {name}").shuffle(by_class[name])
        drawn += by_class[name][:50]
    return drawn


header, train = read("banking77/train.csv")
_, test = read("banking77/test.csv")
names = sorted({row[1] for row in train})
random.Random(7).shuffle(names)
known = set(names[:50])
write("bk_train.csv", header, cut([row for row in train if row[1] in known], 0))
write("bk_test.csv", header, [row for row in test if row[1] in known])
write("bk_oos.csv", header, [row for row in test if row[1] not in known])
header, train = read("clinc150/train.csv")
write("cl_train0.csv", header, cut(train, 0))
