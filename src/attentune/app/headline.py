"""The heading of the page: what its runs do, in words that need no knowledge of models."""

from __future__ import annotations

from collections.abc import Sequence

from attentune.app.html import heading
from attentune.errors import AttentuneError
from attentune.inference.predictor import ModelPredictor, Predictor
from attentune.results import RESULT_FILE, RunResult


def headline(runs: Sequence[tuple[str, Predictor]]) -> str:
    """Render the heading: what the run does with a text, and how well; of two runs, what each does."""
    if len(runs) > 1:
        names = " and ".join(name for name, _ in runs)
        return heading(names, [f"{name} {saved.job}.{_facts(saved)}" for name, saved in runs])
    ((name, saved),) = runs
    return heading(f"This model {saved.job}.", [f"Run {name}.{_facts(saved)}"])


def _facts(saved: Predictor) -> str:
    facts = _score(saved)
    if isinstance(saved, ModelPredictor):
        facts += f" It reads up to {saved.model.config.max_seq_length} word pieces."
    return facts


def _score(saved: Predictor) -> str:
    """Return the first score on the validation rows; nothing for folders without a record of it."""
    try:
        scores = RunResult.load(saved.folder / RESULT_FILE).scores
    except (AttentuneError, OSError, ValueError):
        return ""
    split = next((split for split in scores if split.startswith("validation")), None)
    found = [] if split is None else [(name, value) for name, value in scores[split].items() if value is not None]
    if not found:
        return ""
    name, value = found[0]
    return f" On its validation rows: {name.replace('_', ' ')} {value:.3f}."
