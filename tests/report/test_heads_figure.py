"""The figure of attention heads, with its numbers and names; too long texts are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from attentune.errors import ConfigError
from attentune.explain.texts import head_attention
from attentune.report.charts import figure_bytes, heads_figure
from helpers.tiny_models import rows_of
from helpers.tiny_runs import TEXTS, rows_for, tiny_run

Tiny = Callable[..., Path]


def test_heads_are_columns_and_ssa_stands_beside_them(tiny: Tiny) -> None:
    run, rows = tiny_run(tiny(), "pair"), rows_for("pair", 1)
    (table,) = head_attention(run, rows, heads=(3, 1))
    figure = heads_figure([table])
    assert figure_bytes(figure, "svg").startswith(b"<?xml")
    heads, ssa = figure.subfigs[0].axes
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


def test_without_a_token_gate_the_heads_stand_alone(tiny: Tiny) -> None:
    run, rows = tiny_run(tiny(), "regression", gate=False), rows_of([TEXTS[0], "", "Yes"])
    assert [len(part.axes) for part in heads_figure(head_attention(run, rows)).subfigs] == [1, 1, 1]


def test_hostile_texts_are_drawn_as_they_are_and_long_ones_refused(tiny: Tiny) -> None:
    run = tiny_run(tiny())
    figure = heads_figure(head_attention(run, rows_of(["$$ x^ \\frac \x1b[2J <b>"])))
    labels = figure.subfigs[0].axes[0].get_yticklabels()
    assert [label.get_text() for label in labels] == ["$$", "x", "^", "\\", "frac", "[", "2J", "<", "b", ">"]
    assert not any(label.get_parse_math() for label in labels)
    with pytest.raises(ConfigError, match=r"got 400 tokens, expected at most 300"):
        heads_figure(head_attention(run, rows_of(["the film was great " * 5] * 20)))
