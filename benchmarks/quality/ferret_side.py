"""Scores explanations with ferret, in an environment of its own: see `faithfulness_ferret`, which calls this.

    ENV/bin/python benchmarks/quality/ferret_side.py < task.json > results.json

Needs ferret-xai and no part of Attentune. Standard input has the folder of a stock model and for each row its text, the
explained class, scores of all its tokens by method, and the numbers of tokens to erase.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import version
from typing import Any

import numpy as np
import torch
import transformers
from ferret.evaluators.faithfulness_measures import AOPC_Comprehensiveness_Evaluation, AOPC_Sufficiency_Evaluation
from ferret.explainers.explanation import Explanation
from transformers import AutoModelForSequenceClassification, AutoTokenizer

MEASURES = {"comprehensiveness": AOPC_Comprehensiveness_Evaluation, "sufficiency": AOPC_Sufficiency_Evaluation}


def same_tokens(tokenizer: Any, ids: np.ndarray, erased: np.ndarray, erasure: str) -> bool:
    """Whether a text that ferret makes from erased tokens is read as these tokens: it decodes them and reads again."""
    left = ids.copy()
    if erasure == "mask":
        left[erased] = tokenizer.mask_token_id
    else:
        left = np.delete(left, erased)
    return bool(tokenizer(tokenizer.decode(left))["input_ids"][1:-1] == left.tolist())


def score_row(evaluators: dict[str, Any], tokenizer: Any, row: dict[str, Any], method: str) -> dict[str, Any]:
    """Score a row's explanation: at ferret's defaults, and with each number of tokens on its own."""
    scores, target = np.array(row["scores"][method]), row["target"]
    ids = np.array(tokenizer(row["text"])["input_ids"])
    assert len(ids) == len(scores), f"{row['text']!r}: {len(ids)} tokens in ferret's model, {len(scores)} scores"
    tokens = tokenizer.convert_ids_to_tokens(ids)
    explanation = Explanation(row["text"], tokens, scores, method, target)
    found: dict[str, Any] = {
        "defaults": {name: one.compute_evaluation(explanation, target).score for name, one in evaluators.items()}
    }
    inner_ids, inner_scores = ids[1:-1], scores[1:-1]
    # ferret erases tokens with positive scores only; only_pos=False fails with the versions of numpy that torch needs.
    ranked = Explanation(row["text"], tokens, scores - scores.min() + 1.0, method, target)
    for erasure in ("delete", "mask"):
        options = {"remove_tokens": erasure == "delete", "based_on": "k"}
        found[erasure] = {
            name: [
                one.compute_evaluation(ranked, target, removal_args={**options, "thresholds": [count]}).score
                for count in row["counts"]
            ]
            for name, one in evaluators.items()
        }
        tops = [inner_scores.argsort()[-count:] for count in row["counts"]]
        rests = [np.setdiff1d(np.arange(len(inner_ids)), top) for top in tops]
        found[erasure]["same_tokens"] = {
            "comprehensiveness": all(same_tokens(tokenizer, inner_ids, top, erasure) for top in tops),
            "sufficiency": all(same_tokens(tokenizer, inner_ids, rest, erasure) for rest in rests),
        }
    return found


def main() -> None:
    task = json.load(sys.stdin)
    torch.set_num_threads(1)
    # ferret writes the mask token into the text; our exports read "[MASK]" in a text as text.
    tokenizer = AutoTokenizer.from_pretrained(task["model"], split_special_tokens=False)
    model = AutoModelForSequenceClassification.from_pretrained(task["model"], torch_dtype=torch.float32).eval()
    evaluators = {name: kind(model, tokenizer) for name, kind in MEASURES.items()}
    results = {
        method: [score_row(evaluators, tokenizer, row, method) for row in task["rows"]] for method in task["methods"]
    }
    versions = {"ferret-xai": version("ferret-xai"), "transformers": transformers.__version__}
    json.dump({"results": results, "versions": versions}, sys.stdout, default=float)


if __name__ == "__main__":
    main()
