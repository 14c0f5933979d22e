"""Names by which columns are recognised, in lower case."""

from __future__ import annotations

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
