"""What a search will take: its trials, sampled as if none had ended, and their expected time."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attentune.config import to_flat
from attentune.errors import ConfigError
from attentune.runs.records import RecordStore
from attentune.runs.timing import epochs_of, seconds_per_token, size_of_rows
from attentune.runs.search_setup import SearchOptions, Setup, set_up
from attentune.runs.space import Dimension
from attentune.runs.study import SearchStudy


@dataclass(frozen=True)
class PlannedSearch:
    """The runs of a search."""

    trials: int  # the number of trials
    seeds: int  # the runs of each
    done: int  # how many runs are recorded
    seconds: tuple[float, ...]  # the expected time of a run of each trial that is left, at most
    is_measured: bool  # whether that is the mean time of recorded runs, rather than predicted from short ones

    @property
    def runs(self) -> int:
        """The runs that are left."""
        return max(0, self.trials * self.seeds - self.done)

    def hours(self, jobs: int) -> float:
        """The expected time with this many runs at a time."""
        if not self.seconds or not self.runs:
            return 0.0
        return max(self.runs * statistics.fmean(self.seconds) / jobs, *self.seconds) / 3600


def plan_search(
    output_dir: str | Path,
    *,
    space: str | Path | Mapping[str, Any] | None = None,
    vary: Sequence[Dimension] = (),
    preset: str | None = None,
    config: str | Path | None = None,
    overrides: Mapping[str, Any] | None = None,
    info: Callable[[str], None],
    **options: Any,
) -> PlannedSearch:
    """Predict the time of a search, from its records or else from short runs on this machine.

    A trial that is pruned takes less. Of a sampler that learns from scores, the settings are those of random trials.
    """
    setup = set_up(space, vary, SearchOptions(**options), preset=preset, file=config, overrides=overrides or {})
    with tempfile.TemporaryDirectory() as folder:
        study = SearchStudy(Path(folder), setup.space, setup.sampler_config, setup.criterion)
        while study.add():
            pass
        trials = [trial.settings for trial in study.trials()]
    records = RecordStore(Path(output_dir)).records() if Path(output_dir).is_dir() else []
    seconds: tuple[float, ...]
    if records:
        seconds = (statistics.fmean(record.wall_seconds for record in records),)
    else:
        seconds = tuple(_predicted(setup, trials, info))
    return PlannedSearch(len(trials), len(setup.seeds), len(records), seconds, bool(records))


def _predicted(setup: Setup, trials: Sequence[Mapping[str, Any]], info: Callable[[str], None]) -> list[float]:
    """Predict the seconds of a run of each trial; each preset is timed once."""
    rows = setup.rows.load(setup.base).splits["train"]
    size = size_of_rows(rows, setup.base, len(rows))
    token_s: dict[str | None, float] = {}
    seconds = []
    for trial in trials:
        try:
            config = setup.settings.config(trial)
        except ConfigError:  # such a trial fails before it trains
            continue
        flat = to_flat(config)
        if config.preset not in token_s:
            info(f"timing {config.preset or 'the settings'} on a few rows")
            token_s[config.preset] = seconds_per_token(flat)
        seconds.append(size.rows * size.mean_tokens * token_s[config.preset] * epochs_of(flat, size))
    return seconds
