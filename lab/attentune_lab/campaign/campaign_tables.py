"""Tables and tests of the packed records of `attentune_lab.campaign.campaign`.

    python -m attentune_lab.campaign.campaign_tables results/auto [--rows 1000] [--tasks cola,rte] [--baseline bert]
    python -m attentune_lab.campaign.campaign_tables results/auto results/auto/last-version --draws 5

Prints Markdown: how many draws each contender has and on which processors; then, for dev rows and for rows that no draw
uses, the mean score of each contender on each task; the difference of each contender to the baseline on each
task, with Holm-corrected p values; the difference of the mean over tasks, with a bootstrap interval; and the share of
the gain of `auto` that `auto-single` keeps. Of several folders, the last one that has a record of a cell counts.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attentune.metrics.confusion import confusion_counts, confusion_score
from attentune.seeding import numpy_generator
from attentune.stats.compare import holm
from attentune.stats.estimate import mean_over_seeds
from attentune_lab.campaign.campaign import CONTENDERS, TASKS, packed_runs, table

RESAMPLES = 2000
# The first metric of each task whose metric is not accuracy.
METRICS = {
    "cola": "matthews_correlation",
    "mrpc": "f1",
    "stsb": "pearson",
    "sick-r": "pearson",
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("records", type=Path, nargs="+")
    parser.add_argument("--draws", type=int, help="leave out draws above this number")
    parser.add_argument("--rows", default="1000")
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--baseline", default="bert")
    given = parser.parse_args()
    records = Records(given.records, given.rows, given.tasks.split(","), given.draws)
    print("\n".join([*records.draws_table(), ""]))
    for part in ("dev", "unused"):
        print(f"### {part} rows\n")
        print("\n".join([*records.scores_table(part), "", *records.differences_table(part, given.baseline), ""]))
        print(records.kept_gain("auto-single", "auto", given.baseline, part) + "\n")
    return 0


class Records:
    """The packed records of one number of rows; those of later folders replace those of earlier ones."""

    def __init__(self, folders: Sequence[Path], rows: str, tasks: list[str], draws: int | None = None) -> None:
        self.rows, self.tasks = rows, tasks
        found: dict[tuple[str, str, int], dict[str, Any]] = {}
        self.arrays: dict[str, np.ndarray] = {}
        for folder in folders:
            for run in packed_runs(folder):
                if run["rows"] == rows and run["task"] in tasks and (draws is None or run["draw"] <= draws):
                    found[run["contender"], run["task"], run["draw"]] = run
            self.arrays |= dict(np.load(folder / "predictions.npz"))
        self.runs = list(found.values())
        self.pools = {run["task"]: run["pool"] for run in self.runs}

    def of(self, task: str, contender: str, part: str) -> dict[int, float]:
        """Return the score of each draw, in points."""
        mine = [run for run in self.scored(contender) if run["task"] == task and part in run["scores"]]
        name = METRICS.get(task, "accuracy")
        return {run["draw"]: 100 * (run["scores"][part][name] or 0.0) for run in mine}

    def scored(self, contender: str) -> list[dict[str, Any]]:
        """Return the records of a contender, without those of tasks that it cannot do."""
        return [run for run in self.runs if run["contender"] == contender and "scores" in run]

    def contenders(self, part: str) -> list[str]:
        return [name for name in CONTENDERS if any(self.of(task, name, part) for task in self.tasks)]

    def draws_table(self) -> list[str]:
        """Count the scored draws of each contender on each task, and the records of each processor."""
        lines = []
        for name in self.contenders("dev"):
            counts = [len(self.of(task, name, "dev")) for task in self.tasks]
            machines = Counter(run["machine"] for run in self.scored(name)).most_common()
            where = "; ".join(f"{machine.replace('(R)', '')} ({count})" for machine, count in machines)
            lines.append([f"`{name}`", *(str(count or "") for count in counts), where])
        return table(["draws", *self.tasks, "processors (records)"], lines)

    def scores_table(self, part: str) -> list[str]:
        lines = []
        for name in self.contenders(part):
            values = {task: list(self.of(task, name, part).values()) for task in self.tasks}
            whole = np.mean([np.mean(one) for one in values.values()]) if all(values.values()) else None
            draws = sorted({len(one) for one in values.values() if one})
            cost = np.median([run["cpu_seconds"] for run in self.scored(name)])
            cells = [_mean_and_spread(one) for one in values.values()]
            count = "-".join(map(str, dict.fromkeys([draws[0], draws[-1]])))
            lines.append([f"`{name}`", *cells, "" if whole is None else f"{whole:.1f}", count, f"{cost:.0f}"])
        return table(["contender", *self.tasks, "mean", "draws", "CPU s"], lines)

    def differences_table(self, part: str, baseline: str) -> list[str]:
        lines = []
        for name in self.contenders(part):
            if name == baseline:
                continue
            cells, p_values, means = [], [], []
            for task in self.tasks:
                first, second = self.of(task, baseline, part), self.of(task, name, part)
                differences = np.array([second[draw] - first[draw] for draw in sorted(first.keys() & second.keys())])
                shared = min(0.99, int(self.rows.split("-")[0]) / self.pools.get(task, 10**9))
                found = mean_over_seeds(differences, overlap=shared / (1 - shared)) if len(differences) else None
                means.append(None if found is None else float(found.value))
                p_values.append(np.nan if found is None else float(found.p))
            known = [not np.isnan(p) for p in p_values]
            corrected = iter(holm([p for p in p_values if not np.isnan(p)]) if any(known) else [])
            for mean, there in zip(means, known, strict=True):
                cells.append("" if mean is None else f"{mean:+.1f}" + (f" (p {next(corrected):.2g})" if there else ""))
            lines.append([f"`{name}`", *cells, self.interval(name, baseline, part)])
        return table([f"minus `{baseline}`", *self.tasks, "mean of all, 95 %"], lines)

    def kept_gain(self, name: str, whole: str, baseline: str, part: str) -> str:
        """Say which share of `whole`'s gain over the baseline `name` keeps, in the mean of tasks, on equal draws."""
        gains, counts = [], []
        for task in self.tasks:
            found = [self.of(task, one, part) for one in (name, whole, baseline)]
            draws = set.intersection(*map(set, found))
            counts.append(len(draws))
            if draws:
                means = [np.mean([one[draw] for draw in draws]) for one in found]
                gains.append((means[0] - means[2], means[1] - means[2]))
        if not gains:
            return f"No draw has `{name}`, `{whole}` and `{baseline}`."
        mine, all_of = np.mean(gains, axis=0)
        rows = ", ".join(f"{task} {count}" for task, count in zip(self.tasks, counts, strict=True))
        return f"`{name}` gains {mine:+.2f}, `{whole}` {all_of:+.2f}: a share of {mine / all_of:.2f} (draws: {rows})"

    def interval(self, name: str, baseline: str, part: str) -> str:
        """Bootstrap the difference of the mean over tasks: draws and rows of each task are resampled.

        Of S draws S - 1 are resampled: with S of S the variance would be a factor (S - 1) / S too small, a third with
        three draws (J. N. K. Rao and C. F. J. Wu, 1988, Resampling inference with complex survey data).
        """
        tasks: list[Any] = []
        for task in self.tasks:
            draws = sorted(self.of(task, name, part).keys() & self.of(task, baseline, part).keys())
            keys = [[f"{self.rows}/{task}/{draw}/{who}/{part}" for draw in draws] for who in (name, baseline)]
            if not draws or any(key not in self.arrays for key in (*keys[0], *keys[1])):
                return ""
            labels_N = self.arrays[f"{self.rows}/{task}/labels/{part}"]
            tasks.append((task, labels_N, *(np.stack([self.arrays[key] for key in part_keys]) for part_keys in keys)))
        generator = numpy_generator("campaign bootstrap", name, baseline, part)
        values = [np.mean(list(_resampled(tasks, generator))) for _ in range(RESAMPLES)]
        low, high = np.nanquantile(values, [0.025, 0.975])
        mean = np.mean([_difference(METRICS.get(task, "accuracy"), *rest) for task, *rest in tasks])
        return f"{mean:+.1f} [{low:+.1f}, {high:+.1f}]"


