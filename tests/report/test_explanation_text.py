"""Explanations in a terminal: coloured, readable without colour, and without the control characters of a text."""

from __future__ import annotations

import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from attentune.explain.explanation import Explanation, Subword
from attentune.explain.texts import explain_rows
from attentune.report.document import visible
from attentune.report.explanations import hex_tone, segments, summary_line, terminal_text, tone
from helpers.hostile_texts import HOSTILE
from helpers.tiny_models import rows_of
from helpers.tiny_runs import tiny_run

Tiny = Callable[..., Path]


def shown(explanation: Explanation, **options: Any) -> str:
    buffer = io.StringIO()
    settings = {"force_terminal": True, "color_system": "truecolor", "width": 100, "soft_wrap": True} | options
    soft_wrap = settings.pop("soft_wrap")
    Console(file=buffer, highlight=False, soft_wrap=soft_wrap, **settings).print(terminal_text(explanation))
    return buffer.getvalue()


def explained(scores: list[float], *, signed: bool, **changes: Any) -> Explanation:
    text = "none little strong most"
    spans = [match.span() for match in re.finditer(r"\w+", text)]
    pieces = tuple(Subword(text[a:b], a, b, score) for (a, b), score in zip(spans, scores, strict=True))
    values = {
        "text": text, "pair": None, "method": "gradient", "label": "good", "probability": 0.75, "prediction": "good",
        "signed": signed, "passes": 2, "seconds": 0.5, "level": "word", "unit": "a unit",
        "pieces": pieces,
    }  # fmt: skip
    return Explanation(**(values | changes))


def styles(explanation: Explanation) -> dict[str, str]:
    """Each token's style in a terminal."""
    found = terminal_text(explanation)
    return {found.plain[span.start : span.end]: str(span.style) for span in found.spans}


def test_strong_tokens_are_bold_and_underlined_and_those_against_in_italics() -> None:
    found = styles(explained([0.0, 0.25, -0.5, 1.0], signed=True))
    assert found["none"] == "#808080"
    assert found["little"] == "#9a6b6a"  # a quarter of the way from grey to red
    assert found["strong"] == "bold italic underline #567eba"  # half the way to blue
    assert found["most"] == "bold underline #e62d28"
    assert styles(explained([0.0, 0.1, 0.2, 0.2], signed=False))["most"] == "bold underline #eb7800"


def test_the_summary_is_one_line() -> None:
    explanation = explained([0.0, 0.25, -0.5, 1.0], signed=True, passes=1001, prediction="bad")
    assert summary_line(explanation) == (
        "gradient: good (0.750), but predicted bad; 1,001 passes, 0.5 s; scores -0.5 to +1"
    )
    score = explained([0.0, 0.25, 0.5, 1.0], signed=False, label=2.5, prediction=2.5, probability=None, passes=1)
    assert summary_line(score) == "gradient: predicted 2.5; 1 pass, 0.5 s; scores 0 to 1"


def test_no_colour_leaves_underlines_and_no_terminal_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    explanation = explained([0.0, 0.25, -0.5, 1.0], signed=True)
    assert "38;2;" in shown(explanation)
    bare = shown(explanation, no_color=True)
    assert "38;2;" not in bare
    assert "\x1b[1;4mmost" in bare
    plain = shown(explanation, force_terminal=False, color_system="auto")
    assert "\x1b" not in plain
    assert "none little strong most" in plain


def test_hostile_texts_cannot_command_a_terminal(tiny: Tiny) -> None:
    rows = rows_of(HOSTILE, HOSTILE[::-1])
    for explanation in explain_rows(tiny_run(tiny(), "pair"), rows, methods=("ssa",))["ssa"]:
        out = shown(explanation)
        left = re.sub(r"\x1b\[[0-9;]*m", "", out)  # the styles that we ourselves set
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", left)
        assert visible(explanation.text) in left
        assert out.count("\x1b[") == len(re.findall(r"\x1b\[(?:0|[1-9][0-9;]*)m", out))


def test_what_cannot_be_seen_is_made_visible() -> None:
    assert visible("a\x1b[0m\x00\x7f\x9b") == "a\u241b[0m\u2400\u2421\ufffd"
    assert visible("a\r\nb\rc\td") == "a\nb\nc\td"
    assert visible("a\nb\tc", one_line=True) == "a\u240ab\u2409c"
    assert visible("\u202egnp.exe\u2066") == "\ufffdgnp.exe\ufffd"
    assert visible("na\u00efve \u65e5\u672c \U0001f600 \u200f") == "na\u00efve \u65e5\u672c \U0001f600 \u200f"


def test_segments_hold_the_whole_text() -> None:
    text = "a bc  def g"
    tokens = [Subword("bc", 2, 4, 1.0), Subword("", 4, 4, 9.0), Subword("de", 6, 8, 2.0), Subword("ef", 7, 9, -0.5)]
    for signed, joined in ((True, 1.5), (False, 2.0)):
        parts = segments(text, tokens, signed=signed)
        assert [(part.text, part.score) for part in parts] == [
            ("a ", None), ("bc", 1.0), ("  ", None), ("def", joined), (" g", None),
        ]  # fmt: skip
    assert segments("", [], signed=True) == []


def test_tones_reach_from_white_to_full_and_black_can_be_read_on_them() -> None:
    assert hex_tone(0.0, signed=True) == hex_tone(0.0, signed=False) == hex_tone(-0.5, signed=False) == "#ffffff"
    for share, signed in ((1.0, True), (-1.0, True), (1.0, False)):
        linear = [
            (part / 255 / 12.92 if part <= 10 else ((part / 255 + 0.055) / 1.055) ** 2.4)
            for part in tone(share, signed=signed)
        ]
        luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
        assert (luminance + 0.05) / 0.05 > 7  # WCAG's contrast with black, level AAA
