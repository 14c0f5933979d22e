"""A first look at SESAME: RTE and MRPC at 1,000 rows, layer choices, and HANS; the embedded encoder, 3 seeds.

    OMP_NUM_THREADS=1 python benchmarks/sesame_look.py [--stages choose,report,layers,rescaled,hans]

Start it as often as there are cores: each takes runs that no other has begun. Rows and their split are those of
first_look.py, and so are learning rate and epochs, which preset `bert` chose there. Sigma is chosen for each method and
task by training on 1,000 rows of another seed and scoring on further rows of the training file. The stages `layers` and
`rescaled` try the layer choices on RTE, without and with squeeze-and-excitation. The stage `hans` trains on all of SICK
and of RTE and scores all of HANS. Data: $ATTENTUNE_DATA, else ../shared/data.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from attentune.suites.hans import score_hans
from looks import base_settings, rows_of, run_into, work_off
from places import RESULTS, data_dir

FOLDER = RESULTS / "sesame-look"
# Preset bert at 1,000 rows has been run there, with the same settings.
FIRST_LOOK = RESULTS / "first-look"
TASKS, SEEDS, CHOOSING_SEED = ("rte", "mrpc"), (1, 2, 3), 100
# At size 3 the kernel of the paper's sigma 1e-1 is that of 1e-2 to the last digit, so it is not run besides.
SIGMAS = (1e-2, 3e-1, 5e-1)
LEARNED = {"model.blur.learnable": "layer"}
FRESH = {"model.head.pooler": "fresh"}
# Presets, and what is set besides; True where sigma is to be chosen.
METHODS: dict[str, tuple[str, dict[str, Any], bool]] = {
    "bert": ("bert", {}, False),
    "bert fresh pooler": ("bert", FRESH, False),
    "se-bert": ("se-bert", {}, False),
    "blur-bert": ("blur-bert", {}, True),
    "blur-value": ("blur-value", {}, True),
    "sesame": ("sesame", {}, True),
    "blur-bert learned": ("blur-bert", LEARNED, False),
    "sesame learned": ("sesame", LEARNED, False),
}
# What a method is where the chosen kernel is no blur: the same run to the last digit, so it is not made again.
WITHOUT_BLUR = {"blur-bert": "bert fresh pooler", "blur-value": "bert fresh pooler", "sesame": "se-bert"}
KINDS = ("first", "second", "second-to-last", "last", "sum-last-4", "sum-all", "mean-all", "weighted")
# What bert chose in first_look.py; for all of SICK and RTE set beforehand.
REGIMES = {"rte": (1e-4, 6), "mrpc": (1e-4, 6), "hans-rte": (1e-4, 4), "hans-sick": (1e-4, 4)}
HANS_METHODS = ("bert", "sesame", "ssa-hybrid")


@dataclass(frozen=True)
class Job:
    """One run. `sigma` is that of the stage `choose`."""

    stage: str
    task: str
    method: str
    seed: int
    sigma: float | None = None

    @property
    def file(self) -> Path:
        """Where its record goes."""
        if self.stage == "report" and self.method in WITHOUT_BLUR and chosen_sigma(self.task, self.method) == SIGMAS[0]:
            return replace(self, method=WITHOUT_BLUR[self.method]).file
        home = FIRST_LOOK if (self.stage, self.method) == ("report", "bert") else FOLDER
        last = f"seed-{self.seed}" if self.sigma is None else f"sigma-{self.sigma:g}"
        return home / self.stage / self.task / f"{self.method.replace(' ', '_')}-{last}.json"


def jobs(stages: list[str]) -> Iterator[Job]:
    """All runs, in the order in which they can be done."""
    for task in TASKS:
        if "choose" in stages:
            wanting = [name for name, (_, _, chooses) in METHODS.items() if chooses]
            yield from (Job("choose", task, name, CHOOSING_SEED, sigma) for name in wanting for sigma in SIGMAS)
        if "report" in stages:
            own = [name for name in METHODS if name != "bert"]
            yield from (Job("report", task, name, seed) for seed in SEEDS for name in own)
    for stage in ("layers", "rescaled"):
        if stage in stages:
            yield from (Job(stage, "rte", kind, seed) for seed in SEEDS for kind in KINDS)
    if "hans" in stages:
        yield from (
            Job("hans", task, name, seed) for seed in SEEDS for task in ("sick", "rte") for name in HANS_METHODS
        )


def chosen_sigma(task: str, method: str) -> float | None:
    """The sigma that scored best where it was to be chosen; None while runs are missing."""
    files = [Job("choose", task, method, CHOOSING_SEED, sigma).file for sigma in SIGMAS]
    if not all(file.exists() for file in files):
        return None
    return SIGMAS[int(np.argmax([json.loads(file.read_text())["score"] for file in files]))]


def settings_of(job: Job) -> dict[str, Any] | None:
    """The run's settings; None while the choice that it needs is not made."""
    rate, epochs = REGIMES[f"hans-{job.task}" if job.stage == "hans" else job.task]
    base = base_settings(job.task, seed=job.seed, learning_rate=rate, epochs=epochs)
    if job.stage in ("layers", "rescaled"):
        mix = {"model.layer_mix.kind": job.method, "model.layer_mix.squeeze": job.stage == "rescaled"}
        return {"preset": "bert", **base, **FRESH, **mix}
    preset, extra, chooses = METHODS.get(job.method, (job.method, {}, False))
    if not chooses:
        return {"preset": preset, **base, **extra}
    sigma = job.sigma or chosen_sigma("rte" if job.stage == "hans" else job.task, job.method)
    return None if sigma is None else {"preset": preset, **base, **extra, "model.blur.sigma": sigma}


def on_hans(run: Path, record: dict[str, Any]) -> dict[str, Any]:
    """HANS's lines of a run, without its name."""
    report = score_hans([run], None, data_dir=str(data_dir()))
    lines = [
        {
            "heuristic": x.heuristic,
            "gold_label": x.gold_label,
            "subcase": x.subcase,
            "rows": x.rows,
            "accuracy": x.means[0],
        }
        for x in report.lines
    ]
    return {"hans": lines, "says_entailment": float(report.entails_RN.mean())}


def make(job: Job) -> None:
    """Train, and write the record."""
    settings = settings_of(job)
    assert settings is not None
    facts = {"command": f"python benchmarks/sesame_look.py --stages {job.stage}", "method": job.method}
    if job.stage == "hans":
        run_into(job.file, settings, facts, finish=on_hans)
    else:
        run_into(job.file, settings, facts, rows=partial(rows_of, seed=job.seed, to_choose=job.stage == "choose"))


def is_ready(job: Job) -> bool:
    """Whether the choice that the run needs is made."""
    return settings_of(job) is not None


def tasks_of(found: Iterator[Job]) -> Iterator[tuple[Path, Callable[[], bool], Callable[[], None]]]:
    """For `work_off`."""
    return ((job.file, partial(is_ready, job), partial(make, job)) for job in found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stages", default="choose,report,layers,rescaled,hans")
    work_off(tasks_of(jobs(parser.parse_args().stages.split(","))))


if __name__ == "__main__":
    main()
