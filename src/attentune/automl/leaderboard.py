"""What `attentune auto` has delivered: the leaderboard, the choice and the estimate. Reading it needs no PyTorch."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

from attentune.errors import CheckpointError
from attentune.io.files import read_json
from attentune.metrics.metrics import Metric
from attentune.results import check_fields, html_block, html_table

# In a run folder the folder with the work of `auto`, and the file there.
WORK_FOLDER, LEADERBOARD_FILE = "auto", "leaderboard.json"


@dataclass(frozen=True)
class LeaderboardRow:
    """A member, or the fusion of several."""

    name: str  # the member's name, or "fusion"
    kind: str  # "baseline", "fine-tuned" or "fusion"
    method: str  # the baseline, the preset, or the kind of fusion
    encoder: str | None = None  # the member's encoder; None if it has none
    status: str = "done"  # "done" or "left out"
    score: float | None = None  # the metric on rows that the model was not trained on; None if undefined or left out
    # low, high: its 95 % interval over these rows; None if undefined.
    low: float | None = None
    high: float | None = None
    seconds: float = 0.0  # the time that all of its folds took
    bytes: int = 0  # the size of its files
    weight: float | None = None  # how much it counts in what was delivered; None if it is not part of that
    note: str = ""  # why it was left out, or what its score is of


@dataclass(frozen=True)
class AutoResult:
    """What `auto` has delivered."""

    folder: Path  # the run folder
    metric: str  # the metric that chose it
    leaderboard: list[LeaderboardRow]  # the members and the fusion, best first
    reason: str  # why this was delivered, in a sentence
    estimate: dict[str, Any]  # the expected score on new rows, with its interval and how it was computed
    scores: Mapping[str, Mapping[str, float | None]]  # the scores of validation and test rows, which chose no member
    seconds: float  # the time spent, over all calls
    stopped: bool = False  # whether a stop was requested (Ctrl-C) before the time was up
    notes: tuple[str, ...] = ()  # sentences on the rows and on what was limited
    rejection: str | None = None  # which texts are rejected, as of no class

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "folder": str(self.folder), "seconds": round(self.seconds, 3)}

    @classmethod
    def load(cls, folder: Path) -> Self | None:
        """Read the leaderboard of a run folder that `auto` has made, else None."""
        file = folder / WORK_FOLDER / LEADERBOARD_FILE
        if not file.is_file():
            return None
        try:
            content = read_json(file)
            rows = [LeaderboardRow(**row) for row in content.pop("leaderboard")]
            notes, _ = tuple(map(str, content.pop("notes"))), content.pop("folder")
            check_fields(cls, content)
            loaded = cls(folder=folder, leaderboard=rows, notes=notes, **content)
            loaded._repr_html_()  # formats the values, which fails for those of another kind
            return loaded
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(
                f"{file}: is not the leaderboard of attentune auto: {error}. Use another copy of the run folder."
            ) from error

    @property
    def delivered(self) -> list[LeaderboardRow]:
        """The members of what was delivered."""
        return [row for row in self.leaderboard if row.weight is not None and row.kind != "fusion"]

    @property
    def header(self) -> tuple[str, ...]:
        return "model", self.metric, "95 % interval", "seconds", "MB", ""

    @property
    def sentences(self) -> tuple[str, str]:
        return self.reason, estimate_sentence(self.estimate)

    def _repr_html_(self) -> str:
        """Show the leaderboard, the choice and the estimate in a notebook."""
        return html_block(
            f"Run {self.folder}", [html_table(self.header, leaderboard_cells(self.leaderboard))], self.sentences
        )


def ranked(rows: Sequence[LeaderboardRow], metric: Metric) -> list[LeaderboardRow]:
    """Return the rows best first, then those without a score."""
    sign = -1.0 if metric.greater_is_better else 1.0
    return sorted(rows, key=lambda row: (row.score is None, sign * (row.score or 0.0)))


def leaderboard_cells(rows: Sequence[LeaderboardRow]) -> list[tuple[str, ...]]:
    """Return the cells of the leaderboard: name, score, interval, seconds, MB, and what it is used for."""
    has_fusion = any(row.kind == "fusion" for row in rows)

    def use(row: LeaderboardRow) -> str:
        if row.weight is None:
            return row.note
        part = f"in the fusion, weight {row.weight:.2g}" if has_fusion and row.kind != "fusion" else "delivered"
        return f"{part}, {row.note}" if row.note else part

    return [
        (
            row.name,
            "-" if row.score is None else f"{row.score:.4f}",
            "" if row.low is None or row.high is None else f"{row.low:.4f} to {row.high:.4f}",
            f"{row.seconds:.1f}",
            f"{row.bytes / 1e6:.1f}",
            use(row),
        )
        for row in rows
    ]


def estimate_sentence(estimate: dict[str, Any]) -> str:
    if estimate.get("value") is None:
        return f"There is no estimate for new rows: {estimate['metric']} is undefined."
    interval = ""
    if estimate.get("low") is not None and estimate.get("high") is not None:
        interval = f" (95 % interval {estimate['low']:.4f} to {estimate['high']:.4f})"
    return (
        f"Estimate for new rows: {estimate['metric']} {estimate['value']:.4f}{interval}, by {estimate['method']}. It"
        " holds for rows of the same time and source; others are not covered."
    )


def card(result: AutoResult) -> str:
    """Return the README.md of the run folder."""
    lines = ["# A model made by attentune auto", "", "\n\n".join(result.sentences), ""]
    for split, scores in result.scores.items():
        values = ", ".join(
            f"{name} {'undefined' if value is None or value != value else format(value, '.4f')}"
            for name, value in scores.items()
        )
        lines += [f"Scores on {split} rows, which chose no member: {values}.", ""]
    header = (result.header[0], f"{result.metric}, out of fold", *result.header[2:])
    lines += [f"| {' | '.join(header)} |", f"|{'---|' * len(header)}"]
    lines += [
        f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |" for cells in leaderboard_cells(result.leaderboard)
    ]
    lines += ["", *(f"- {note}" for note in result.notes), ""]
    lines += ["The folder `auto` belongs to the model: it has the members' weights.", ""]
    return "\n".join(lines)
