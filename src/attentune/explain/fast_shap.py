"""FastSHAP: Shapley values of all tokens from the pass that predicts the text, by a head that was fitted to the run.

`fit_attribution_head` fits the head on texts, without labels; `fast_shap` is the attribution method.

Source: FastSHAP (Jethani et al., ICLR 2022). Theirs is a second network that reads the input; ours reads the hidden
states of the model that it explains.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from attentune.data.dataset import LabelSpace
from attentune.errors import DataError
from attentune.explain.scorer import MethodScores, PredictionScorer, Scorer, Settings, target_value
from attentune.inference.scoring import RowScores
from attentune.models.saving import outputs_of
from attentune.nn.attribution_head import AttributionHead, additive_loss, efficient_scores
from attentune.seeding import numpy_generator, torch_generator

# Fewer texts than this cannot tell how well the head does on others.
_FEWEST_TEXTS = 20
# A tenth of the texts, and at least so many, are held out: two or three would not tell the share.
_HELD_OUT_SHARE, _HELD_OUT_TEXTS = 0.1, 30
# A head that explains less of the variance is kept, and used only where it is asked for.
LEAST_EXPLAINED = 0.5
# The hidden states of all texts are kept in memory: at 384 dimensions 2.3 kB a token.
_MOST_TOKENS = 200_000
_BATCH_ROWS = 16
_UPDATES, _EPOCHS = 500, (5, 60)
_LEARNING_RATE, _WEIGHT_DECAY = 1e-3, 0.01
# On fewer texts than this a head without dropout learns them by heart: results/fast-shap/README.md.
_FEW_TEXTS, _DROPOUT = 1000, 0.5
_ROWS_A_CHUNK = 64
_ROWS_TOGETHER = 256

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class FitFacts:
    """How a head was fitted."""

    texts: int  # how many texts it was fitted on
    held_out_texts: int  # how many others it was tested on
    copies: int  # masked copies of each text
    explained_variance: float  # of the values of the held-out texts' masked copies, by the sums of their tokens' scores
    seed: int  # of the copies, the held-out texts and the order

    @property
    def is_used(self) -> bool:
        """Whether the head explains enough to be used where no method is named."""
        return self.explained_variance >= LEAST_EXPLAINED

    def note(self, folder: str | Path) -> str:
        """Say what the head explains, and whether it is used."""
        share = max(0.0, self.explained_variance)
        fitted = (
            f"Fitted on {self.texts:,} texts; on {self.held_out_texts:,} others its scores explain {share:.0%} of how"
            " the prediction changes when tokens are masked"
        )
        if self.is_used:
            return f"{folder}: explained by fast-shap from now on. {fitted}."
        return (
            f"{folder}: the head is kept, but leave-one-out stays the default. {fitted}, expected at least"
            f" {LEAST_EXPLAINED:.0%}. Fit it on more texts, which need no labels (--input_file texts.csv); --method"
            " fast-shap uses it as it is."
        )


def fast_shap(scorer: Scorer, rows: np.ndarray, wanted_B: np.ndarray, settings: Settings) -> MethodScores:
    """Estimate the tokens' Shapley values in the pass that predicts the rows."""
    found = scorer.scores(rows, attribution_head=scorer.attribution_head)
    scores = signed_scores(found, scorer, rows, scorer.targets(found.logits_NC, wanted_B))
    return MethodScores(found.logits_NC, scores)


