"""Token labels as the released SSA program makes them: the label generator `released`."""

import itertools
from typing import Any

import numpy as np

from attentune.config import LabelsConfig
from attentune.data.tokenization import Features
from attentune.seeding import numpy_generator
from attentune.token_labels.base import LabelGenerator, LabelSource, labelled_plan
from attentune.token_labels.plan import EpochPlan
from attentune_lab.released_ssa.flags import released_options

# The program goes on for as long as it takes, which may be for ever.
_MAX_PASSES = 20


class ReleasedLabels(LabelGenerator):
    """Ever more samples whose masked copy kept its prediction (masked tokens 0, others 1), and originals (all 1).

    The training text itself is never masked; only its labels depend on the mask. An epoch has as many samples as there
    are rows: a share is drawn from the kept samples, the rest from the originals. The share is 0 in the first epoch and
    rises by `aug_ratio_each` after each one while it stays below 1: for 0.2 it is 0, 0.2, 0.4, 0.6, 0.8, 0.8 ...
    `double_ori` adds all originals once more, but not while the share is 0.

    Source: the released program of Kou et al. 2020 (aug_ratio_each, aug_threshold, rm_threshold, double_ori). Its
    label 1 for RoBERTa's second separator is a mistake and not reproduced.
    """

    needs_model = True

    def __init__(self, settings: LabelsConfig, source: LabelSource) -> None:
        super().__init__(settings, source)
        self.options = released_options(settings.options)

    @property
    def samples_per_epoch(self) -> int:
        return len(self.source.features) * (2 if self.options.double_ori else 1)

    def samples_in_epoch(self, epoch: int) -> int:
        return len(self.source.features) if self.share_in_epoch(epoch) == 0 else self.samples_per_epoch

    def share_in_epoch(self, epoch: int) -> float:
        """Return the share of kept samples in an epoch, counted from 0."""
        share, each = 0.0, self.options.aug_ratio_each
        for _ in range(epoch):
            if share + each >= 1.0:
                break
            share += each
        return share

    def plan(self, epoch: int) -> EpochPlan:
        source, count, share = self.source, len(self.source.features), self.share_in_epoch(epoch)
        chosen, masks, facts = self._kept_samples(epoch, int(count * share))
        originals = numpy_generator("originals", source.seed, epoch).permutation(count)[: count - len(chosen)]
        again = [np.arange(count)] if self.options.double_ori and share > 0 else []
        rows = np.concatenate([chosen, np.sort(originals), *again]).astype(np.int64)
        # 1 at non-special tokens, no label at special ones; then 0 at masked tokens.
        labels = [np.where(source.features.special[source.features.row(int(row))], -1.0, 1.0) for row in rows]
        for places, row_labels in zip(masks, labels, strict=False):
            row_labels[places] = 0.0
        values = np.concatenate(labels or [np.zeros(0)]).astype(np.float32)
        return labelled_plan(self, epoch, rows, values, facts)

    def _kept_samples(self, epoch: int, wanted: int) -> tuple[np.ndarray, list[np.ndarray], dict[str, Any]]:
        """Draw samples that are predicted correctly and the same with a mask; also return masks and counts.

        The pool that they are drawn from is filled by passes over all rows, each with a new mask a row, until it has
        enough. A sample that another pass had already found counts once. Of the counts, `missing` is how many are short
        after the last pass, `kept_share` the share of masked copies that kept their prediction, and `kept_tokens` and
        `row_tokens` are mean lengths of the drawn samples and of all rows, without special tokens.
        """
        source = self.source
        facts: dict[str, Any] = {"probed": 0, "correct": 0, "flipped": 0}
        if wanted == 0:
            return np.zeros(0, dtype=np.int64), [], facts
        rows = np.arange(len(source.features))
        plain_NC = source.scorer.logits(rows)
        correct = rows[source.comparator.correct(plain_NC, source.gold)]
        facts |= {"probed": len(rows), "correct": len(correct), "passes": 0}
        pool: list[tuple[int, np.ndarray]] = []
        tried: set[tuple[int, bytes]] = set()
        while len(correct) and len(pool) < wanted and facts["passes"] < _MAX_PASSES:
            number = facts["passes"]
            spans = [self._spans(epoch, int(row), number) for row in correct]
            keys = [(row, places.tobytes()) for row, places in zip(correct.tolist(), spans, strict=True)]
            new = [place for place, key in enumerate(keys) if key not in tried]
            tried.update(keys)
            facts["passes"] += 1
            masked_RC = source.scorer.logits(correct[new], [spans[place] for place in new])
            is_same = source.comparator.same(plain_NC[correct[new]], masked_RC)
            pool += [(int(correct[place]), spans[place]) for place, same in zip(new, is_same, strict=True) if same]
            facts["flipped"] += int((~is_same).sum())
        drawn = numpy_generator("kept samples", source.seed, epoch).permutation(len(pool))[:wanted]
        chosen = [pool[place] for place in np.sort(drawn)]
        chosen_rows = np.array([row for row, _ in chosen], dtype=np.int64)
        tokens_N = np.add.reduceat(~source.features.special, source.features.starts[:-1]) if len(rows) else rows
        facts |= {
            "pool": len(pool),
            "kept": len(chosen),
            "missing": wanted - len(chosen),
            "kept_share": round(len(pool) / max(1, len(tried)), 4),
            "kept_tokens": round(float(tokens_N[chosen_rows].mean()), 2) if chosen else 0.0,
            "row_tokens": round(float(tokens_N.mean()), 2),
        }
        return chosen_rows, [places for _, places in chosen], facts

    def _spans(self, epoch: int, row: int, number: int) -> np.ndarray:
        """Return the positions to mask in a row, in a pass counted from 0."""
        return random_spans(
            self.source.features,
            row,
            chance=self.options.aug_threshold,
            rm_threshold=self.options.rm_threshold,
            key=(self.source.seed, epoch, row, *((number,) if number else ())),
        )


