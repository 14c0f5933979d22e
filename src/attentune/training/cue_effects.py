"""How far a trained model decides by the cues that `data.cues` finds in its training rows.

    effect = mean over validation rows with the cue of  log-odds(label | text) - log-odds(label | text without the cue)

`label` is the one that the cue goes with in training. The log-odds are those of explanations by leaving words out
(`explain.scorer.target_value`), so that an effect is what these show on average.
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from attentune.data.cues import ignore_flag
from attentune.data.ignored_words import rows_with, without_words
from attentune.data.tables import quote
from attentune.data.tokenization import encode_rows
from attentune.explain.scorer import target_value
from attentune.inference.scoring import ModelEvaluator, score_rows
from attentune.metrics.metrics import predictions_of
from attentune.training.prepare import RunInputs

# Validation rows that are predicted for a cue, so that all cues together take seconds.
MOST_ROWS = 500
# From this share of the predictions on rows with cues on, a cure is named.
_MANY = 0.05


def cue_effects(inputs: RunInputs, evaluator: ModelEvaluator) -> list[dict[str, Any]]:
    """Predict validation rows, which the evaluator has predicted, without each cue; all processes take part.

    Returns for each cue its `text`, its `label`, the number of `rows` with it (500 at most), its `effect` (log-odds),
    and `decided`, the share of predictions that change without it. Cues that no validation row has are left out.
    """
    if not inputs.validation:
        return []
    split, space, config, found = inputs.validation[0], evaluator.label_space, inputs.config, []
    rows, bi_encoder = inputs.read_data.splits[split], config.model.pair_encoding == "bi-encoder"
    for cue in inputs.cues:
        places = list(itertools.islice(rows_with(rows, cue.text), MOST_ROWS))
        if not places:
            continue
        shortened = without_words(rows.take(places), [cue.text])
        scored = score_rows(
            evaluator.model,
            encode_rows(shortened, inputs.tokenizer, max_length=config.data.longest_row, bi_encoder=bi_encoder),
            pad_token_id=evaluator.pad_token_id,
            accelerator=evaluator.accelerator,
            in_float32=evaluator.in_float32,
        )
        logits = evaluator.logits[split][places], scored.logits_NC
        targets_N = torch.full((len(places),), cue.label)
        before_N, after_N = (target_value(torch.from_numpy(one), targets_N, space) for one in logits)
        predicted = [predictions_of(one, space).reshape(len(places), -1) for one in logits]
        found.append(
            {
                "text": cue.text,
                "label": space.names[cue.label],
                "rows": len(places),
                "effect": float((before_N - after_N).mean()),
                "decided": float((predicted[0] != predicted[1]).any(axis=1).mean()),
            }
        )
    return found


def cue_sentence(cues: Sequence[Mapping[str, Any]], inputs: RunInputs) -> str | None:
    """Say how far the model decides by cues, and how to have one that does less; None without cues."""
    if not cues:
        return None
    parts = [
        f"{quote(cue['text'])} decides {100 * cue['decided']:.0f} % of the {cue['rows']:,} predictions on rows with it,"
        f" by {cue['effect']:+.1f} log-odds of {quote(cue['label'])}"
        for cue in cues
    ]
    sentence = f"what the model looks at: {'; '.join(parts)}."
    if max(cue["decided"] for cue in cues) < _MANY:
        return sentence
    can_debias = inputs.config.objective.debias == "none" and not inputs.data.label_space.is_multilabel
    flag = ignore_flag([cue["text"] for cue in cues])
    return f"{sentence} To have it decide less by these: {'--preset robust, or ' if can_debias else ''}{flag}."
