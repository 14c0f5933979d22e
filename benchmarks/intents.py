"""Many classes, few rows a class: `attentune auto` against other classifiers of intents (results/intents).

    python -m benchmarks.intents [--data banking77] [--rows 5,10] [--draws 1,2] [--contenders auto,setfit] [--jobs 2]
        [--python setfit=PYTHON,autointent=PYTHON]
    python -m benchmarks.intents --table

A cell (data, rows a class, draw, contender) is a process with one thread; its record is a line of `runs.jsonl` in
`--output_dir`. A cell with a record is not repeated and an interrupted one leaves nothing, so the same command goes on.
Needs `pip install ./lab`, whose campaign has the contenders; setfit and autointent may have environments of their own.
"""

import argparse
import collections
import csv
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
ROWS = {"banking77": ("5", "10", "50", "all"), "clinc150": ("10", "50", "100")}
CONTENDERS = ("frozen-linear", "bert-mean", "setfit", "autointent", "auto")
DRAWS = ("1", "2", "3", "4", "5")
# Later draws are for development: rows of the training file are scored that they never draw, not the test file.
FIRST_OF_DEVELOPMENT, DEVELOPMENT_ROWS = 101, 12
SECONDS = 300
Rows = list[tuple[str, str]]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output_dir", type=Path, default=ROOT / "results" / "intents")
    for flag, names in {"--data": ROWS, "--draws": DRAWS, "--contenders": CONTENDERS}.items():
        parser.add_argument(flag, default=",".join(names))
    parser.add_argument("--rows", help="rows a class (default: those of the protocol)")
    parser.add_argument("--jobs", type=int, default=1, help="cells at a time")
    parser.add_argument("--python", default="", help="the Python of a contender's own environment")
    parser.add_argument("--table", action="store_true", help="print the tables of the records")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.cell:
        print("\n" + json.dumps(predict(Path(given.cell))))
        return 0
    records = given.output_dir / "runs.jsonl"
    done = [json.loads(line) for line in records.read_text().splitlines()] if records.is_file() else []
    if given.table:
        print("\n".join([*tables(done, "accuracy"), *tables(done, "macro_f1")]))
        return 0
    draws, contenders = given.draws.split(","), given.contenders.split(",")
    counts = {data: given.rows.split(",") if given.rows else ROWS[data] for data in given.data.split(",")}
    cells = [(data, rows, *rest) for data in counts for rows, *rest in product(counts[data], draws, contenders)]
    known = {(one["data"], one["rows"], str(one["draw"]), one["contender"]) for one in done}
    waiting = [cell for cell in cells if cell not in known]
    print(f"{len(cells) - len(waiting)} of {len(cells)} cells are done", flush=True)
    pythons = dict(one.split("=", 1) for one in given.python.split(",") if one)
    with ThreadPoolExecutor(given.jobs) as pool:
        return max(pool.map(lambda cell: run_cell(cell, records, pythons), waiting), default=0)


def rows_of(data: str, rows: str, draw: int) -> tuple[Rows, Rows]:
    """Return (text, class) of the training rows of a draw, shuffled, and of the rows to score."""
    folder = Path(os.environ.get("ATTENTUNE_DATA") or ROOT.parent / "shared" / "data") / "intents" / data
    by_class: dict[str, list[str]] = collections.defaultdict(list)
    for text, label in read(folder / "train.csv"):
        by_class[label].append(text)
    drawn, held = Rows(), Rows()
    for label, texts in sorted(by_class.items()):
        random.Random(f"intents {draw} {label}").shuffle(texts)
        if draw >= FIRST_OF_DEVELOPMENT:
            held += [(text, label) for text in texts[-DEVELOPMENT_ROWS:]]
            del texts[-DEVELOPMENT_ROWS:]
        drawn += [(text, label) for text in (texts if rows == "all" else texts[: int(rows)])]
    random.Random(f"intents {draw}").shuffle(drawn)
    return drawn, held or read(folder / "test.csv")


def read(file: Path) -> Rows:
    with file.open(encoding="utf-8", newline="") as opened:
        return [(text, label) for text, label in list(csv.reader(opened))[1:] if label != "oos"]


def run_cell(cell: tuple[str, ...], records: Path, pythons: dict[str, str]) -> int:
    """Run a cell in a process of its own and append its record; return 1 if it failed."""
    from sklearn.metrics import accuracy_score, f1_score

    from attentune.models.build import resolve_encoder
    from benchmarks.common import processor

    data, rows, draw, contender = cell
    train, test = rows_of(data, rows, int(draw))
    classes = sorted({label for _, label in train})
    about = {"data": data, "rows": rows, "draw": int(draw), "contender": contender, "train_rows": len(train)}
    job = {
        **{**about, "seconds": SECONDS, "classes": classes},
        **{"encoder": str(resolve_encoder("embedded")), "texts": [text for text, _ in train]},
        **{"labels": [classes.index(label) for _, label in train], "scored": [text for text, _ in test]},
    }
    settings = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as folder, Path(folder, "log").open("w") as log:
        Path(folder, "job").write_text(json.dumps(job))
        words, began = [pythons.get(contender, sys.executable), __file__, "--cell", folder], time.perf_counter()
        process = subprocess.Popen(words, cwd=folder, env=os.environ | settings, stdout=log, stderr=subprocess.STDOUT)
        _, process.returncode, used = os.wait4(process.pid, 0)
        wall = time.perf_counter() - began
        lines = Path(folder, "log").read_text().splitlines()
    if process.returncode:
        print(*cell, "failed:", *lines[-20:], sep="\n", flush=True)
        return 1
    result, truth = json.loads(lines[-1]), [classes.index(label) for _, label in test]
    predicted = result["predicted"]
    record = {
        **{**about, "test_rows": len(test), "classes": len(classes), "seconds": job["seconds"]},
        "accuracy": round(accuracy_score(truth, predicted), 5),
        "macro_f1": round(f1_score(truth, predicted, labels=range(len(classes)), average="macro"), 5),
        **{"wall_s": round(wall, 1), "cpu_s": round(used.ru_utime + used.ru_stime, 1), "processor": processor()},
        **{"memory_mib": used.ru_maxrss // 1024, "details": result["details"]},
    }
    records.parent.mkdir(parents=True, exist_ok=True)
    with records.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record) + "\n")
    print(*cell, f"{record['accuracy']:.4f} in {wall:.0f} s", flush=True)
    return 0


