"""The heading of the page: what its runs do, in words that need no knowledge of models."""

from __future__ import annotations

from collections.abc import Sequence

from attentune.app.html import heading
from attentune.data.dataset import LabelSpace
from attentune.errors import AttentuneError
from attentune.inference.predictor import ModelPredictor, Predictor
from attentune.results import RESULT_FILE, RunResult

_MOST_NAMES = 8


def headline(runs: Sequence[tuple[str, Predictor]]) -> str:
    """Render the heading: a question, and what each run tells of a text and how well."""
    names = [name for name, _ in runs]
    do, of = ("do" if len(runs) > 1 else "does"), ("two texts" if runs[0][1].is_pair else "a text")
    return heading(f"What {do} {' and '.join(names)} say about {of}, and why?", [_facts(*run) for run in runs])


def _facts(name: str, saved: Predictor) -> str:
    facts = f"{name} {_job(saved.label_space, is_pair=saved.is_pair)}.{_score(saved)}"
    if isinstance(saved, ModelPredictor):
        facts += f" It reads up to {saved.model.config.max_seq_length} word pieces."
    return facts


def _job(space: LabelSpace, *, is_pair: bool) -> str:
    of = "two texts" if is_pair else "a text"
    if not space.names:
        return f"gives {of} a score"
    shown = [*space.names[:_MOST_NAMES]]
    more = [f"{len(space.names) - _MOST_NAMES} more"] if len(space.names) > _MOST_NAMES else []
    if space.is_multilabel:
        return f"gives {of} any of the labels {_listed([*shown, *more], 'and')}"
    verb = "places" if space.task_type == "ordinal" else "sorts"
    return f"{verb} {of} into {_listed([*shown, *more], 'or')}"


def _listed(names: Sequence[str], last: str) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} {last} {names[-1]}"


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
