"""A tokenizer for the library `tokenizers` alone that gives the tokens a run was trained on."""

from __future__ import annotations

import numpy as np
from tokenizers import Tokenizer as PlainTokenizer

from attentune.data.dataset import TextRows
from attentune.data.tokenization import Features
from attentune.errors import ExportError
from attentune.inference.predictor import SavedRun


def plain_tokenizer(saved: SavedRun) -> PlainTokenizer:
    """It cuts texts at the run's length and pads on the right; both are saved in its file.

    Its `encode_special_tokens` is not, and has to be set wherever it is loaded.
    """
    plain = PlainTokenizer.from_str(saved.tokenizer.backend_tokenizer.to_str())
    plain.enable_truncation(saved.model.config.max_seq_length, strategy="longest_first", direction="right")
    plain.enable_padding(
        direction="right", pad_id=saved.tokenizer.pad_token_id, pad_type_id=0, pad_token=saved.tokenizer.pad_token
    )
    plain.encode_special_tokens = True
    return plain


def check_tokens(plain: PlainTokenizer, rows: TextRows, features: Features) -> None:
    """Compare its tokens of these rows with those that the run reads.

    Raises:
        ExportError: they differ.
    """
    apart = features.second_starts is not None
    for number, text in enumerate(rows.texts):
        pair = None if rows.pairs is None else rows.pairs[number]
        encodings = [plain.encode(one) for one in (text, pair)] if apart else [plain.encode(text, pair)]
        ids = [token for encoding in encodings for token in encoding.ids]
        if not np.array_equal(ids, features.ids[features.row(number)]):
            raise ExportError(
                f"{rows.source}: row {number} has other tokens in the library tokenizers alone than in this run, so an"
                f" export would read it wrongly: got {ids[:8]} ..., expected"
                f" {features.ids[features.row(number)][:8].tolist()} ... This family of encoders cannot be exported."
            )
