"""What attention heads look at, beside the token gate's importance."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from attentune.errors import ConfigError
from attentune.explain.texts import head_attention
from helpers import explain_references as loops
from helpers.explain_references import OneText
from helpers.tiny_runs import rows_for, tiny_run

Tiny = Callable[..., Path]


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["classification", "pair", "bi-encoder"])
@pytest.mark.parametrize("layer", [None, 1, 2])
def test_shares_are_those_of_each_head_and_layer(tiny: Tiny, kind: str, layer: int | None) -> None:
    run, rows = tiny_run(tiny(), kind), rows_for(kind)
    found = head_attention(run, rows, layer=layer, level="token")
    for row, table in enumerate(found):
        text = OneText(run, rows, row)
        expected_TH = loops.attention(text, layer=-1 if layer is None else layer - 1)
        assert np.array(table.attention).reshape(-1, 4) == pytest.approx(expected_TH[text.places], rel=1e-4, abs=1e-6)
        assert [token.score for token in table.tokens] == pytest.approx(expected_TH[text.places].mean(axis=1), rel=1e-4)
        assert table.importance == pytest.approx(loops.ssa(text)[text.places], rel=1e-4)
        assert (table.layer, table.heads) == (layer or 3, (1, 2, 3, 4))
    assert (found[0].pair is not None) == (kind != "classification")


def test_layers_and_heads_are_chosen(tiny: Tiny) -> None:
    run, rows = tiny_run(tiny(), gate=False), rows_for("classification", 1)
    (whole,), (some,) = (head_attention(run, rows, heads=heads, level="token") for heads in (None, (4, 2)))
    assert some.heads == (4, 2)
    assert some.attention == tuple((own[3], own[1]) for own in whole.attention)
    assert some.importance is None
    (first,) = head_attention(run, rows, layer=1)
    assert first.attention != whole.attention


def test_a_word_has_its_pieces_highest_share(tiny: Tiny) -> None:
    run, rows = tiny_run(tiny()), rows_for("classification", 1)
    (words,), (pieces,) = (head_attention(run, rows, level=level) for level in ("word", "token"))
    number = next(number for number, token in enumerate(words.tokens) if token.text == "unwatchable")
    place = words.tokens[number]
    under = [n for n, piece in enumerate(pieces.tokens) if place.start <= piece.start and piece.end <= place.end]
    assert len(under) > 2
    assert words.attention[number] == tuple(max(pieces.attention[n][head] for n in under) for head in range(4))
    assert words.importance[number] == max(pieces.importance[n] for n in under)
    assert place.score == pytest.approx(np.mean(words.attention[number]))


def test_json_holds_the_table(tiny: Tiny) -> None:
    (table,) = head_attention(tiny_run(tiny(), "pair"), rows_for("pair", 1))
    line = json.loads(json.dumps(table.to_dict()))
    assert (line["layer"], line["heads"], line["level"]) == (3, [1, 2, 3, 4], "word")
    assert line["label"] in ("no", "maybe", "yes")
    for token, shares, importance in zip(line["tokens"], table.attention, table.importance, strict=True):
        assert token["attention"] == pytest.approx(shares, abs=1e-6)
        assert token["importance"] == pytest.approx(importance, abs=1e-6)
        assert set(token) == {"text", "start", "end", "in", "score", "attention", "importance"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 4}, "layer: got 4, expected numbers from 1 to 3, or last."),
        ({"layer": 0}, "layer: got 0, expected numbers from 1 to 3, or last."),
        ({"heads": (1, 5, 0)}, "heads: got 5, 0, expected numbers from 1 to 4, or all."),
        ({"heads": ()}, "heads: got none, expected numbers from 1 to 4, or all."),
    ],
)
def test_layers_and_heads_that_do_not_exist_are_told(tiny: Tiny, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        head_attention(tiny_run(tiny()), rows_for("classification", 1), **options)
    assert str(raised.value) == message
