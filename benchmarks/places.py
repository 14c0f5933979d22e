"""Where the benchmarks read and write, whatever folder they are started in."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
RECORDS = RESULTS / "bench"


def data_dir() -> Path:
    """The real data: $ATTENTUNE_DATA, else ../shared/data beside the checkout."""
    return Path(os.environ.get("ATTENTUNE_DATA") or ROOT.parent / "shared" / "data").absolute()


def named_data_dir() -> Path:
    """The same seen from the checkout, so that commands in records name no path of one machine."""
    return Path(os.path.relpath(data_dir(), ROOT))
