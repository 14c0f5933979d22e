"""Marks tests of what only transformers 5 has."""

import pytest

from attentune.models.compatibility import IS_TRANSFORMERS_4

needs_switched_attention = pytest.mark.skipif(
    IS_TRANSFORMERS_4, reason="encoders of transformers 4 keep the eager attention that they are built with"
)
