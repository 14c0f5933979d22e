"""The attention of the last layer's heads, beside the token gate's importance, and its figure."""

import numpy as np
import pytest

from attentune.report.charts import figure_bytes
from attentune_lab.reproduction.heads import head_attention, heads_figure
from helpers import explain_references as loops
from helpers.explain_references import OneText
from helpers.tiny_models import rows_of
from helpers.tiny_runs import rows_for, tiny_run


def test_a_word_has_its_tokens_highest_weight_in_each_head(tiny):
    run, rows = tiny_run(tiny()), rows_for("classification", 1)
    table, text = head_attention(run, rows), OneText(run, rows, 0)
    expected_TH, importance_T = loops.attention(text)[text.places], loops.ssa(text)[text.places]
    assert (table.layer, table.attention_WH.shape) == (3, (len(table.words), 4))
    assert len(table.words) < len(text.places)  # some words have several tokens
    assert table.attention_WH.max(axis=0) == pytest.approx(expected_TH.max(axis=0), rel=1e-4)
    assert table.importance_W.max() == pytest.approx(importance_T.max(), rel=1e-4)
    for head in range(4):
        nearest_W = np.abs(table.attention_WH[:, head, None] - expected_TH[:, head]).min(axis=1)
        assert nearest_W == pytest.approx(0.0, abs=1e-6)
    assert head_attention(tiny_run(tiny(), gate=False), rows).importance_W is None


def test_heads_are_columns_and_ssa_stands_beside_them(tiny):
    table = head_attention(tiny_run(tiny()), rows_for("classification", 1))
    figure = heads_figure(table)
    assert figure_bytes(figure, "svg").startswith(b"<?xml")
    heads, ssa = figure.axes
    assert heads.collections[0].get_array().tolist() == table.attention_WH.tolist()
    assert ssa.collections[0].get_array()[:, 0].tolist() == table.importance_W.tolist()
    assert [label.get_text() for label in heads.get_xticklabels()] == ["1", "2", "3", "4"]
    assert [label.get_text() for label in ssa.get_xticklabels()] == ["SSA"]
    assert [label.get_text() for label in heads.get_yticklabels()] == list(table.words)
    assert heads.get_xlabel() == "heads of layer 3"
    high = [f"{share:.2f}".lstrip("0") for own in table.attention_WH for share in own if share >= 0.1]
    assert [text.get_text() for text in heads.texts] == high
    # Texts are drawn as they are.
    figure = heads_figure(head_attention(tiny_run(tiny(), gate=False), rows_of(["$$ x^ \\frac \x1b[2J <b>"])))
    (heads,) = figure.axes
    labels = heads.get_yticklabels()
    assert [label.get_text() for label in labels] == ["$$", "x", "^", "\\", "frac", "[", "2J", "<", "b", ">"]
    assert not any(label.get_parse_math() for label in labels)
