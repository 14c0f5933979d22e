"""The card of an export says how that export is loaded, with a text or a pair."""

from __future__ import annotations

from pathlib import Path

import pytest

from attentune.integrations.hub.publish import ONNX_PAIR_USE, ONNX_USE, SENTENCE_USE, SETFIT_USE, STOCK_USE, copy_card

CARD = "---\nlibrary_name: attentune\n---\n\n# Stars\n\n## How to use\n\nimport attentune\n\n## Limits\n\n- One run.\n"


def card(tmp_path: Path, use: str, **settings: bool) -> str:
    for name in ("run", "export"):
        (tmp_path / name).mkdir()
    (tmp_path / "run" / "README.md").write_text(CARD)
    copy_card(tmp_path / "run", tmp_path / "export", use, **{"pair": False, **settings}, library="some-library")
    return (tmp_path / "export" / "README.md").read_text()


@pytest.mark.parametrize("use", [STOCK_USE, SENTENCE_USE, SETFIT_USE, ONNX_USE, ONNX_PAIR_USE])
def test_the_section_on_its_use_is_replaced_and_the_rest_stays(use: str, tmp_path: Path) -> None:
    made = card(tmp_path, use)
    assert made.startswith("---\nlibrary_name: some-library\n---\n\n# Stars\n\n## How to use\n\n")
    assert made.endswith("\n\n## Limits\n\n- One run.\n")
    assert "import attentune" not in made
    assert "{given}" not in made


def test_a_pair_is_shown_for_models_of_pairs(tmp_path: Path) -> None:
    assert '{"text": "A first text.", "text_pair": "A second one."}' in card(tmp_path, STOCK_USE, pair=True)


def test_no_javascript_is_shown_for_pairs_which_its_pipeline_does_not_take(tmp_path: Path) -> None:
    assert "```js" in ONNX_USE
    made = card(tmp_path, ONNX_PAIR_USE, pair=True)
    assert "```js" not in made
    assert "onnx/model.onnx" in made


def test_a_run_without_a_card_has_none(tmp_path: Path) -> None:
    copy_card(tmp_path, tmp_path / "export", STOCK_USE, pair=False)
    assert not (tmp_path / "export").exists()
