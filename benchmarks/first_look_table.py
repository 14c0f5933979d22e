"""Write results/first-look/README.md from the records beside it.

python benchmarks/first_look_table.py
"""

from __future__ import annotations

import statistics
from typing import Any

import tables
from first_look import FOLDER, GRIDS, METHODS, SEEDS, TASKS, VARIANT_TASKS, VARIANTS, Job, chosen_cell
from looks import ROWS

METRICS = {"cola": "Matthews", "sst2": "accuracy", "mrpc": "F1", "rte": "accuracy"}
_GRID = ", ".join(f"{rate:g} x {epochs}" for rate, epochs in GRIDS["cola"])
INTRODUCTION = f"""# A first look at Self-Supervised Attention

{ROWS:,} training rows, the embedded encoder (MiniLM, 22 million parameters), texts cut at 64 tokens, three seeds. A
seed draws the training rows, the fresh weights, dropout and the masks; all methods of a seed train on the same rows.
Learning rate and epochs were chosen for each method and task among {_GRID} epochs (the last
not for MRPC and RTE), by training
on 1,000 rows of another seed and scoring on 1,000 further rows of the training file (as many as there are). The
validation file was scored once a run, at the end. Mean and standard deviation over seeds, in points (x 100).

Three seeds tell little: with a standard deviation of s points a seed, two means must differ by about 2.3 s for a paired
test at 5 % to notice, more where the seeds do not go together. Read the tables as a first look.

Measured before dropout on a CPU was made one product, which changed its draws (`CHANGELOG.md`): the same commands
give other digits now, as another seed would.

Made by `OMP_NUM_THREADS=1 python benchmarks/first_look.py` (once for each core) and
`python benchmarks/first_look_table.py`; each record beside this page holds its settings, scores, versions and, epoch by
epoch, its labels.
"""


def record(stage: str, task: str, method: str, seed: int) -> dict[str, Any] | None:
    """A run's record; None where the run has not been made."""
    return tables.read(Job(stage, task, method, seed, None).file)


def scores(stage: str, task: str, method: str) -> list[float]:
    """The scores of the runs there are, in points, by seed."""
    return tables.points([record(stage, task, method, seed) for seed in SEEDS])


def spread(values: list[float]) -> str:
    """Mean and standard deviation."""
    return tables.spread(values, len(SEEDS))


def difference(values: list[float], others: list[float]) -> str:
    """The mean difference of paired seeds, with its own standard deviation."""
    return tables.difference(values, others, len(SEEDS))


def main_table() -> list[str]:
    rows = [(f"`{name}`", *(spread(scores("report", task, name)) for task in TASKS)) for name in METHODS]
    return tables.table(("method", *(f"{task} ({METRICS[task]})" for task in TASKS)), rows)


def control_table() -> list[str]:
    """SSA's weights against plain averaging, and against plain fine-tuning."""
    pairs = [("ssa-co", "bert"), ("ssa-co-released", "bert"), ("bert-mask", "bert"), ("bert-cls-mean", "bert")]
    pairs += [(name, "bert-cls-mean") for name in ("ssa-hybrid", "ssa-hybrid-gradient", "ssa-hybrid-released")]
    rows = [
        (f"`{method}` - `{control}`", *(_gap(task, method, control) for task in TASKS)) for method, control in pairs
    ]
    return tables.table(("method minus", *TASKS), rows)


def _gap(task: str, method: str, control: str) -> str:
    return difference(scores("report", task, method), scores("report", task, control))


def choice_table() -> list[str]:
    return tables.table(
        ("method", *TASKS), [(f"`{method}`", *(_choice(task, method) for task in TASKS)) for method in METHODS]
    )


def _choice(task: str, method: str) -> str:
    cell = chosen_cell(task, method)
    return "" if cell is None else "{:g} x {}".format(*GRIDS[task][cell])


def variant_table() -> list[str]:
    above = [
        (f"`{name}` (from above)", *(spread(scores("report", task, name)) for task in VARIANT_TASKS))
        for name in ("ssa-co", "ssa-hybrid", "ssa-hybrid-gradient")
    ]
    varied = [(name, *(spread(scores("variants", task, name)) for task in VARIANT_TASKS)) for name in VARIANTS]
    return tables.table(("variant", *VARIANT_TASKS), above + varied)


def balance_table() -> list[str]:
    """The share of ones among the labels, epoch by epoch, over the seeds of the report."""
    rows = []
    for method in ("ssa-co", "ssa-hybrid", "ssa-hybrid-gradient", "ssa-co-released"):
        for task in TASKS:
            runs = [run for seed in SEEDS if (run := record("report", task, method, seed)) is not None]
            if runs:
                rows.append((f"`{method}`, {task}", *_balance(runs)))
    return tables.table(("method, task", *(f"epoch {n}" for n in range(1, 7)), "accuracy, majority"), rows)


def _balance(runs: list[dict[str, Any]]) -> list[str]:
    cells = []
    for epoch in range(6):
        own = [run["labels_by_epoch"][epoch] for run in runs if epoch < len(run["labels_by_epoch"])]
        ones, zeros = (sum(facts.get(name, 0) for facts in own) for name in ("ones", "zeros"))
        cells.append(f"{100 * ones / (ones + zeros):.0f} %" if ones + zeros else "-")
    last = [run["labels_by_epoch"][-1] for run in runs]
    means = [
        statistics.mean(facts.get(name, 0.0) for facts in last) for name in ("token_accuracy", "majority_accuracy")
    ]
    return [*cells, f"{means[0]:.2f}, {means[1]:.2f}"]


def main() -> None:
    parts = [
        ("Scores on the validation file", main_table()),
        ("Against the controls, seed by seed", control_table()),
        ("What was chosen (learning rate x epochs)", choice_table()),
        ("Variants, with the learning rate and epochs of the method that they vary", variant_table()),
        ("Share of labels that are 1, and the token head in the last epoch", balance_table()),
    ]
    (FOLDER / "README.md").write_text(tables.page(INTRODUCTION, parts))


if __name__ == "__main__":
    main()
