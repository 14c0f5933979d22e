"""Which texts to label next: those of which a run is least certain, which differ, or about which models disagree."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from attentune.baselines.frozen import FrozenLinear
from attentune.baselines.registry import BaselinePredictor
from attentune.config.parse import did_you_mean
from attentune.data.dataset import TaskData, TextRows
from attentune.errors import ConfigError, DataError
from attentune.inference.ensemble import EnsemblePredictor
from attentune.inference.predictor import ModelPredictor, Predictor, predict_rows
from attentune.metrics.metrics import predictions_of, probabilities_of
from attentune.seeding import numpy_generator

STRATEGIES = ("margin", "badge", "disagreement")


@dataclass(frozen=True)
class Suggestion:
    """A text to label."""

    row: int  # its number in the file, from 0
    id: str
    # text, pair: its texts; `pair` is None for single texts.
    text: str
    pair: str | None
    prediction: str  # what the run predicts
    probability: float  # of the most probable class
    margin: float  # the probability of the most probable class minus that of the second
    disagreement: float | None  # with the strategy of that name, in nats; else None


def suggest_texts(
    saved: Predictor, rows: TextRows, *, count: int, strategy: str = "margin", seed: int = 0
) -> list[Suggestion]:
    """Choose the texts whose labels would probably help most, the first choice first.

    Of equal texts, only the first is considered.
    """
    _check(saved, strategy)
    if not len(rows):
        raise DataError(f"{rows.source}: got no rows, expected some to choose from.")
    first: dict[tuple[str, str], int] = {}
    for row, text in enumerate(zip(rows.texts, rows.pairs or ("",) * len(rows), strict=True)):
        first.setdefault(text, row)
    distinct = np.array(list(first.values()), dtype=np.int64)
    pool = rows.take(distinct)
    scores_M: np.ndarray | None = None
    if strategy == "disagreement":
        assert isinstance(saved, EnsemblePredictor)
        parts = [(weight, run) for weight, run in saved.weighted_runs() if weight > 0]
        by_run = [probabilities_of(predict_rows(run, pool), saved.label_space) for _, run in parts]
        scores_M = disagreement(np.stack(by_run), [weight for weight, _ in parts])
    logits_MC = predict_rows(saved, pool)
    probabilities_MC = probabilities_of(logits_MC, saved.label_space)
    if scores_M is not None:
        order = np.argsort(-scores_M, kind="stable")[:count]
    elif strategy == "badge":
        features_MF = last_features(saved, pool)
        order = badge(probabilities_MC, features_MF, count, numpy_generator("badge", seed))
    else:
        order = np.argsort(margins(probabilities_MC), kind="stable")[:count]
    predictions, margins_M = predictions_of(logits_MC, saved.label_space), margins(probabilities_MC)
    return [
        Suggestion(
            row=int(distinct[place]),
            id=pool.ids[place],
            text=pool.texts[place],
            pair=None if pool.pairs is None else pool.pairs[place],
            prediction=saved.label_space.text_of(predictions[place]),
            probability=round(float(probabilities_MC[place].max()), 6),
            margin=round(float(margins_M[place]), 6),
            disagreement=None if scores_M is None else round(float(scores_M[place]), 6),
        )
        for place in order.tolist()
    ]


def _check(saved: Predictor, strategy: str) -> None:
    if strategy not in STRATEGIES:
        raise ConfigError(
            f"--strategy: got {strategy!r}, expected one of {', '.join(STRATEGIES)}."
            f"{did_you_mean(strategy, STRATEGIES)}"
        )
    space = saved.label_space
    if space.task_type not in ("classification", "ordinal"):
        raise ConfigError(
            f"suggest: got {saved.folder}, which predicts labels of the type {space.task_type}; expected a run that"
            " predicts one class a row (classification or ordinal)."
        )
    if strategy == "disagreement" and not isinstance(saved, EnsemblePredictor):
        raise ConfigError(
            f"--strategy: disagreement compares the models of an ensemble, which {saved.folder} is not ({saved.kind})."
            f" Use margin{' or badge' if _has_last_layer(saved) else ''}, or make an ensemble with attentune auto."
        )
    if strategy == "badge" and not _has_last_layer(saved):
        raise ConfigError(
            f"--strategy: badge needs the last layer of one neural model, which {saved.folder} has not ({saved.kind})."
            f" Use margin{' or disagreement' if isinstance(saved, EnsemblePredictor) else ''}."
        )


def _has_last_layer(saved: Predictor) -> bool:
    if isinstance(saved, BaselinePredictor):
        return isinstance(saved.baseline, FrozenLinear)
    return isinstance(saved, ModelPredictor)


def last_features(saved: Predictor, rows: TextRows) -> np.ndarray:
    """Return the inputs of a run's last layer, (N, F) float32."""
    if isinstance(saved, BaselinePredictor):
        assert isinstance(saved.baseline, FrozenLinear)
        return saved.baseline.frozen.features(rows)
    model_run = saved.single_model("suggest")
    data = TaskData("input", saved.label_space, (), {"input": rows})
    evaluator = replace(model_run.evaluator(data), keep_vectors=True)
    evaluator.predict("input")
    return evaluator.vectors["input"]