def predict(folder: Path) -> dict[str, Any]:
    """Train a contender; return the class id of each scored text (-1: rejected), and details."""
    job = json.loads((folder / "job").read_text())
    if job["contender"] == "autointent":
        return autointent(job)
    import numpy as np

    from attentune.data.dataset import LabelSpace, TaskData, TextRows
    from attentune_lab.campaign import campaign

    def rows(texts: list[str], labels: Any) -> TextRows:
        return TextRows(tuple(map(str, range(len(texts)))), tuple(texts), None, labels, "intents")

    train = rows(job["texts"], np.array(job["labels"], dtype=np.int64))
    space = LabelSpace("classification", tuple(job["classes"]))
    data, out = TaskData("intents", space, ("accuracy", "macro_f1"), {"train": train}), folder / "run"
    if job["contender"] == "bert-mean":
        logits, details = campaign.trained_run(data, out, job["draw"], "bert-mean"), {}
    else:
        logits, details, *_ = campaign.CONTENDERS[job["contender"]](data, out, job["draw"], job["seconds"])
    for one in details.pop("leaderboard", {}).get("leaderboard", []):
        details |= {one["name"]: [one["score"], one["seconds"], one["weight"]]} if one["status"] == "done" else {}
    return {"predicted": logits(rows(job["scored"], None)).argmax(axis=1).tolist(), "details": details}


def autointent(job: dict[str, Any]) -> dict[str, Any]:
    """AutoIntent's preset `classic-light`; what it chose is fitted to all rows at the end (`refit_after`)."""
    from autointent import Dataset, Pipeline  # type: ignore[import-not-found]
    from autointent.configs import SentenceTransformerEmbeddingConfig  # type: ignore[import-not-found]

    rows = [{"utterance": text, "label": label} for text, label in zip(job["texts"], job["labels"], strict=True)]
    pipeline = Pipeline.from_preset("classic-light", seed=job["draw"])
    pipeline.set_config(SentenceTransformerEmbeddingConfig(model_name=job["encoder"], device="cpu"))
    pipeline.fit(Dataset.from_dict({"train": rows}), refit_after=True)
    predicted = [-1 if one is None else int(one) for one in pipeline.predict(job["scored"])]
    modules = [type(node.module).__name__ for node in pipeline.nodes.values()]
    return {"predicted": predicted, "details": {"modules": modules}}


def tables(records: list[dict[str, Any]], metric: str) -> list[str]:
    """Return tables of means over draws, with the lead of auto over each: its 95 % interval and p by Holm."""
    from scipy.stats import ttest_rel

    from attentune.stats.compare import holm
    from benchmarks.common import table

    scores = {(one["data"], one["rows"], one["contender"], str(one["draw"])): 100 * one[metric] for one in records}
    cells = [cell for data, counts in ROWS.items() for cell in product([data], counts)]
    shown, tests = {}, {}
    for cell, name in product(cells, CONTENDERS):
        own = {draw: scores[*cell, name, draw] for draw in DRAWS if (*cell, name, draw) in scores}
        deviation = f" ± {statistics.stdev(own.values()):.1f}" if len(own) > 1 else ""
        shown[*cell, name, "mean"] = f"{statistics.fmean(own.values()):.1f}{deviation} ({len(own)})" if own else ""
        both = [(scores[*cell, "auto", draw], own[draw]) for draw in own if (*cell, "auto", draw) in scores]
        if name != "auto" and len(both) > 1:
            tests[*cell, name] = ttest_rel(*zip(*both, strict=True))
    for (key, test), p in zip(tests.items(), holm([test.pvalue for test in tests.values()]), strict=True):
        low, high = test.confidence_interval()
        shown[*key, "lead"] = f"{(low + high) / 2:+.1f} [{low:+.1f}, {high:+.1f}], {p:.2g}"
    lines = []
    for title, kind, names in ((metric, "mean", CONTENDERS), (f"auto above, {metric}", "lead", CONTENDERS[:-1])):
        body = [[name, *(shown.get((*cell, name, kind), "") for cell in cells)] for name in names]
        lines += [*table([title, *map(" ".join, cells)], body), ""]
    return lines


if __name__ == "__main__":
    sys.exit(main())
