"""Write results/first-look/README.md from the records beside it.

python benchmarks/first_look_table.py
"""

from __future__ import annotations

import json
import statistics
from typing import Any

from first_look import GRIDS, METHODS, RESULTS, SEEDS, TASKS, VARIANT_TASKS, VARIANTS, Job, chosen_cell
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

Made by `OMP_NUM_THREADS=1 python benchmarks/first_look.py` (once for each core) and
`python benchmarks/first_look_table.py`; each record beside this page holds its settings, scores, versions and, epoch by
epoch, its labels.
"""


def record(stage: str, task: str, method: str, seed: int) -> dict[str, Any] | None:
    """A run's record; None where the run has not been made."""
    file = Job(stage, task, method, seed, None).file
    return json.loads(file.read_text()) if file.exists() else None


def scores(stage: str, task: str, method: str) -> list[float]:
    """The scores of the runs there are, in points, by seed."""
    found = [record(stage, task, method, seed) for seed in SEEDS]
    return [100 * (run["score"] or 0.0) for run in found if run is not None]


def spread(values: list[float]) -> str:
    """Mean and standard deviation."""
    if len(values) < len(SEEDS):
        return f"not measured ({len(values)} of {len(SEEDS)} runs)" if values else "not measured"
    return f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}"


def difference(values: list[float], others: list[float]) -> str:
    """The mean difference of paired seeds, with its own standard deviation."""
    if len(values) < len(SEEDS) or len(others) < len(SEEDS):
        return ""
    gaps = [a - b for a, b in zip(values, others, strict=True)]
    return f"{statistics.mean(gaps):+.1f} ± {statistics.stdev(gaps):.1f}"


def main_table() -> list[str]:
    lines = ["| method | " + " | ".join(f"{task} ({METRICS[task]})" for task in TASKS) + " |"]
    lines.append("|---" * (len(TASKS) + 1) + "|")
    for method in METHODS:
        cells = [spread(scores("report", task, method)) for task in TASKS]
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return lines


def control_table() -> list[str]:
    """SSA's weights against plain averaging, and against plain fine-tuning."""
    lines = ["| method minus | " + " | ".join(TASKS) + " |", "|---" * (len(TASKS) + 1) + "|"]
    pairs = [("ssa-co", "bert"), ("ssa-co-released", "bert"), ("bert-mask", "bert"), ("bert-cls-mean", "bert")]
    pairs += [(name, "bert-cls-mean") for name in ("ssa-hybrid", "ssa-hybrid-gradient", "ssa-hybrid-released")]
    for method, control in pairs:
        cells = [difference(scores("report", task, method), scores("report", task, control)) for task in TASKS]
        lines.append(f"| `{method}` - `{control}` | {' | '.join(cells)} |")
    return lines


def choice_table() -> list[str]:
    lines = ["| method | " + " | ".join(TASKS) + " |", "|---" * (len(TASKS) + 1) + "|"]
    for method in METHODS:
        cells = []
        for task in TASKS:
            cell = chosen_cell(task, method)
            cells.append("" if cell is None else "{:g} x {}".format(*GRIDS[task][cell]))
        lines.append(f"| `{method}` | {' | '.join(cells)} |")
    return lines


def variant_table() -> list[str]:
    lines = ["| variant | " + " | ".join(VARIANT_TASKS) + " |", "|---" * (len(VARIANT_TASKS) + 1) + "|"]
    for method in ("ssa-co", "ssa-hybrid", "ssa-hybrid-gradient"):
        cells = [spread(scores("report", task, method)) for task in VARIANT_TASKS]
        lines.append(f"| `{method}` (from above) | {' | '.join(cells)} |")
    for method in VARIANTS:
        cells = [spread(scores("variants", task, method)) for task in VARIANT_TASKS]
        lines.append(f"| {method} | {' | '.join(cells)} |")
    return lines


def balance_table() -> list[str]:
    """The share of ones among the labels, epoch by epoch, over the seeds of the report."""
    lines = ["| method, task | " + " | ".join(f"epoch {n}" for n in range(1, 7)) + " | accuracy, majority |"]
    lines.append("|---" * 8 + "|")
    for method in ("ssa-co", "ssa-hybrid", "ssa-hybrid-gradient", "ssa-co-released"):
        for task in TASKS:
            runs = [run for seed in SEEDS if (run := record("report", task, method, seed)) is not None]
            if runs:
                lines.append(f"| `{method}`, {task} | {' | '.join(_balance(runs))} |")
    return lines


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
    text = INTRODUCTION + "".join(f"\n## {title}\n\n" + "\n".join(lines) + "\n" for title, lines in parts)
    (RESULTS / "README.md").write_text(text)


if __name__ == "__main__":
    main()
