"""Scores linear models of a frozen encoder's pair vectors, by features and scaling.

    python -m benchmarks.quality.pair_features sick-r ../shared/data/sick

One JSON line for each combination of features and scaling goes to standard output.
"""

from __future__ import annotations

import argparse
import json
import warnings

import numpy as np
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegressionCV, RidgeCV

from attentune.config import load_config
from attentune.data.load import load_data
from attentune.data.tokenization import encode_rows
from attentune.inference.scoring import classifier_features, make_accelerator
from attentune.models.build import build_model, load_tokenizer

FEATURES = ("cos", "raw", "raw+cos", "unit", "unit+cos", "sym")
SCALINGS = ("none", "each feature", "one common number")


def combined(kind: str, u_ND: np.ndarray, v_ND: np.ndarray) -> np.ndarray:
    """Return the features of pairs; "sym" are |u - v|, u * v and the cosine of unit vectors."""
    a_ND, b_ND = (x / np.maximum(np.linalg.norm(x, axis=1, keepdims=True), 1e-12) for x in (u_ND, v_ND))
    cosine_N1 = (a_ND * b_ND).sum(axis=1, keepdims=True)
    if kind == "cos":
        return cosine_N1
    if kind == "sym":
        return np.hstack([np.abs(a_ND - b_ND), a_ND * b_ND, cosine_N1])
    first, second = (u_ND, v_ND) if kind.startswith("raw") else (a_ND, b_ND)
    parts = [first, second, np.abs(first - second), first * second]
    return np.hstack([*parts, cosine_N1] if kind.endswith("cos") else parts)


def scales(x_NF: np.ndarray, scaling: str) -> tuple[np.ndarray, np.ndarray]:
    """Return what is subtracted from the features, and what they are divided by."""
    mean_F = x_NF.mean(axis=0)
    if scaling == "none":
        return np.zeros_like(mean_F), np.ones_like(mean_F)
    if scaling == "each feature":
        return mean_F, x_NF.std(axis=0) + 1e-6
    return mean_F, np.full_like(mean_F, np.sqrt(np.mean((x_NF - mean_F) ** 2)))


def scored(x_NF: np.ndarray, y_N: np.ndarray, validation: tuple[np.ndarray, np.ndarray]) -> dict[str, float]:
    """Fit on training rows, the penalty chosen by cross-validation; return the scores on validation."""
    x_MF, y_M = validation
    if y_N.dtype.kind == "f":
        ridge = RidgeCV(alphas=np.logspace(-2, 5, 15)).fit(x_NF, y_N)
        return {"pearson": float(np.corrcoef(ridge.predict(x_MF), y_M)[0, 1]), "alpha": float(ridge.alpha_)}
    options = {"cv": 3, "scoring": "neg_log_loss", "max_iter": 200, "tol": 1e-3}
    model = LogisticRegressionCV(Cs=np.logspace(-5, 3, 9), **options).fit(x_NF, y_N)
    chances = model.predict_proba(x_MF)[np.arange(len(y_M)), y_M]
    accuracy = float(np.mean(model.predict(x_MF) == y_M))
    return {"accuracy": accuracy, "log_loss": float(-np.log(chances + 1e-12).mean()), "C": float(model.C_[0])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task")
    parser.add_argument("data_dir")
    parser.add_argument("--rows", type=int, default=1000)
    parsed = parser.parse_args()
    given = {"data.task": parsed.task, "data.data_dir": parsed.data_dir, "data.max_train_samples": parsed.rows}
    config = load_config(
        preset="bi-encoder-mean",
        overrides={**given, "data.max_eval_samples": 1000, "data.max_length": 64, "model.head.combine": "concat"},
    )
    data, tokenizer = load_data(config.data, seed=1, splits=("train", "validation")), load_tokenizer(config.model)
    model = build_model(config.model, data.label_space, tokenizer, max_length=64, is_pair=True, seed=1)
    accelerator, _ = make_accelerator(precision="fp32", use_cpu=True)
    vectors = {}
    for split in ("train", "validation"):
        features = encode_rows(data.splits[split], tokenizer, max_length=64, bi_encoder=True)
        options = {"pad_token_id": tokenizer.pad_token_id, "accelerator": accelerator}
        # The first half of the features are u and v.
        x_NF = classifier_features(model, features, rows=np.arange(len(features)), **options)
        vectors[split] = np.split(x_NF, 4, axis=1)[:2]
    labels = {split: np.asarray(data.splits[split].labels) for split in vectors}
    warnings.simplefilter("ignore", ConvergenceWarning)
    for kind in FEATURES:
        x_NF, x_MF = (combined(kind, *vectors[split]) for split in ("train", "validation"))
        for scaling in SCALINGS:
            mean_F, scale_F = scales(x_NF, scaling)
            validation = ((x_MF - mean_F) / scale_F, labels["validation"])
            scores = scored((x_NF - mean_F) / scale_F, labels["train"], validation)
            print(json.dumps({"task": parsed.task, "features": kind, "scaling": scaling, **scores}), flush=True)


if __name__ == "__main__":
    main()