def margins(probabilities_NC: np.ndarray) -> np.ndarray:
    """Return the highest probability of each row minus the second highest, (N,).

    Source:
        Scheffer, Decomain and Wrobel, "Active hidden Markov models for information extraction", IDA 2001.
    """
    highest_N2 = np.sort(probabilities_NC, axis=1)[:, -2:]
    return highest_N2[:, 1] - highest_N2[:, 0]


def disagreement(probabilities_RNC: np.ndarray, weights: Sequence[float]) -> np.ndarray:
    """Return the weighted mean divergence of R models' probabilities from their mean, (N,) in nats.

    That is the entropy of the mean minus the mean entropy, the generalised Jensen-Shannon divergence.

    Source:
        McCallum and Nigam, "Employing EM and pool-based active learning for text classification", ICML 1998; Houlsby et
        al., "Bayesian active learning for classification and preference learning", 2011.
    """
    shares_R = np.asarray(weights, dtype=np.float64) / np.sum(weights)
    mean_NC = np.tensordot(shares_R, probabilities_RNC, axes=1)
    return np.maximum(_entropy(mean_NC) - shares_R @ _entropy(probabilities_RNC), 0.0)


def _entropy(probabilities: np.ndarray) -> np.ndarray:
    return -(probabilities * np.log(np.maximum(probabilities, 1e-12))).sum(axis=-1)


def badge(
    probabilities_NC: np.ndarray, features_NF: np.ndarray, count: int, generator: np.random.Generator
) -> np.ndarray:
    """Choose rows by k-means++ on gradient embeddings: uncertain rows, which differ from each other.

    A row's embedding is the gradient of the loss with respect to the last layer's weights, were the predicted class
    right: (p - e) x h, the outer product of the probabilities less 1 at the predicted class, and the features. It is
    never formed, since distances follow from the products of its factors.

    Source:
        Ash et al., "Deep batch active learning by diverse, uncertain gradient lower bounds", ICLR 2020, algorithm 1.
    """
    rows = np.arange(len(probabilities_NC))
    errors_NC = probabilities_NC.copy()
    errors_NC[rows, probabilities_NC.argmax(axis=1)] -= 1.0
    features_NF = features_NF.astype(np.float64)
    norms_N = (errors_NC**2).sum(axis=1) * (features_NF**2).sum(axis=1)
    chosen = [int(norms_N.argmax())] if len(rows) else []
    nearest_N = np.full(len(rows), np.inf)
    while chosen and len(chosen) < min(count, len(rows)):
        last = chosen[-1]
        products_N = (errors_NC @ errors_NC[last]) * (features_NF @ features_NF[last])
        nearest_N = np.minimum(nearest_N, np.maximum(norms_N + norms_N[last] - 2.0 * products_N, 0.0))
        nearest_N[chosen] = 0.0
        total = nearest_N.sum()
        left = np.setdiff1d(rows, chosen)
        # Rows at distance 0 are drawn only if there are no others.
        drawn = generator.choice(rows, p=nearest_N / total) if total > 0 else generator.choice(left)
        chosen.append(int(drawn))
    return np.array(chosen[:count], dtype=np.int64)
