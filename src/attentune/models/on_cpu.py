"""What makes a model fast on a CPU without changing what it computes."""

from __future__ import annotations

from typing import Any

from attentune.models.attention import use_plain_attention
from attentune.models.half_stream import HalfStream
from attentune.nn.dropout import use_fast_dropout


def suit_cpu(model: Any) -> None:
    """Set a model on a CPU up for it, in place; weights and saved files are not touched.

    Training, scores while training and predictions of the saved model must all do this, or none, to agree to the last
    digit.

    Args:
        model: an `AttentuneForSequenceClassification` on a CPU.
    """
    use_fast_dropout(model)
    use_plain_attention(model)
    if model.half_stream is None:
        model.half_stream = HalfStream(model.encoder)
