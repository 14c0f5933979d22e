"""Token labels from integrated gradients and LIME: expensive, for comparison with the cheaper generators."""

import contextlib
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attentune.config import LabelsConfig
from attentune.explain.gradient import EmbeddingGradientHook, integrate, mask_embedding, masked_ids, rise_if_masked
from attentune.explain.methods import LIME_CAPTUM, fit_lime
from attentune.nn.losses import NO_LABEL, resolve_loss, row_losses
from attentune.plugins import require_extra
from attentune.seeding import derive_key, numpy_generator, seed_global
from attentune.token_labels.base import LabelGenerator, LabelSource, RowLabelGenerator
from attentune.token_labels.corruption import spread_copies
from attentune.token_labels.plan import labels_from_scores

# Of the rows whose prediction is reused, this share is predicted to tell how many are wrong, and at most so many.
_CHECKED_SHARE, _CHECKED_ROWS = 0.1, 64


def restored_share(source: LabelSource, total: np.ndarray) -> np.ndarray:
    """Return a process's share of a saved sum: all of it on the first, so that the sum over processes is unchanged."""
    return total.copy() if source.scorer.part.start == 0 else np.zeros_like(total)


class TrainingPredictions:
    """Counts how often training has predicted each row, and how often correctly.

    Every process counts its share; results and checkpoints hold the sum over all.
    """

    def __init__(self, source: LabelSource) -> None:
        self._source = source
        self.reset()

    def reset(self) -> None:
        self._seen_N, self._correct_N = np.zeros((2, len(self._source.features)), dtype=np.int32)

    def update(self, rows: np.ndarray, logits_BC: Tensor) -> None:
        """Count the predictions of a batch."""
        logits = logits_BC.detach().float().cpu().numpy()
        # A batch may contain a row more than once.
        np.add.at(self._seen_N, rows, 1)
        np.add.at(self._correct_N, rows, self._source.comparator.correct(logits, self._source.gold[rows]))

    def summed(self) -> tuple[np.ndarray, np.ndarray]:
        """Return how often each row was predicted, and how often correctly, (N,) each, over all processes."""
        scorer = self._source.scorer
        return scorer.summed(self._seen_N), scorer.summed(self._correct_N)

    def tensors(self) -> dict[str, np.ndarray]:
        return dict(zip(("pass_seen", "pass_correct"), self.summed(), strict=True))

    def restore(self, tensors: dict[str, np.ndarray]) -> None:
        self._seen_N, self._correct_N = (
            restored_share(self._source, tensors[name]) for name in ("pass_seen", "pass_correct")
        )


class ReusesTrainingPredictions(LabelGenerator):
    """A generator that can reuse training-time predictions as the correctness check (`labels.reuse_predictions`).

    These were made with dropout and with weights up to an epoch old, so they are not always those of the present model;
    see each generator for the consequences.
    """

    def __init__(self, settings: LabelsConfig, source: LabelSource) -> None:
        super().__init__(settings, source)
        # In regression two correct predictions may differ, so the unmasked prediction is needed.
        trusts = settings.reuse_predictions and source.comparator.correct_implies_same
        self._pass = TrainingPredictions(source) if trusts else None

    def assumed_correct(self) -> np.ndarray:
        """Return the rows assumed to be correct, (N,) bool: those that were correct at every prediction in training."""
        if self._pass is None:
            return np.zeros(len(self.source.features), dtype=bool)
        seen_N, correct_N = self._pass.summed()
        return (seen_N > 0) & (correct_N == seen_N)

    def check_reused(self, rows: np.ndarray, epoch: int) -> dict[str, Any]:
        """Predict a sample of the rows that are taken as correct because training predicted them correctly."""
        if self._pass is None or not len(rows):
            return {}
        source, count = self.source, min(_CHECKED_ROWS, math.ceil(_CHECKED_SHARE * len(rows)))
        sample = np.sort(numpy_generator("reused predictions", source.seed, epoch).permutation(rows)[:count])
        is_wrong = ~source.comparator.correct(source.scorer.logits(sample), source.gold[sample])
        return {"reused": len(rows), "reused_checked": count, "reused_wrong_share": round(float(is_wrong.mean()), 4)}

    def reset_predictions(self) -> None:
        """Reset the counts after planning an epoch."""
        if self._pass is not None:
            self._pass.reset()

    def on_backward(self, rows: np.ndarray, inputs: dict[str, Tensor], logits_BC: Tensor) -> None:
        if self._pass is not None:
            self._pass.update(rows, logits_BC)

    def tensors(self) -> dict[str, np.ndarray]:
        return {} if self._pass is None else self._pass.tensors()

    def restore(self, tensors: dict[str, np.ndarray]) -> None:
        if self._pass is not None:
            self._pass.restore(tensors)


