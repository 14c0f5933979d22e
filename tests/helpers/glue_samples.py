"""Writes small GLUE, HANS and CS224N folders in the published layouts, and untrained runs on tasks of GLUE."""

from pathlib import Path

import torch

from attentune.data.builtin import load_spec
from attentune.data.dataset import LabelSpace
from attentune.models.saving import save_model
from helpers.tiny_models import build

_WORDS = ("film", "river", "train", "doctor", "garden", "song", "city", "winter", "letter", "bridge", "apple")
_NLI = ("entailment", "neutral", "contradiction")
_TWO = ("entailment", "not_entailment")


def text_of(number: int, salt: int = 0) -> str:
    first, second = _WORDS[(number + salt) % 11], _WORDS[(3 * number + salt + 5) % 11]
    return f"The {first} is {'' if number % 2 else 'not '}near the {second}, number {number}."


def _lines(header: str, rows: int, *columns: str) -> str:
    """Return the content of a file; a column is "index", "text", "pair", or comma-separated labels to cycle through."""
    lines = [header]
    for number in range(rows):
        cells = {"index": str(number), "text": text_of(number), "pair": text_of(number, 4)}
        fields = [cells.get(column) or column.split(",")[number % len(column.split(","))] for column in columns]
        lines.append("\t".join(fields))
    return "\n".join(line for line in lines if line) + "\n"


def write_glue(folder: Path, rows: int = 12) -> Path:
    """Write CoLA, STS-B, MNLI, RTE, WNLI and AX; return the folder. WNLI's test file has the published 146 rows."""
    nli, two, scores = ",".join(_NLI), ",".join(_TWO), "0.000,2.500,5.000"
    pairs = "index\tsentence1\tsentence2"
    mnli = f"{pairs}\tgold_label"
    diagnostic = "Lexical Semantics\tPredicate-Argument Structure\tLogic\tKnowledge\tDomain\tPremise\tHypothesis\tLabel"
    both = ("index", "text", "pair")
    files = {
        "CoLA/test.tsv": _lines("index\tsentence", rows, "index", "text"),
        "MNLI/dev_matched.tsv": _lines(mnli, rows, *both, nli),
        "MNLI/dev_mismatched.tsv": _lines(mnli, rows, "index", "pair", "text", nli),
        "MNLI/test_matched.tsv": _lines(pairs, rows, *both),
        "MNLI/test_mismatched.tsv": _lines(pairs, rows + 1, "index", "pair", "text"),
        "MNLI/train.tsv": _lines(mnli, rows, *both, nli),
        "diagnostic/diagnostic.tsv": _lines(pairs, rows, *both),
        "diagnostic/diagnostic-full.tsv": _lines(
            diagnostic, rows, "Lexical entailment", "", "Negation", "", "News", "text", "pair", f"{nli},neutral"
        ),
    }
    for split in ("train", "dev"):
        files[f"CoLA/{split}.tsv"] = _lines("", rows, "gj04", "0,1", "*", "text")
    for task, column, labels, tests in (
        ("STS-B", "score", scores, rows), ("RTE", "label", two, rows), ("WNLI", "label", "0,1", 146)
    ):  # fmt: skip
        for split in ("train", "dev"):
            files[f"{task}/{split}.tsv"] = _lines(f"{pairs}\t{column}", rows, *both, labels)
        files[f"{task}/test.tsv"] = _lines(pairs, tests, *both)
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    return folder


def write_run(
    folder: Path, encoder: Path, task: str, data_dir: Path, *, names: tuple[str, ...] | None = None, seed: int = 1
) -> Path:
    """Save an untrained run of a task, with classes in the order of `names` (by default, the order of the task)."""
    spec = load_spec(task)
    space = LabelSpace(spec.task_type, spec.label_names if names is None else names)
    model, tokenizer = build(encoder, label_space=space, is_pair=spec.name != "cola", seed=seed)
    texts = [text_of(number) for number in range(24)]
    pairs = [text_of(number, 4) for number in range(24)] if spec.name != "cola" else None
    with torch.no_grad():
        # Each class must be predicted for some row, and scores must exceed both ends of their range.
        logits_BC = model(**tokenizer(texts, pairs, padding=True, return_tensors="pt")).logits
        spread = 4.0 / logits_BC.std() if spec.task_type == "regression" else 1.0
        model.classifier.weight *= spread
        model.classifier.bias -= model.classifier.bias
        logits_BC = model(**tokenizer(texts, pairs, padding=True, return_tensors="pt")).logits
        centre = 2.5 if spec.task_type == "regression" else 0.0
        model.classifier.bias += centre - logits_BC.median(dim=0).values
    folder.mkdir(parents=True)
    save_model(model, tokenizer, folder)
    settings = f"data: {{task: {task}, data_dir: '{data_dir}'}}\ntraining: {{use_cpu: true}}\n"
    (folder / "config.yaml").write_text(settings, encoding="utf-8")
    return folder


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
    path.write_text("\n".join(hans_lines(a_subcase)) + "\n", encoding="utf-8")
    return path
