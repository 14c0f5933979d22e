"""Names by which columns are recognised, in lower case."""

from __future__ import annotations

import re

IDS = ("id", "idx", "index")
TEXT_PAIRS = (
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("sentence_a", "sentence_b"),
    ("text1", "text2"),
    ("text_a", "text_b"),
    ("text", "text_pair"),
    ("query", "passage"),
)
TEXTS = ("text", "sentence", "review", "content", "comment", "tweet", "document", "sentence1", "premise", "question1")
LABELS = (
    "label",
    "labels",
    "gold_label",
    "target",
    "class",
    "category",
    "sentiment",
    "score",
    "similarity",
    "rating",
    "is_duplicate",
)
CONVENTIONAL = frozenset((*TEXTS, *LABELS, *IDS, *(name for pair in TEXT_PAIRS for name in pair)))

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[^\W\dA-Z_]+|[0-9]+")
_ID_WORDS = re.compile("ids?|idx|index|[ug]uid|key|pk|nr|isbn|sku|asin|zip|postcode|url")
_DATE_WORDS = re.compile("date|datum|(date)?time|timestamp|created|updated|modified|year|month|(week)?day|hour|week")
_COUNT_WORDS = re.compile(
    "counts?|no|num|number|(up|down)?votes|(dis)?likes|views|retweets|shares|replies|followers|rank|page|row|line"
    "|position|length|quantity|age|price|amount"
)


def no_content(name: str) -> str | None:
    """Return what a column holds by its name, if that is neither a text nor a label: "an id", "a date", "a count"."""
    words = [word.lower() for word in _WORDS.findall(name)]
    if words and (_ID_WORDS.fullmatch(words[-1]) or words[0] in IDS):
        return "an id"
    if any(map(_DATE_WORDS.fullmatch, words)):
        return "a date"
    return "a count" if any(map(_COUNT_WORDS.fullmatch, words)) else None