def _mean_and_spread(values: list[float]) -> str:
    spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
    return f"{np.mean(values):.1f}{spread}" if values else ""


def _resampled(tasks: list[Any], generator: np.random.Generator) -> Iterator[float]:
    for task, labels_N, first_SN, second_SN in tasks:
        rows = generator.integers(0, len(labels_N), len(labels_N))
        draws = generator.integers(0, len(first_SN), max(1, len(first_SN) - 1))
        metric = METRICS.get(task, "accuracy")
        yield _difference(metric, labels_N[rows], first_SN[np.ix_(draws, rows)], second_SN[np.ix_(draws, rows)])


def _difference(metric: str, labels_N: np.ndarray, first_SN: np.ndarray, second_SN: np.ndarray) -> float:
    first, second = ([_score(metric, labels_N, row) for row in values] for values in (first_SN, second_SN))
    return 100 * float(np.mean(first) - np.mean(second))


def _score(metric: str, labels_N: np.ndarray, predictions_N: np.ndarray) -> float:
    if metric == "pearson":
        if np.ptp(predictions_N) == 0:
            return 0.0  # as in metrics.metrics: a constant says nothing
        return float(np.corrcoef(labels_N, predictions_N)[0, 1])
    size = int(max(labels_N.max(), predictions_N.max())) + 1
    counts = confusion_counts(labels_N.astype(np.int64), predictions_N.astype(np.int64), max(2, size))
    return float(confusion_score(metric, counts))


if __name__ == "__main__":
    sys.exit(main())
