"""The rows that an export is checked on."""

from __future__ import annotations

from attentune.data.dataset import TaskData, TextRows
from attentune.errors import AttentuneError
from attentune.inference.predictor import SavedRun

_MADE_UP = (
    "The film was not dull at all.",
    "",
    "a",
    "Nobody plays the guitar in 1990, and that is that; it is cold, and the train leaves at 7:45!",
    "[SEP] is not what it looks like here </s>",
    "Prices rose by 12 percent. " * 40,
    "Where did you find such good coffee?",
)
MADE_UP_NAME = "made-up texts"


def made_up_rows(*, pairs: bool) -> TextRows:
    """Texts that are short, empty, longer than any limit, and look like special tokens; of pairs either side is."""
    ids = tuple(map(str, range(len(_MADE_UP))))
    return TextRows(ids, _MADE_UP, (*_MADE_UP[3:], *_MADE_UP[:3]) if pairs else None, None, MADE_UP_NAME)


def validation_rows(saved: SavedRun, most: int) -> tuple[TextRows, TaskData] | None:
    """The first of the run's own validation rows, and the task that they are of; None where they are not at hand."""
    try:
        data = saved.data(None, ("validation",))
    except AttentuneError:
        return None
    rows = next(iter(data.splits.values()))
    return (rows.take(range(min(most, len(rows)))), data) if len(rows) else None
