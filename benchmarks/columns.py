"""What columns beside the text bring, `attentune auto --extra_columns`, on two public files (results/columns).

    python -m benchmarks.columns runs.jsonl [vega-datasets-2.9.0.tgz [reported|development [DRAW ...]]]

Each draw is a line of the records; their table is printed. Debian's packages are those of `apt-cache dumpavail`, the
films those of the npm package vega-datasets (`npm pack vega-datasets@2.9.0`).
"""

import collections
import hashlib
import json
import random
import subprocess
import sys
import tarfile
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import stats
from scipy.special import log_softmax

from attentune.automl.fusion import FusionProblem, fit_fusion
from attentune.baselines.frozen import FrozenEncoder
from attentune.baselines.registry import make_baseline
from attentune.config import DataConfig, ModelConfig
from attentune.data.load import load_data
from attentune.data.splits import stratified_folds
from attentune.metrics.metrics import METRICS

HALVES, DRAWS = ("development", "reported"), ("1", "2", "3", "4", "5")
CLASSES, TRAIN_ROWS, MOST_TEST_ROWS, FOLDS = {"debian": 20, "movies": 10}, {"debian": 800, "movies": 700}, 1000, 3
PACKAGE = "Maintainer Architecture Priority Installed-Size dependencies"
FILM = "Source,MPAA Rating,Creative Type,Distributor,Running Time min,Production Budget,Worldwide Gross,IMDB Rating"
COLUMNS = {"debian": PACKAGE.split(), "movies": FILM.split(",")}
MEMBERS = ("tfidf-linear", "frozen-linear", "columns-linear")
# Whether an arm has the third member too, and whether the columns are joined to the texts of its members.
ARMS = {"text": (0, 0), "--extra_columns": (1, 0), "--text_column": (0, 1), "both": (1, 1)}


def main(records: str, movies: str = "", half: str = "reported", *draws: str) -> None:
    file = Path(records)
    done = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    for data, draw in product(COLUMNS, draws or DRAWS) if movies else ():
        if (data, int(draw)) not in {(one["data"], one["draw"]) for one in done}:
            done.append({"data": data, "draw": int(draw), **scores(rows_of(data, half, movies), data, int(draw))})
            with file.open("a") as opened:
                opened.write(json.dumps(done[-1]) + "\n")
    print("\n".join(table(done)))


def rows_of(data: str, half: str, movies: str) -> list[dict[str, str]]:
    """Return the rows of a half: one for each source package or title, of the most frequent classes."""
    rows: dict[str, dict[str, str]] = {}
    if data == "debian":
        listed = subprocess.run(["apt-cache", "dumpavail"], capture_output=True, text=True, check=True).stdout
        for part in listed.split("\n\n"):
            cells = dict(line.split(": ", 1) for line in part.splitlines() if ": " in line and line[0] != " ")
            cells["dependencies"] = str(len(cells["Depends"].split(", ")) if "Depends" in cells else 0)
            cells["Maintainer"] = cells.get("Maintainer", "").split(" <")[0]
            if "Description" in cells and "Section" in cells:
                texts = {"text": cells["Description"], "label": cells["Section"].split("/")[-1]}
                row = texts | {name: cells.get(name, "") for name in COLUMNS[data]}
                rows.setdefault(cells.get("Source", cells["Package"]).split(" ")[0], row)
    else:
        with tarfile.open(movies) as package:
            file = package.extractfile("package/data/movies.json")
            assert file is not None
            films = json.load(file)
        for film in (one for one in films if one["Title"] and one["Major Genre"]):
            cells = {name: "" if film[name] is None else str(film[name]) for name in COLUMNS[data]}
            rows.setdefault(str(film["Title"]), {"text": str(film["Title"]), "label": film["Major Genre"], **cells})
    kept = dict(collections.Counter(row["label"] for row in rows.values()).most_common(CLASSES[data]))
    half_of = {key: HALVES[hashlib.sha256(key.encode()).digest()[-1] % 2] for key in rows}
    return [row for key, row in sorted(rows.items()) if row["label"] in kept and half_of[key] == half]