def signed_scores(found: RowScores, scorer: Scorer, rows: np.ndarray, target_N: np.ndarray) -> list[np.ndarray]:
    """Return each row's scores for a class, (length,) float32 each, 0 at special tokens.

    They add up to the value of the text minus that of a text of so many masked tokens, which the head has as a function
    of their number, from the texts that it was fitted on.
    """
    head = scorer.attribution_head
    assert head is not None
    assert found.attributions is not None
    values_NO = torch.from_numpy(values_of(found.logits_NC - scorer.model.config.score_mean, scorer.label_space))
    nothing_MO = head.nothing_MO.cpu()
    scores: list[np.ndarray] = []
    # Many rows at once, since one alone takes longer for the calls than for the sums.
    for first in range(0, len(rows), _ROWS_TOGETHER):
        own = slice(first, first + _ROWS_TOGETHER)
        estimates = found.attributions[own]
        lengths = [len(estimates_TO) for estimates_TO in estimates]
        estimates_BTO = np.zeros((len(estimates), max(lengths), estimates[0].shape[1]), dtype=np.float32)
        ordinary_BT = np.zeros(estimates_BTO.shape[:2], dtype=bool)
        for number, (row, length) in enumerate(zip(rows[own].tolist(), lengths, strict=True)):
            estimates_BTO[number, :length] = estimates[number]
            ordinary_BT[number, :length] = ~scorer.features.special[scorer.features.row(row)]
        count_B = ordinary_BT.sum(axis=1).clip(1, len(nothing_MO))
        whole_BO = values_NO[own] - nothing_MO[count_B - 1]
        ordinary = torch.from_numpy(ordinary_BT)
        scores_BTO = efficient_scores(torch.from_numpy(estimates_BTO), ordinary, whole_BO).numpy()
        for number, length in enumerate(lengths):
            scores_TO = scores_BTO[number, :length]
            scores.append(explained_output(scores_TO, int(target_N[first + number]), scorer))
    return scores


def explained_output(scores_TO: np.ndarray, target: int, scorer: PredictionScorer) -> np.ndarray:
    """Return the scores (T,) of the value that is explained: the log odds of a class, or a difference of two logits."""
    space, contrast = scorer.label_space, scorer.contrast
    classes = space.num_labels
    if space.task_type == "regression":
        return scores_TO[:, 0]
    if space.is_multilabel:
        return scores_TO[:, target] - (0.0 if contrast is None else scores_TO[:, contrast])
    if classes == 2:
        return scores_TO[:, 0] if target == 1 else -scores_TO[:, 0]
    if contrast is None:
        return scores_TO[:, target]
    return scores_TO[:, classes + target] - scores_TO[:, classes + contrast]


def values_of(logits_NC: np.ndarray, space: LabelSpace) -> np.ndarray:
    """Compute all values that can be explained, (N, O) float32.

    With two classes that is the log odds of the second; with more, the log odds of each class and then each logit minus
    their mean, for contrasts; for label sets the logits; for regression the score.
    """
    if space.task_type == "regression" or space.is_multilabel:
        return logits_NC.astype(np.float32)
    logits = torch.from_numpy(logits_NC)
    if space.num_labels == 2:
        return target_value(logits, torch.ones(len(logits), dtype=torch.long), space).numpy()[:, None]
    odds = [target_value(logits, torch.full((len(logits),), one), space).numpy() for one in range(space.num_labels)]
    return np.concatenate([np.stack(odds, axis=1), logits_NC - logits_NC.mean(axis=1, keepdims=True)], axis=1)


@dataclass(frozen=True)
class _Texts:
    """Training data of the head: for each text its hidden states, its masked copies and their values."""

    hidden: list[Tensor]  # (layers, length, D) float16 each
    ordinary: list[np.ndarray]  # (length,) bool each, True at tokens that are not special
    kept: list[np.ndarray]  # (K, length) bool each, True at ordinary tokens that are not masked
    rise_NKO: np.ndarray  # the values of the copies minus those of the text with all ordinary tokens masked
    whole_NO: np.ndarray  # the values of the text minus the same
    nothing_NO: np.ndarray  # the values of the text with all ordinary tokens masked

    def batch(self, places: np.ndarray, scale_O: np.ndarray) -> tuple[list[Tensor], Tensor, Tensor, Tensor, Tensor]:
        """Pad some texts to a batch: hidden states by layer, and the tensors that `additive_loss` takes."""
        longest = max(len(self.ordinary[place]) for place in places)
        layers, _, size = self.hidden[places[0]].shape
        hidden = torch.zeros(layers, len(places), longest, size)
        ordinary_BT = torch.zeros(len(places), longest, dtype=torch.bool)
        kept_BKT = torch.zeros(len(places), len(self.kept[places[0]]), longest, dtype=torch.bool)
        for number, place in enumerate(places):
            length = len(self.ordinary[place])
            hidden[:, number, :length] = self.hidden[place].float()
            ordinary_BT[number, :length] = torch.from_numpy(self.ordinary[place])
            kept_BKT[number, :, :length] = torch.from_numpy(self.kept[place])
        rise_BKO = torch.from_numpy(self.rise_NKO[places] / scale_O)
        return list(hidden), ordinary_BT, kept_BKT, rise_BKO, torch.from_numpy(self.whole_NO[places] / scale_O)


