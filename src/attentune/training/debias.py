"""Training against shortcuts (`objective.debias`): what a weak model knows of a row's label, the model learns less of.

The weak model sees what shortcuts are made of: the words of a text, or how well the tokens of a pair match. Each row is
predicted by one that was fitted to other rows, so that it cannot know a row by heart.

    reweight   w_i = (1 - p_i[y_i]) / mean over rows j of (1 - p_j[y_j]);     loss_i = w_i CE(softmax(logits_i), y_i)
    product    loss_i = CE(softmax(logits_i + log p_i), y_i);                 the model predicts from its logits alone

Sources: reweighting as in Utama, Moosavi and Gurevych 2020 ("Towards Debiasing NLU Models from Unknown Biases", section
3), scaled to a mean of 1; products of experts as in Hinton 2002, for shortcuts Clark, Yatskar and Zettlemoyer 2019
("bias product") and He, Zha and Wang 2019.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attentune.baselines.linear import Baseline
from attentune.baselines.registry import make_baseline
from attentune.data.dataset import LabelSpace, TextRows
from attentune.data.splits import fold_rows
from attentune.errors import DataError
from attentune.training.baselines import frozen_encoder
from attentune.training.callbacks import ProgressDisplay
from attentune.training.prepare import WEAK_FOLDS, RunInputs

# The weak models of single texts and of pairs, as named in `baselines.registry`.
OF_TEXTS, OF_PAIRS = "tfidf-linear", "token-alignment"


@dataclass(frozen=True)
class Debias:
    """What training takes from the weak model; a resumed run computes the same again."""

    weights_N: np.ndarray | None  # reweight: (N,) float64 weight of each training row, 1 on average
    log_p_NC: np.ndarray | None  # product: (N, C) float32 log-probabilities of the classes of each training row
    facts: dict[str, Any]  # for `run.json`


def debiased(inputs: RunInputs, display: ProgressDisplay) -> RunInputs:
    """Return the inputs of a run with what `objective.debias` needs, computed here once; unchanged if it is none."""
    kind, config, rows = inputs.config.objective.debias, inputs.config, inputs.read_data.splits["train"]
    if kind == "none":
        return inputs
    began, seed = time.perf_counter(), config.training.seed
    name = OF_TEXTS if rows.pairs is None else OF_PAIRS
    display.info(f"debias {kind}: predicting {len(rows):,} training rows with {name}, in {WEAK_FOLDS} folds")
    options: dict[str, Any] = {"encoder": config.model, "max_length": config.data.max_length, "seed": seed}
    frozen = frozen_encoder(inputs, in_bf16=False)  # of all folds, so that it reads each text once
    log_p_NC = out_of_fold(rows, inputs.data.label_space, lambda: make_baseline(name, frozen=frozen, **options), seed)
    accuracy, seconds = float((log_p_NC.argmax(axis=1) == rows.labels).mean()), time.perf_counter() - began
    display.info(f"debias {kind}: {name} predicts {100 * accuracy:.1f} % of them right ({seconds:.1f} s)")
    debias = Debias(
        weights_N=row_weights(log_p_NC, inputs.labels, rows.source) if kind == "reweight" else None,
        log_p_NC=log_p_NC.astype(np.float32) if kind == "product" else None,
        facts={"weak_model": name, "accuracy": accuracy, "seconds": round(seconds, 3)},
    )
    return replace(inputs, debias=debias)


def out_of_fold(rows: TextRows, space: LabelSpace, make: Callable[[], Baseline], seed: int) -> np.ndarray:
    """Return (N, C) float64 log-probabilities of rows, each by a model that was fitted to the other folds.

    Nearly equal texts and pairs with one premise stay in a fold, as in cross-validation.
    """
    log_p_NC = np.zeros((len(rows), space.num_labels))
    for fold in fold_rows(rows, WEAK_FOLDS, "debias", seed)[0]:
        rest = np.setdiff1d(np.arange(len(rows)), fold)
        log_p_NC[fold] = make().fit(rows.take(rest), space).logits(rows.take(fold))
    return log_p_NC


def row_weights(log_p_NC: np.ndarray, labels: np.ndarray, source: str) -> np.ndarray:
    """Return (N,) float64: 1 minus the weak model's probability of each row's label, divided by the mean of that."""
    rest_N = -np.expm1(log_p_NC[np.arange(len(labels)), labels])
    if not rest_N.any():
        raise DataError(
            f"{source}: the weak model of objective.debias is sure of the label of every row, so reweight leaves none."
            " Expected rows of at least two classes; give some, or set objective.debias none."
        )
    return rest_N / rest_N.mean()
