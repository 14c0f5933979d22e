"""Figures of explanations: every character and score is drawn in its place, and too long texts are refused."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from attentune.errors import ConfigError
from attentune.explain.explanation import Explanation, Subword
from attentune.explain.texts import explain_rows, head_attention
from attentune.report.highlight import hex_tone
from attentune.report.tokens import draw_explanations, draw_heads
from helpers.hostile_texts import HOSTILE
from helpers.made_records import SIGNATURES, record_figures
from helpers.tiny_models import rows_of
from helpers.tiny_runs import TEXTS, rows_for, tiny_run

Tiny = Callable[..., Path]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Each figure that is drawn."""
    return record_figures(monkeypatch)


@pytest.mark.integration
@pytest.mark.parametrize("ending", SIGNATURES)
def test_each_kind_of_file_is_drawn(tiny: Tiny, tmp_path: Path, ending: str) -> None:
    run, rows = tiny_run(tiny(), "pair"), rows_for("pair")
    draw_explanations(tmp_path / f"texts{ending}", explain_rows(run, rows, methods=("gradient",))["gradient"])
    draw_heads(tmp_path / f"heads{ending}", head_attention(run, rows))
    for file in tmp_path.iterdir():
        assert file.read_bytes().startswith(SIGNATURES[ending])
    assert len(list(tmp_path.iterdir())) == 2


def explained(text: str, pieces: list[Subword], *, signed: bool) -> Explanation:
    return Explanation(text, None, "gradient", "good", 0.5, "good", signed, 1, 0.1, "token", "a unit", tuple(pieces))


@pytest.mark.parametrize("signed", [True, False])
def test_tokens_stand_on_their_tones_and_lines(tmp_path: Path, drawn: list[Any], signed: bool) -> None:
    pieces = [Subword("two", 0, 3, 0.5), Subword("against", 4, 11, -0.25), Subword("most", 12, 16, 1.0)]
    draw_explanations(tmp_path / "a.png", [explained("two against most", pieces, signed=signed)])
    (axis,) = drawn[0].axes
    texts = {text.get_text(): text for text in axis.texts}
    assert [text for text in texts if text.strip()][1:] == ["a unit", "two", "against", "most"]
    tones = [patch.get_facecolor() for patch in axis.patches]
    shares = [0.5, -0.25, 1.0]
    assert tones == [pytest.approx(rgba(hex_tone(share, signed=signed)), abs=1e-6) for share in shares]
    for patch, word in zip(axis.patches, ("two", "against", "most"), strict=True):
        left, right = patch.get_xy()[:, 0].min(), patch.get_xy()[:, 0].max()
        box = texts[word].get_window_extent().transformed(axis.transData.inverted())
        assert left - 0.03 < box.x0 < box.x1 < right + 0.03
    assert [line.get_linewidth() for line in axis.lines] == pytest.approx([1.25, 0.625, 2.5])
    assert [line.get_linestyle() != "-" for line in axis.lines] == [False, signed, False]


def rgba(tone: str) -> tuple[float, ...]:
    return (*(int(tone[place : place + 2], 16) / 255 for place in (1, 3, 5)), 1.0)


@pytest.mark.integration
@pytest.mark.parametrize(
    "text",
    [
        "word " * 200,
        "x" * 500,
        "a\n\nb\n" * 4,
        "\u65e5\u672c" * 100,
        "(un)broken, " + "signs!" * 40,
        "",
        "$x^$ \\frac{1} _a",
    ],
)
def test_every_character_is_drawn_once_within_the_figure(
    tmp_path: Path, drawn: list[Any], text: str, tiny: Tiny
) -> None:
    (found,) = explain_rows(tiny_run(tiny()), rows_of([text]), methods=("gradient",))["gradient"]
    draw_explanations(tmp_path / "a.png", [found])
    (axis,) = drawn[0].axes
    runs = axis.texts[1 + len(textwrap.wrap(found.unit, 109)) :]
    assert "".join(run.get_text() for run in runs).replace(" ", "") == "".join(text.split())
    whole = drawn[0].bbox
    boxes = [run.get_window_extent() for run in runs if run.get_text().strip()]
    assert all(
        whole.x0 <= box.x0 and box.x1 <= whole.x1 + 2 and whole.y0 <= box.y0 and box.y1 <= whole.y1 for box in boxes
    )
    if text.isascii():
        for number, box in enumerate(boxes):
            assert not any(
                box.x0 < other.x1 - 1 and other.x0 < box.x1 - 1 and box.y0 < other.y1 - 4 and other.y0 < box.y1 - 4
                for other in boxes[:number]
            )


