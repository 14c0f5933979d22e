"""Whether texts are in the language of an encoder that knows English only."""

from __future__ import annotations

from attentune.data.checks.report import Finding
from attentune.data.dataset import TextRows

# Texts that are looked at, with so many letters. Of English data sets, 0.83 and more of the texts are recognised.
_TEXTS, _FEWEST, _LETTERS, _ENGLISH_SHARE = 200, 10, 12, 0.5


def language_findings(name: str, rows: TextRows) -> list[Finding]:
    """Warn if a split is not in English.

    Args:
        name: the name of the split.
        rows: its rows.
    """
    texts = [text for text in rows.texts if sum(map(str.isalpha, text)) >= _LETTERS]
    sample = texts[:: max(1, len(texts) // _TEXTS)][:_TEXTS]
    if len(sample) < _FEWEST or _is_english("\n".join(sample)):
        return []
    share = sum(map(_is_english, sample)) / len(sample)
    if share >= _ENGLISH_SHARE:
        return []
    return [
        Finding(
            "warning",
            "language",
            name,
            f"{name}: the texts do not look English (of {len(sample)}, {share:.0%} do), but the embedded encoder is.",
            "Take an encoder for their language, or a multilingual one, such as --model_name_or_path"
            " FacebookAI/xlm-roberta-base or intfloat/multilingual-e5-small. `attentune encoders` lists some, and how"
            " to get them without a network.",
        )
    ]


def _is_english(text: str) -> bool:
    from chardet import detect

    return bool(detect(text.encode("utf-8"))["language"] == "en")
