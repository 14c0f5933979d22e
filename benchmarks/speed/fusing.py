"""Processor seconds of fusing and estimating at the end of `attentune auto`, and memory over the logits of its members.

    OMP_NUM_THREADS=1 python -m benchmarks.speed.fusing

Each cell is six made members in a process of its own, as `Delivery` fuses them with a limit of 300 seconds.
"""

import resource
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np

LIMIT_S, MEMBERS = 300.0, 6
CLASSES, ROWS = (2, 20, 150, 500), (100, 1_000, 10_000, 100_000)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def cell(classes: int, rows: int) -> str:
    """Fuse and estimate once; return a line of the table."""
    from attentune.automl.delivery import END_SHARE, Delivery
    from attentune.automl.fusion import FusionProblem, estimate_score
    from attentune.data.dataset import LabelSpace
    from attentune.metrics.metrics import METRICS

    generator = np.random.default_rng(0)
    labels, logits = generator.integers(0, classes, rows), {}
    for member in range(MEMBERS):
        logits_NC = generator.normal(size=(rows, classes))
        logits_NC[np.arange(rows), labels] += 1.5 + 0.3 * member
        logits[f"member-{member}"] = 1.5 * logits_NC
    space = LabelSpace("classification", tuple(map(str, range(classes))))
    problem = FusionProblem(logits, labels, np.arange(rows) % 5, space, METRICS["accuracy"])
    delivery, before = Delivery.__new__(Delivery), resident_bytes()
    peak, is_over = [before], threading.Event()

    def watch() -> None:
        while not is_over.wait(0.02):
            peak[0] = max(peak[0], resident_bytes())

    threading.Thread(target=watch, daemon=True).start()
    marks = [time.process_time()]
    effort = delivery._effort(problem, END_SHARE * LIMIT_S, END_SHARE * LIMIT_S)
    fused = delivery._fuse(problem, effort)
    marks.append(time.process_time())
    estimate_score(problem, effort)
    marks.append(time.process_time())
    is_over.set()
    fuse_s, estimate_s = np.diff(marks)
    numbers = len(fused.fusion.weights) or sum(map(len, fused.fusion.coefficients)) + classes
    cells = (classes, f"{rows:,}", fused.fusion.kind, numbers, "all" if effort.max_rows is None else effort.max_rows)
    shares = (f"{seconds:.1f} ({seconds / LIMIT_S:.1%})" for seconds in (fuse_s, estimate_s))
    return f"| {' | '.join(map(str, (*cells, *shares, f'{(peak[0] - before) / 1e9:.2f}')))} |"


def main(words: list[str]) -> None:
    if words:
        print(cell(*map(int, words)), flush=True)
        return
    print(
        "| classes | rows | fusion | numbers | rows fitted on | choosing and fusing, s | estimating, s | memory, GB |"
    )
    print(f"|{'---|' * 8}", flush=True)
    for classes in CLASSES:
        for rows in ROWS:
            if rows >= 2 * classes:
                subprocess.run([sys.executable, "-m", "benchmarks.speed.fusing", str(classes), str(rows)], check=True)


if __name__ == "__main__":
    main(sys.argv[1:])