@pytest.mark.integration
def test_hostile_texts_are_drawn_as_they_are(tiny: Tiny, tmp_path: Path, drawn: list[Any]) -> None:
    run = tiny_run(tiny())
    found = explain_rows(run, rows_of(HOSTILE[-60:]), methods=("ssa",))["ssa"]
    draw_explanations(tmp_path / "a.png", found)
    assert all(not text.get_parse_math() for text in drawn[0].axes[0].texts)
    draw_heads(tmp_path / "b.png", head_attention(run, rows_of(["$$ x^ \\frac \x1b[2J <b>"])))
    labels = drawn[1].subfigs[0].axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == ["$$", "x", "^", "\\", "frac", "[", "2J", "<", "b", ">"]
    assert not any(label.get_parse_math() for label in labels)


def test_heads_are_columns_and_ssa_stands_beside_them(tiny: Tiny, tmp_path: Path, drawn: list[Any]) -> None:
    run, rows = tiny_run(tiny(), "pair"), rows_for("pair", 1)
    (table,) = head_attention(run, rows, heads=(3, 1))
    draw_heads(tmp_path / "a.png", [table])
    heads, ssa = drawn[0].subfigs[0].axes
    assert heads.collections[0].get_array().tolist() == [list(own) for own in table.attention]
    assert ssa.collections[0].get_array()[:, 0].tolist() == list(table.importance)
    assert [label.get_text() for label in heads.get_xticklabels()] == ["3", "1"]
    assert [label.get_text() for label in ssa.get_xticklabels()] == ["SSA"]
    assert [label.get_text() for label in heads.get_yticklabels()] == [token.text for token in table.tokens]
    assert heads.get_xlabel() == "heads of layer 3"
    second = next(number for number, token in enumerate(table.tokens) if token.within == "pair")
    assert [list(line.get_ydata()) for line in heads.lines] == [[second - 0.5] * 2]
    high = [f"{share:.2f}".lstrip("0") for own in table.attention for share in own if share >= 0.1]
    assert [text.get_text() for text in heads.texts] == high


def test_without_a_token_gate_the_heads_stand_alone(tiny: Tiny, tmp_path: Path, drawn: list[Any]) -> None:
    run, rows = tiny_run(tiny(), "regression", gate=False), rows_of([TEXTS[0], "", "Yes"])
    draw_heads(tmp_path / "a.png", head_attention(run, rows))
    assert [len(part.axes) for part in drawn[0].subfigs] == [1, 1, 1]


def test_too_long_texts_are_refused(tiny: Tiny, tmp_path: Path) -> None:
    run = tiny_run(tiny())
    found = explain_rows(run, rows_of(["the film\n" * 500]), methods=("ssa",))["ssa"]
    with pytest.raises(ConfigError, match=r"a\.png: got texts of 50[3-6] lines.*at most 400.*--output_file NAME\.html"):
        draw_explanations(tmp_path / "a.png", found)
    with pytest.raises(ConfigError, match=r"expected at most 400"):
        draw_heads(tmp_path / "a.png", head_attention(run, rows_of([TEXTS[-1]] * 20)))
    with pytest.raises(ConfigError, match=r"a\.gif: expected a name for a figure"):
        draw_explanations(tmp_path / "a.gif", found)
    assert list(tmp_path.iterdir()) == []