def fit_attribution_head(
    scorer: Scorer, *, copies: int = 8, seed: int = 0, progress: Progress | None = None
) -> tuple[AttributionHead, FitFacts]:
    """Fit a head that explains a model, on the scorer's texts.

    The model predicts copies of each text, in which random tokens are replaced by the mask token: as many of them as a
    uniform draw says, and in each second copy the others. The head learns scores whose sums predict these values. Some
    texts are held out to tell how well they do.
    """
    tell = progress or (lambda what, done, total: None)
    rows = _readable_rows(scorer, seed)
    longest = max(len(scorer.features.non_special_positions(row)) for row in rows.tolist())
    head = _new_head(scorer, longest, seed)
    texts = _observed(scorer, rows, head.layers, copies, seed, tell)
    count = len(rows)
    held = min(max(round(_HELD_OUT_SHARE * count), _HELD_OUT_TEXTS), count // 3)
    # The rows are in random order.
    train, test = np.arange(held, count), np.arange(held)
    scale_O = texts.rise_NKO.reshape(-1, texts.rise_NKO.shape[-1]).std(axis=0) + 1e-6
    _train(head, texts, train, scale_O, seed, tell)
    with torch.no_grad():
        head.output.weight.mul_(torch.from_numpy(scale_O)[:, None])
        head.output.bias.mul_(torch.from_numpy(scale_O))
        head.nothing_MO.copy_(torch.from_numpy(_by_length(texts.ordinary, texts.nothing_NO, longest)))
    head.explained_variance = _explained_variance(head, texts, test)
    return head.eval(), FitFacts(len(train), held, copies, head.explained_variance, seed)


def _readable_rows(scorer: Scorer, seed: int) -> np.ndarray:
    """Return the rows with two ordinary tokens or more, in random order, as many as memory has room for."""
    features = scorer.features
    several = [row for row in range(len(features)) if len(features.non_special_positions(row)) > 1]
    if len(several) < _FEWEST_TEXTS:
        raise DataError(
            f"got {len(several)} texts of two words or more, expected at least {_FEWEST_TEXTS} to fit explanations on;"
            " name a file with more texts, which need no labels: --input_file texts.csv."
        )
    rows = numpy_generator("fast-shap rows", seed).permutation(np.array(several))
    return rows[: max(_FEWEST_TEXTS, int((features.lengths[rows].cumsum() <= _MOST_TOKENS).sum()))]


def _new_head(scorer: Scorer, longest: int, seed: int) -> AttributionHead:
    config = scorer.model.encoder.config
    last, size = config.num_hidden_layers, config.hidden_size
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(numpy_generator("fast-shap head", seed).integers(2**31)))
        layers = sorted({0, last // 2, last})
        return AttributionHead(
            hidden_size=size,
            layers=layers,
            width=max(16, size // 3),
            outputs=outputs_of(scorer.label_space),
            longest=longest,
        )


def _observed(
    scorer: Scorer, rows: np.ndarray, layers: Sequence[int], copies: int, seed: int, tell: Progress
) -> _Texts:
    features = scorer.features
    hidden: list[Tensor] = []
    ordinary, kept, values = [], [], []
    for chunk in np.array_split(rows, math.ceil(len(rows) / _ROWS_A_CHUNK)):
        hidden += _hidden(scorer, chunk, layers)
        repeated, masked = [], []
        for row in chunk.tolist():
            places = features.non_special_positions(row)
            is_masked_KT = _masked_copies(places, int(features.lengths[row]), copies, seed, row)
            is_ordinary_T = ~features.special[features.row(row)]
            ordinary.append(is_ordinary_T)
            kept.append(~is_masked_KT & is_ordinary_T)
            masked += [np.flatnonzero(is_masked_T) for is_masked_T in is_masked_KT] + [places, None]
            repeated += [row] * (copies + 2)
        logits_NC = scorer.scores(np.array(repeated), masked).logits_NC
        # Without the mean of training scores, which float32 would round; only differences are explained.
        centred_NC = logits_NC - scorer.model.config.score_mean
        values.append(values_of(centred_NC, scorer.label_space).reshape(len(chunk), copies + 2, -1))
        tell("masked copies predicted", len(chunk), len(rows))
    values_NKO = np.concatenate(values)
    nothing_N1O = values_NKO[:, copies : copies + 1]
    rise_NKO = values_NKO - nothing_N1O
    return _Texts(hidden, ordinary, kept, rise_NKO[:, :copies], rise_NKO[:, -1], nothing_N1O[:, 0])


def _masked_copies(places: np.ndarray, length: int, copies: int, seed: int, row: int) -> np.ndarray:
    """Draw which tokens of a text are masked in each copy, (copies, length) bool; each second copy masks the others."""
    generator = numpy_generator("fast-shap copies", seed, row)
    is_masked_KT = np.zeros((copies, length), dtype=bool)
    for copy in range(0, copies, 2):
        chosen = generator.permutation(places)[: generator.integers(1, len(places))]
        is_masked_KT[copy, chosen] = True
        is_masked_KT[copy + 1, np.setdiff1d(places, chosen)] = True
    return is_masked_KT


@torch.no_grad()
def _hidden(scorer: Scorer, rows: np.ndarray, layers: Sequence[int]) -> list[Tensor]:
    order = rows[np.argsort(scorer.features.padded_lengths[rows])]
    found: dict[int, Tensor] = {}
    for batch in np.array_split(order, math.ceil(len(order) / 16)):
        output = scorer.forward(scorer.inputs(batch), output_hidden_states=True)
        read = torch.stack([output.hidden_states[layer].half().cpu() for layer in layers])
        for number, row in enumerate(batch.tolist()):
            found[row] = read[:, number, : int(scorer.features.lengths[row])].clone()
    return [found[row] for row in rows.tolist()]


def _train(
    head: AttributionHead, texts: _Texts, places: np.ndarray, scale_O: np.ndarray, seed: int, tell: Progress
) -> None:
    lengths = np.array([len(texts.ordinary[place]) for place in places])
    batches = np.array_split(places[np.argsort(lengths, kind="stable")], math.ceil(len(places) / _BATCH_ROWS))
    epochs = min(max(math.ceil(_UPDATES / len(batches)), _EPOCHS[0]), _EPOCHS[1])
    optimizer = torch.optim.AdamW(head.parameters(), lr=_LEARNING_RATE, weight_decay=_WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, _LEARNING_RATE, total_steps=epochs * len(batches))
    head.train()
    head.dropout = _DROPOUT if len(places) < _FEW_TEXTS else 0.0
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(numpy_generator("fast-shap dropout", seed).integers(2**31)))
        for epoch in range(epochs):
            generator = torch_generator("fast-shap order", seed, epoch)
            for number in torch.randperm(len(batches), generator=generator).tolist():
                read, *rest = texts.batch(batches[number], scale_O)
                optimizer.zero_grad()
                additive_loss(head(read), *rest).backward()
                optimizer.step()
                schedule.step()
            tell("head fitted", len(places), epochs * len(places))


def _by_length(ordinary: Sequence[np.ndarray], nothing_NO: np.ndarray, longest: int) -> np.ndarray:
    """Average the values of texts whose tokens are all masked by their number of tokens, (M, O) float32."""
    counts_N = np.array([is_ordinary_T.sum() for is_ordinary_T in ordinary])
    seen = np.unique(counts_N)
    mean_UO = np.stack([nothing_NO[counts_N == count].mean(axis=0) for count in seen])
    every_M = np.arange(1, longest + 1)
    columns = [np.interp(every_M, seen, mean_U) for mean_U in mean_UO.T]
    return np.stack(columns, axis=1).astype(np.float32)


@torch.no_grad()
def _explained_variance(head: AttributionHead, texts: _Texts, places: np.ndarray) -> float:
    """Return how much of the variance of the copies' values the sums of scores predict, averaged over the values."""
    error_O = np.zeros(texts.rise_NKO.shape[-1])
    for batch in np.array_split(places, math.ceil(len(places) / _BATCH_ROWS)):
        read, ordinary_BT, kept_BKT, rise_BKO, whole_BO = texts.batch(batch, np.ones(1, dtype=np.float32))
        predicted_BKO = kept_BKT.float() @ efficient_scores(head(read), ordinary_BT, whole_BO)
        error_O += (predicted_BKO - rise_BKO).square().sum(dim=(0, 1)).numpy()
    rise_NKO = texts.rise_NKO[places]
    total_O = np.square(rise_NKO - rise_NKO.mean(axis=(0, 1))).sum(axis=(0, 1))
    return float(np.mean(1.0 - error_O / np.maximum(total_O, 1e-12)))