def random_spans(
    features: Features, row: int, *, chance: float, rm_threshold: float, key: tuple[int, ...]
) -> np.ndarray:
    """Draw the positions of a row that random spans mask, as SSA's released program does; often none in short texts.

    The spans of each text of a pair are drawn by themselves, over its tokens without special ones. Each token starts a
    span with the given probability. The span ends at a random position in the token's quarter of the text and extends
    3, 2 or 1 tokens to the left. The quarters of T tokens are cut at the 25th, 50th and 75th percentile of 0 .. T - 1,
    so they need not have whole numbers; positions are drawn between the whole parts of a quarter's ends. A span that
    would begin before its quarter has one token, and a quarter of at most one token has no span.

    Source: the released program of Kou et al. 2020 (aug_threshold, rm_threshold).
    """
    ordinary = features.non_special_positions(row)
    generator = numpy_generator("spans", *key)
    starting = np.flatnonzero(generator.random(len(ordinary)) < chance)
    shares, lengths = generator.random(len(starting)), generator.random(len(starting))
    # Special tokens stand between the texts.
    edges = [0, *(np.flatnonzero(np.diff(ordinary) > 1) + 1).tolist(), len(ordinary)]
    chosen: set[int] = set()
    for token, share, p in zip(starting.tolist(), shares, lengths, strict=True):
        begin, after = next(pair for pair in itertools.pairwise(edges) if pair[0] <= token < pair[1])
        text = after - begin
        bounds = [0.0, 0.25 * (text - 1), 0.5 * (text - 1), 0.75 * (text - 1), float(text)]
        quarter = sum(token - begin >= bound for bound in bounds[1:4])
        start, end = bounds[quarter], bounds[quarter + 1]
        if end - start <= 1:
            continue
        last = int(start) + int(share * (int(end) - int(start)))
        length = 1
        if p > rm_threshold and last >= start + 2:
            length = 3
        elif 2 * rm_threshold - 1 < p < rm_threshold and last >= start + 1:
            length = 2
        chosen.update(range(begin + last - length + 1, begin + last + 1))
    return ordinary[sorted(chosen)]