def scores(rows: list[dict[str, str]], data: str, draw: int) -> dict[str, Any]:
    """Fuse the members of each arm as `auto` does, and score them on rows that are not drawn."""
    count, encoder, extra = TRAIN_ROWS[data], FrozenEncoder(ModelConfig(), 128), tuple(COLUMNS[data])
    drawn = pd.DataFrame(random.Random(f"columns {data} {draw}").sample(rows, len(rows))[: count + MOST_TEST_ROWS])
    config, arms, logits = DataConfig(label_column="label", extra_columns=extra), {}, dict[Any, Any]()
    for arm, (has_third, is_joined) in ARMS.items():
        members, test = MEMBERS[: 2 + has_third], np.arange(count, len(drawn))
        text = json.dumps(["text", *extra]) if is_joined else "text"
        settings = replace(config, text_column=text, validation_share=0.0)
        loaded = load_data(settings, seed=draw, splits=("train",), frame=drawn)
        every, space, parts = loaded.splits["train"], loaded.label_space, np.zeros(count, dtype=np.int64)
        labels = np.asarray(every.labels)
        for fold, part in enumerate(stratified_folds(labels[:count], FOLDS, draw, "columns")):
            parts[part] = fold

        def predict(name: str, used: np.ndarray, scored: np.ndarray, every: Any = every, space: Any = space) -> Any:
            baseline = make_baseline(name, encoder=ModelConfig(), max_length=128, seed=draw, frozen=encoder)
            return baseline.fit(every.take(used), space).logits(every.take(scored))

        for name in (name for name in members if (name, is_joined) not in logits):
            held_NC = np.zeros((count, space.num_labels))
            for fold in range(FOLDS):
                held_NC[parts == fold] = predict(name, np.flatnonzero(parts != fold), np.flatnonzero(parts == fold))
            logits[name, is_joined] = held_NC, predict(name, np.arange(count), test)
        held, new = ({name: logits[name, is_joined][place] for name in members} for place in (0, 1))
        fusion = fit_fusion(FusionProblem(held, labels[:count], parts, space, METRICS["accuracy"])).fusion
        fused_NC = log_softmax(fusion.apply(new), axis=1)
        facts = {"accuracy": np.mean(fused_NC.argmax(axis=1) == labels[test]), **fusion.member_weights()}
        facts["loss"] = -fused_NC[np.arange(len(test)), labels[test]].mean()
        arms[arm] = {name: round(float(value), 4) for name, value in facts.items()}
    return {"train_rows": count, "test_rows": len(drawn) - count, "arms": arms}


def table(done: list[dict[str, Any]]) -> list[str]:
    """Return the means over draws, and the gains over the first arm with the interval of Nadeau and Bengio."""
    lines = ["| data | arm | accuracy | loss | gain in points (95 % interval) |", "|---|---|---|---|---|"]
    for data, arm in product(CLASSES, ARMS):
        runs = [one for one in done if one["data"] == data]
        frame = pd.DataFrame([one["arms"][arm] for one in runs], columns=["accuracy", "loss"])
        gains, shown = 100 * (frame["accuracy"] - [one["arms"]["text"]["accuracy"] for one in runs]), ""
        if len(runs) > 1 and arm != "text":
            spread = gains.std() * np.sqrt(1 / len(runs) + runs[0]["test_rows"] / runs[0]["train_rows"])
            low, high = stats.t.interval(0.95, len(runs) - 1, gains.mean(), spread)
            shown = f"{gains.mean():+.1f} ({low:+.1f} to {high:+.1f})"
        lines.append(f"| {data} | `{arm}` | {frame['accuracy'].mean():.4f} | {frame['loss'].mean():.3f} | {shown} |")
    return lines


if __name__ == "__main__":
    main(*sys.argv[1:])
