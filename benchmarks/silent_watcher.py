"""A watcher of a training loop that does nothing, where only time matters."""

from __future__ import annotations

from typing import Any

from attentune.training.state import TrainingState


class SilentWatcher:
    """Scores nothing, saves nothing, says nothing."""

    def score(self, state: TrainingState) -> dict[str, dict[str, float]]:
        return {}

    def __getattr__(self, name: str) -> Any:
        return lambda *facts: None
