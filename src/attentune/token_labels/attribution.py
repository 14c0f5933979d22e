"""Labels from methods of explanation, through Captum: dear, and here to compare with."""

from __future__ import annotations

import importlib.util
from abc import abstractmethod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attentune.config import LabelsConfig
from attentune.errors import ConfigError
from attentune.nn.losses import NO_LABEL, resolve_loss, row_losses
from attentune.seeding import derive_key, seed_global
from attentune.token_labels.base import LabelSource, RowLabelGenerator
from attentune.token_labels.masking import spread_copies
from attentune.token_labels.plan import labels_from_scores

# LIME for text weighs a copy by the share of words kept: exp(-(1 - sqrt(share))^2 / width^2).
_LIME_WIDTH = 0.25


class AttributionLabels(RowLabelGenerator):
    """Labels from what each token adds to minus the loss, against the mask token. Subclasses fill in `attribute`.

    Only sentences that the model is right on are labelled; below 1 the ratio takes a random share of the sentences.
    """

    def __init__(self, settings: LabelsConfig, source: LabelSource) -> None:
        super().__init__(settings, source)
        if importlib.util.find_spec("captum") is None:
            raise ConfigError(
                f"labels.generator: {settings.generator} needs Captum, which is not installed; run:"
                " pip install 'attentune[explain]'"
            )

    @abstractmethod
    def attribute(self, row: int, inputs: dict[str, Tensor], key: int) -> np.ndarray:
        """(T,) what each token of a row adds to minus the loss."""

    def label_rows(self, epoch: int) -> tuple[np.ndarray, dict[str, Any]]:
        source, settings = self.source, self.settings
        rows = spread_copies(len(source.features), min(1.0, settings.ratio), source.seed, epoch)
        correct = rows[source.comparator.correct(source.scorer.logits(rows), source.gold[rows])]
        values = np.zeros(len(source.features.ids), dtype=np.float32)
        model = source.scorer.model
        was_training = model.training
        model.eval()
        for row in correct[source.scorer.part]:
            source.scorer.tick(1)
            scores = self.attribute(
                int(row), source.scorer.inputs(int(row)), derive_key("attribution", source.seed, epoch, int(row))
            )
            # One more than the label, so that the sum over processes tells labels from none.
            values[source.features.row(int(row))] = (
                1.0
                - NO_LABEL
                + labels_from_scores(
                    scores,
                    source.features.non_special_positions(int(row)),
                    targets=settings.targets,
                    top_share=settings.top_share,
                )
            )
        model.train(was_training)
        summed = source.scorer.summed(values)
        labels = np.where(summed > 0, summed - (1.0 - NO_LABEL), NO_LABEL).astype(np.float32)
        return labels, {"probed": len(rows), "correct": len(correct)}

    def _minus_loss(self, row: int, input_ids: Tensor, others: dict[str, Tensor]) -> Tensor:
        """(B,) minus the loss of these versions of a row, in float32."""
        count = len(input_ids)
        spread = {name: tensor.expand(count, *tensor.shape[1:]) for name, tensor in others.items()}
        logits_BC = self.source.scorer.model(input_ids=input_ids, **spread).logits
        gold_B = torch.as_tensor(self.source.gold[row], device=logits_BC.device).expand(count)
        loss = resolve_loss("auto", self.source.comparator.label_space.task_type)
        return -row_losses(loss, logits_BC, gold_B).loss_B

    def _masked_ids(self, row: int, inputs: dict[str, Tensor]) -> Tensor:
        """The row with every ordinary token masked, (1, T)."""
        ids_1T = inputs["input_ids"].clone()
        ids_1T[0, torch.as_tensor(self.source.features.non_special_positions(row))] = self.source.mask_token_id
        return ids_1T


class IntegratedGradients(AttributionLabels):
    """Integrated gradients along the straight path from the mask token's embeddings.

    Source: Sundararajan et al. 2017, through `captum.attr.LayerIntegratedGradients`.
    """

    def attribute(self, row: int, inputs: dict[str, Tensor], key: int) -> np.ndarray:
        from captum.attr import LayerIntegratedGradients

        others = {name: tensor for name, tensor in inputs.items() if name != "input_ids"}
        embeddings: Any = self.source.scorer.model
        method = LayerIntegratedGradients(
            lambda input_ids: self._minus_loss(row, input_ids, others), embeddings.get_input_embeddings()
        )
        attributed_1TE = method.attribute(
            inputs["input_ids"], baselines=self._masked_ids(row, inputs), n_steps=self.settings.steps
        )
        return attributed_1TE.sum(dim=-1)[0].detach().float().cpu().numpy()


class Lime(AttributionLabels):
    """The weights of a linear model fitted to the model's answers on randomly masked copies.

    Source: Ribeiro et al. 2016, through `captum.attr.Lime`, with the weighting of its program for texts.
    """

    def attribute(self, row: int, inputs: dict[str, Tensor], key: int) -> np.ndarray:
        from captum._utils.models.linear_model import SkLearnRidge
        from captum.attr import Lime as CaptumLime

        ordinary = self.source.features.non_special_positions(row)
        ids_1T = inputs["input_ids"]
        scores = np.zeros(ids_1T.shape[1], dtype=np.float32)
        if len(ordinary) == 0:
            return scores
        others = {name: tensor for name, tensor in inputs.items() if name != "input_ids"}
        # Each ordinary token is a feature; the special ones stand in the last, whose baseline is what they are.
        feature_1T = torch.full_like(ids_1T, len(ordinary))
        feature_1T[0, torch.as_tensor(ordinary)] = torch.arange(len(ordinary), device=ids_1T.device)
        seed_global(key)
        method = CaptumLime(
            lambda input_ids: self._minus_loss(row, input_ids, others),
            interpretable_model=SkLearnRidge(alpha=1.0),
            similarity_func=_closeness,
        )
        with torch.no_grad():
            weights = method.attribute(
                ids_1T,
                baselines=self._masked_ids(row, inputs),
                feature_mask=feature_1T,
                n_samples=self.settings.samples,
                perturbations_per_eval=32,
                return_input_shape=False,
            )
        scores[ordinary] = weights[0, : len(ordinary)].cpu().numpy()
        return scores


def _closeness(original: Tensor, perturbed: Tensor, kept: Tensor, **options: Any) -> Tensor:
    """How much a copy counts: the more of the text is kept, the more."""
    # The last feature is that of the special tokens, which always stay.
    distance = 1.0 - kept[..., :-1].float().mean().sqrt()
    return torch.exp(-(distance**2) / _LIME_WIDTH**2)
