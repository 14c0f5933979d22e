"""Contenders side by side: each run in a process of its own, each repeat takes all of them in turn."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def one_run(script: Path, *words: object) -> dict[str, Any]:
    """The facts that a script prints of one contender's run, or the reason why there are none."""
    done = subprocess.run([sys.executable, script, *map(str, words)], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    return {"reason": (done.stderr.strip().splitlines() or ["no message"])[-1]}


def in_turn(script: Path, contenders: Iterable[str], repeats: int, *words: object) -> dict[str, list[dict[str, Any]]]:
    """The facts of `repeats` runs of each contender, as `script CONTENDER *words` prints them.

    A machine whose speed drifts favours none of them. One that cannot run is asked once.
    """
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, own in runs.items():
            if not own or "reason" not in own[0]:
                own.append(one_run(script, name, *words))
    return runs
