"""Write results/attention-look/README.md from the records beside it.

python benchmarks/attention_look_table.py
"""

from __future__ import annotations

import statistics

import tables
from attention_look import (
    EPOCHS_ON_ALL,
    FOLDER,
    FROZEN_REGIME,
    GRID,
    METHODS,
    REGIMES,
    SEEDS,
    TASKS,
    Job,
    chosen_cell,
)

METRICS = {"sst5": "accuracy", "quora": "accuracy", "sts": "Pearson"}
_GRID = " or ".join(f"{rate:g} x {epochs} epochs" for rate, epochs in GRID)
INTRODUCTION = f"""# A first look at task-specific attention

The embedded encoder (MiniLM, 22 million parameters), texts cut at 64 tokens. *baseline* is the poster's: the mean of
the tokens and, for pairs, one linear and the dot product. *experiment 1* puts attention blocks in between (two of
self-attention on SST-5, one bare block of cross-attention on Quora, three on STS), *experiment 2* starts them from
U(0.9, 1). STS is trained on minus the batch's correlation, but for `bert`, which is a cross-encoder with mean squared
error. Fine-tuned, learning rate and epochs were chosen for each method and task among {_GRID}, by
training on 1,000 rows of another seed and scoring on further rows of the training file; frozen they are the poster's
({FROZEN_REGIME[0]:g} x {FROZEN_REGIME[1]} epochs). The validation file was scored once a run, at the end. Scores in
points (x 100), mean and standard deviation over three seeds where there are three.

Measured before dropout on a CPU was made one product, which changed its draws (`CHANGELOG.md`): the same commands
give other digits now, as another seed would.

Made by `OMP_NUM_THREADS=1 python benchmarks/attention_look.py` (once for each core) and
`python benchmarks/attention_look_table.py`; each record beside this page holds its settings, scores and versions.
"""


def scores(stage: str, task: str, method: str, regime: str, seeds: tuple[int, ...] = SEEDS) -> list[float]:
    """The scores of the runs there are, in points, by seed."""
    return tables.points([tables.read(Job(stage, task, method, regime, seed).file) for seed in seeds])


def main_table() -> list[str]:
    rows = []
    for regime in REGIMES:
        for method in METHODS:
            cells = [tables.spread(scores("report", task, method, regime), len(SEEDS)) for task in TASKS]
            rows.append((f"{method}, {regime}", *cells, _seconds(method, regime)))
    return tables.table(("method", *(f"{task} ({METRICS[task]})" for task in TASKS), "seconds, all three tasks"), rows)


def _seconds(method: str, regime: str) -> str:
    """Training time of all tasks, the mean over seeds."""
    totals = []
    for seed in SEEDS:
        runs = [tables.read(Job("report", task, method, regime, seed).file) for task in TASKS]
        if all(runs):
            totals.append(sum(run["train"]["seconds"] for run in runs if run))
    return f"{statistics.mean(totals):.0f}" if totals else "not measured"


def all_table() -> list[str]:
    rows = []
    for regime in REGIMES:
        for method in METHODS:
            cells = [tables.spread_of_one(scores("all", task, method, regime, (1,))) for task in TASKS]
            rows.append((f"{method}, {regime}", *cells))
    return tables.table(("method, all rows, one seed", *TASKS), rows)


def choice_table() -> list[str]:
    rows = []
    for method in METHODS:
        cells = [chosen_cell(task, method) for task in TASKS]
        rows.append((method, *("" if cell is None else "{:g} x {}".format(*GRID[cell]) for cell in cells)))
    return tables.table(("method", *TASKS), rows)


def extras_table() -> list[str]:
    names = {"corn": "`bert`, ordinal loss (corn)", "cfimdb first": "`bert`, trained on CFIMDB before"}
    plain = tables.spread(scores("report", "sst5", "bert", "fine-tuned"), len(SEEDS))
    rows = [("`bert`, cross-entropy (from above)", plain)]
    rows += [
        (text, tables.spread(scores("extras", "sst5", name, "fine-tuned"), len(SEEDS))) for name, text in names.items()
    ]
    return tables.table(("SST-5, 1,000 rows", "accuracy"), rows)


def three_table() -> list[str]:
    rows = []
    for name, text in (("apart", "an encoder for each"), ("together", "one encoder for all three")):
        run = tables.read(Job("extras", "three", name, "fine-tuned", 1).file)
        if run is None:
            rows.append((text, *("not measured",) * 5))
            continue
        values = [next(iter(run["scores"][task]["validation"].values())) for task in TASKS]
        rows.append((text, *(f"{100 * value:.1f}" for value in values), f"{run['score']:.3f}", f"{run['seconds']:.0f}"))
    return tables.table(("`task-attention`, 1,000 rows a task, one seed", *TASKS, "leaderboard score", "seconds"), rows)


def main() -> None:
    parts = [
        ("1,000 training rows", main_table()),
        ("What was chosen, fine-tuned (learning rate x epochs)", choice_table()),
        (f"All training rows (fine-tuned: {EPOCHS_ON_ALL} epochs)", all_table()),
        ("Ordered classes, and more data", extras_table()),
        ("Several tasks", three_table()),
    ]
    (FOLDER / "README.md").write_text(tables.page(INTRODUCTION, parts))


if __name__ == "__main__":
    main()
