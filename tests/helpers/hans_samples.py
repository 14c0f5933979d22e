"""Writes a small file in HANS's published layout, with synthetic sentences."""

from pathlib import Path

HEADER = (
    "gold_label\tsentence1_binary_parse\tsentence2_binary_parse\tsentence1_parse\tsentence2_parse\tsentence1\tsentence2"
    "\tpairID\theuristic\tsubcase\ttemplate"
)
_NOUNS = ("doctor", "lawyer", "student", "judge", "senators", "president", "scientist", "professor", "actors", "child")
_VERBS = ("thanked", "stopped", "met", "saw")


def hans_lines(a_subcase: int) -> list[str]:
    """Return the header and `a_subcase` rows for each of 3 heuristics x 2 labels x 2 subcases, with ids from ex0."""
    lines = [HEADER]
    for heuristic in ("lexical_overlap", "subsequence", "constituent"):
        for label in ("entailment", "non-entailment"):
            for subcase in range(2):
                for _ in range(a_subcase):
                    number = len(lines) - 1
                    first, second = _NOUNS[number % 10], _NOUNS[(number // 3 + 4) % 10]
                    text = f"The {first} near the {second} {_VERBS[number % 4]} the {_NOUNS[(7 * number) % 10]} ."
                    pair = f"The {second} {_VERBS[number % 4]} the {first} ."
                    parses = f"( {text} )\t( {pair} )\t(ROOT)\t(ROOT)"
                    name = f"{heuristic[0]}{label[0]}_{subcase}"
                    lines.append(
                        f"{label}\t{parses}\t{text}\t{pair}\tex{number}\t{heuristic}\t{name}\ttemp{number % 3}"
                    )
    return lines


def write_hans(path: Path, a_subcase: int) -> Path:
    """Write the file and return its path."""
    path.write_text("\n".join(hans_lines(a_subcase)) + "\n", encoding="utf-8")
    return path
