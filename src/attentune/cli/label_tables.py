"""What `attentune doctor --labels` prints."""

from __future__ import annotations

from attentune.annotation.label_check import AlikeTexts, LabelCheck, SuspectLabel
from attentune.cli.output import table
from attentune.experiments.auto.out_of_fold import share_sentence
from attentune.report.highlight import visible

_TEXT_WIDTH, _ALIKE_SHOWN = 60, 5
# A model this much better than always predicting the most frequent class, of what it could be, tells labels apart.
_WEAK = 0.3


def label_lines(check: LabelCheck, *, shown: int, file: str | None = None) -> list[str]:
    """Format the likely label errors, how many there may be, and nearly equal texts with other labels.

    Args:
        check: what was found.
        shown: the most rows in the table.
        file: where all rows to check were written, if anywhere.
    """
    lines = [f"Labels, by {check.source}", f"  {share_sentence(check.share)}"]
    gain = (check.accuracy - check.majority) / (1 - check.majority) if check.majority < 1 else 0.0
    if gain < _WEAK:
        lines += [
            f"  These predictions agree with {100 * check.accuracy:.1f} % of the labels, and always predicting the most"
            f" frequent class with {100 * check.majority:.1f} %: too weak",
            "  a model to tell wrong labels from hard texts. A better one: attentune auto, then --run DIR.",
        ]
    if not check.suspects:
        return [*lines, "  No label is probably wrong.", *_alike_lines(check.alike)]
    first = check.suspects[:shown]
    lines.append(f"  {len(check.suspects):,} of {check.rows:,} rows to check, the least probable label first:")
    if first:
        header = ("row", "label", "suggested", "p label", "p suggested", "words for it", "text")
        made = table(header, [_cells(suspect) for suspect in first], right=(0, 3, 4))
        lines += ["", *(f"  {line}" for line in made.splitlines())]
    if len(first) < len(check.suspects):
        more = len(check.suspects) - len(first)
        how = "--output_file errors.csv writes all of them, to be marked." if file is None else f"all are in {file}."
        lines += ["", f"  and {more:,} more; {how}"]
    if file is not None:
        lines.append(f"  Fill in the column mark of {file} (fix, remove or keep), and give the file to --fix.")
    return [*lines, *_alike_lines(check.alike)]


def _cells(suspect: SuspectLabel) -> tuple[str, ...]:
    text = suspect.text if suspect.pair is None else f"{suspect.text} || {suspect.pair}"
    return (
        str(suspect.row),
        visible(suspect.label, one_line=True),
        visible(suspect.suggested, one_line=True),
        f"{suspect.label_probability:.3f}",
        f"{suspect.suggested_probability:.3f}",
        visible(", ".join(suspect.words or ()), one_line=True),
        _short(text),
    )


def _short(text: str) -> str:
    text = visible(text, one_line=True)
    return text if len(text) <= _TEXT_WIDTH else text[: _TEXT_WIDTH - 3] + "..."


def _alike_lines(alike: tuple[AlikeTexts, ...]) -> list[str]:
    if not alike:
        return []
    count = f"{len(alike):,} pair{'s' * (len(alike) != 1)} of nearly equal texts with other labels"
    lines = ["", f"  {count}; the words that differ in brackets:"]
    for one in alike[:_ALIKE_SHOWN]:
        for row, label, text, words in zip(one.rows, one.labels, one.texts, one.differences, strict=True):
            own = f" [{visible(', '.join(words), one_line=True)}]" if words else ""
            lines.append(f"    row {row} ({visible(label, one_line=True)}): {_short(text)}{own}")
    if len(alike) > _ALIKE_SHOWN:
        lines.append(f"    and {len(alike) - _ALIKE_SHOWN:,} more; --format json has all of them.")
    return lines