class Gradient(RowLabelGenerator):
    """Labels by (E[mask] - E[t_i]) . dL/dE[t_i], the first-order estimate of how far masking token i raises the loss.

    L is the training loss, which includes the token loss from the second epoch on. Only rows that the training pass
    predicts correctly are labelled. The estimates of one epoch are the labels of the next.
    """

    def __init__(self, settings: LabelsConfig, source: LabelSource) -> None:
        super().__init__(settings, source)
        self._hook = EmbeddingGradientHook(source.scorer.model)
        self._pass = TrainingPredictions(source)
        self._scores = np.zeros(len(source.features.ids), dtype=np.float32)

    @contextlib.contextmanager
    def on_train(self) -> Iterator[None]:
        with self._hook:
            yield

    def on_backward(self, rows: np.ndarray, inputs: dict[str, Tensor], logits_BC: Tensor) -> None:
        embedded_BTE, gradient_BTE = self._hook.take()
        mask_E = mask_embedding(self.source.scorer.model, self.source.mask_token_id)
        rise_BT = rise_if_masked(embedded_BTE, gradient_BTE, mask_E)
        # fp16 gradients may have overflowed (the loss scaler then skips the step).
        scores_BT = rise_BT.nan_to_num(nan=0.0, posinf=0.0, neginf=0.0).cpu().numpy()
        features = self.source.features
        for number, row in enumerate(rows):
            place = features.row(int(row))
            self._scores[place] = scores_BT[number, : place.stop - place.start]
        self._pass.update(rows, logits_BC)

    def label_rows(self, epoch: int) -> tuple[np.ndarray, dict[str, Any]]:
        scores = self.source.scorer.summed(self._scores)
        self._scores = np.zeros_like(self._scores)
        seen_N, correct_N = self._pass.summed()
        self._pass.reset()
        features = self.source.features
        values = np.full(len(scores), NO_LABEL, dtype=np.float32)
        for row in np.flatnonzero(correct_N):
            place = features.row(int(row))
            values[place] = labels_from_scores(
                scores[place],
                features.non_special_positions(int(row)),
                targets=self.settings.targets,
                top_share=self.settings.top_share,
            )
        return values, {"probed": int(seen_N.sum()), "correct": int(correct_N.sum())}

    def tensors(self) -> dict[str, np.ndarray]:
        return {"gradient_scores": self.source.scorer.summed(self._scores)} | self._pass.tensors()

    def restore(self, tensors: dict[str, np.ndarray]) -> None:
        self._pass.restore(tensors)
        self._scores = restored_share(self.source, tensors["gradient_scores"])


