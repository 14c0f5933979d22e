"""Texts that are not English are told where the encoder knows English only."""

from __future__ import annotations

import pytest

from attentune.data.doctor import examine
from helpers.samples import find, make_rows, make_task

TEXTS = {
    "German": "Leider ist die Qualität sehr schlecht, das Produkt ist nach {} Tagen kaputt gegangen",
    "French": "Je suis très déçu par la qualité du produit, il est tombé en panne après {} jours",
    "Spanish": "No me gustó la calidad del producto, se rompió después de {} días de uso",
    "Dutch": "De film was erg goed en de acteurs ook, ik heb hem al {} keer gezien",
    "Russian": "Очень плохое качество, сломался через {} дней, не покупайте",
    "Japanese": "この製品は{}日で壊れてしまいました。お勧めしません",
}


def made(text: str, count: int = 20):
    return make_task({"train": make_rows([text.format(number) for number in range(count)], [0, 1] * (count // 2))})


@pytest.mark.parametrize("language", TEXTS)
def test_another_language_is_told(language: str) -> None:
    (finding,) = find(examine(made(TEXTS[language]), english_only=True), "language")
    assert finding.level == "warning"
    assert "xlm-roberta" in finding.cure
    assert not find(examine(made(TEXTS[language])), "language")


@pytest.mark.parametrize(
    "text", ["the film was very good and I saw it {} times", "Good product, works for {} days", "{}"]
)
def test_english_and_what_is_no_language_are_not(text: str) -> None:
    assert not find(examine(made(text), english_only=True), "language")


def test_few_texts_tell_nothing() -> None:
    assert not find(examine(made(TEXTS["German"], 8), english_only=True), "language")
