"""The pipeline for `pipeline("text-classification")`, which `modeling` registers with transformers."""

from typing import Any

import numpy as np
import torch
from transformers import TextClassificationPipeline

from attentune.models.configuration import AttentuneConfig
from attentune.stats.verdict import class_probabilities, predict_labels


class AttentunePipeline(TextClassificationPipeline):
    """Predicts as `attentune predict` does, with decision thresholds and expected values.

    Predicted labels come first, then all others by score. For multi-label runs each entry says whether it is
    `predicted`. It also answers for other models.
    """

    def preprocess(self, inputs: Any, **tokenizer_kwargs: Any) -> Any:
        config = self.model.config
        if config.model_type != AttentuneConfig.model_type or not config.is_bi_encoder:
            return super().preprocess(inputs, **tokenizer_kwargs)
        if not isinstance(inputs, dict) or {"text", "text_pair"} - inputs.keys():
            raise ValueError(
                f"got {str(inputs)[:80]!r}, but this model compares two texts, expected a mapping:"
                ' {"text": "A first text.", "text_pair": "A second one."}'
            )
        first, second = (
            self.tokenizer(inputs[name], truncation=True, max_length=config.max_seq_length)
            for name in ("text", "text_pair")
        )
        joined = {name: torch.tensor([[*first[name], *second[name]]]) for name in first}
        return {**joined, "second_start": torch.tensor([len(first["input_ids"])])}

    def postprocess(
        self, model_outputs: Any, function_to_apply: Any = None, top_k: int | None = 1, _legacy: bool = True
    ) -> Any:
        config = self.model.config
        if config.model_type != AttentuneConfig.model_type:
            return super().postprocess(model_outputs, function_to_apply, top_k, _legacy)
        if config.task_type == "regression":
            result = super().postprocess(model_outputs, function_to_apply, top_k, _legacy)
            if function_to_apply is None:  # transformers rounds to float32
                (entry,) = [result] if isinstance(result, dict) else result
                entry["score"] = float(model_outputs["logits"][0, 0])
            return result
        entries = super().postprocess(model_outputs, function_to_apply, top_k=None, _legacy=False)
        names = self._predicted(model_outputs["logits"][0].float().numpy())
        if config.task_type == "multi_label":
            entries = [{**entry, "predicted": entry["label"] in names} for entry in entries]
        entries.sort(key=lambda entry: entry["label"] not in names)
        return entries[0] if _legacy and top_k == 1 else entries[:top_k]

    def _predicted(self, logits_C: np.ndarray) -> set[str]:
        """Return the names of the predicted labels."""
        config = self.model.config
        several = config.task_type == "multi_label"
        predicted = predict_labels(
            class_probabilities(logits_C[None], is_multilabel=several),
            task_type=config.task_type,
            ordinal_prediction=config.ordinal_prediction,
            thresholds=config.thresholds,
        )[0]
        places = np.flatnonzero(predicted) if several else [predicted]
        return {config.id2label[int(place)] for place in places}
