"""How much of the cue two weak models know: accuracy on rows with the cue, against it and without.

Run from the root of the repository: PYTHONPATH=.:lab python results/shortcuts/weak.py
"""

import numpy as np
from sklearn.linear_model import LogisticRegression

from attentune.baselines.registry import TfidfLinear
from attentune.data.dataset import LabelSpace, TextRows
from attentune.training.debias import weak_features
from benchmarks.shortcut_sets import draw_of, train_rows_of
from benchmarks.shortcuts import GOAL


def as_rows(rows):
    *texts, labels = zip(*rows, strict=True)
    ids = tuple(map(str, range(len(rows))))
    return TextRows(ids, texts[0], texts[1] if len(texts) > 1 else None, np.array(labels, dtype=np.int64), "rows")


for name in GOAL:
    drawn = draw_of(name, 101, train_rows_of(name))
    train = as_rows(drawn.train)
    if train.pairs is None:
        baseline = TfidfLinear().fit(train, LabelSpace("classification", ("0", "1")))
    for part, rows in drawn.scored.items():
        scored, both = as_rows(rows), weak_features(as_rows([*drawn.train, *rows]))
        model = LogisticRegression(max_iter=1000).fit(both[: len(train)], train.labels)
        found = {"frequent": model.predict(both[len(train) :])}
        if train.pairs is None:
            found["tfidf-linear"] = baseline.logits(scored).argmax(axis=1)
        print(name, part, {kind: round(100 * np.mean(own == scored.labels), 1) for kind, own in found.items()})