class AttributionLabels(RowLabelGenerator):
    """Labels tokens by an attribution of minus the loss, relative to the masked text. Subclasses define `attribute`.

    Only rows that the model predicts correctly are labelled; a ratio below 1 takes a random share of the rows.
    """

    def __init__(self, settings: LabelsConfig, source: LabelSource) -> None:
        super().__init__(settings, source)
        require_extra("explain", "captum", what=f"labels.generator: {settings.generator}")

    @abstractmethod
    def attribute(self, row: int, inputs: dict[str, Tensor], key: int) -> np.ndarray:
        """Attribute minus the loss of a row to its tokens, (T,) float32."""

    def label_rows(self, epoch: int) -> tuple[np.ndarray, dict[str, Any]]:
        source, settings = self.source, self.settings
        rows = spread_copies(len(source.features), min(1.0, settings.ratio), source.seed, epoch)
        correct = rows[source.comparator.correct(source.scorer.logits(rows), source.gold[rows])]
        values = np.zeros(len(source.features.ids), dtype=np.float32)
        model = source.scorer.model
        was_training = model.training
        model.eval()
        for row in correct[source.scorer.part].tolist():
            source.scorer.tick(1)
            key = derive_key("attribution", source.seed, epoch, row)
            labels = labels_from_scores(
                self.attribute(row, source.scorer.inputs(row), key),
                source.features.non_special_positions(row),
                targets=settings.targets,
                top_share=settings.top_share,
            )
            # Shifted to be above 0, so that after the sum over processes a 0 means that no process labelled the token.
            values[source.features.row(row)] = 1.0 - NO_LABEL + labels
        model.train(was_training)
        summed = source.scorer.summed(values)
        labels = np.where(summed > 0, summed - (1.0 - NO_LABEL), NO_LABEL).astype(np.float32)
        return labels, {"probed": len(rows), "correct": len(correct)}

    def _minus_loss(self, row: int) -> Callable[[dict[str, Tensor]], Tensor]:
        """Return the function to explain: from a batch of versions of a row to minus their losses, (B,) float32."""
        loss = resolve_loss("auto", self.source.comparator.label_space.task_type)

        def minus_loss(inputs: dict[str, Tensor]) -> Tensor:
            logits_BC = self.source.scorer.model(**inputs).logits
            gold_B = torch.as_tensor(self.source.gold[row], device=logits_BC.device).expand(len(logits_BC))
            return -row_losses(loss, logits_BC, gold_B).loss_B

        return minus_loss


class IntegratedGradients(AttributionLabels):
    """Labels by integrated gradients along the straight path from the masked text's word embeddings.

    Source: Sundararajan et al. 2017.
    """

    def attribute(self, row: int, inputs: dict[str, Tensor], key: int) -> np.ndarray:
        places = self.source.features.non_special_positions(row)
        masked_1T = masked_ids(inputs["input_ids"], places, self.source.mask_token_id)
        return integrate(self._minus_loss(row), self.source.scorer.model, inputs, masked_1T, steps=self.settings.steps)


class Lime(AttributionLabels):
    """Labels by LIME: the weights of a linear model fitted to the loss of randomly masked copies.

    Source: Ribeiro et al. 2016, with the copies that `captum.attr.Lime` draws.
    """

    def attribute(self, row: int, inputs: dict[str, Tensor], key: int) -> np.ndarray:
        places = self.source.features.non_special_positions(row)
        scores = np.zeros(inputs["input_ids"].shape[1], dtype=np.float32)
        if len(places) == 0:
            return scores
        minus_loss = self._minus_loss(row)

        def value(present_SM: Tensor) -> Tensor:
            copies = {name: tensor.expand(len(present_SM), *tensor.shape[1:]) for name, tensor in inputs.items()}
            masked = [places[is_masked] for is_masked in (present_SM == 0).numpy()]
            ids = [masked_ids(inputs["input_ids"], gone, self.source.mask_token_id) for gone in masked]
            return minus_loss(copies | {"input_ids": torch.cat(ids)}).cpu()

        samples = self.settings.samples
        # Captum draws from PyTorch's global generators.
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            seed_global(key)
            # captum.attr.Lime counts the special tokens as one more feature, which masking leaves as it is.
            weights = fit_lime(value, len(places), LIME_CAPTUM, samples=samples, key=key, constant_features=1)
        scores[places] = weights.numpy()
        return scores
