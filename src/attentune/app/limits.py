"""Limits on the size of one request, and the messages for requests that exceed them."""

from __future__ import annotations

from dataclasses import dataclass

from attentune.errors import DataError
from attentune.serving.limits import length_problem


@dataclass(frozen=True)
class RequestLimits:
    """The maximum size of a request."""

    characters: int = 100_000  # the maximum length of a text; of a pair, of both texts in total
    upload_bytes: int = 10 * 2**20  # the maximum size of a file
    rows: int = 10_000  # the maximum number of rows of a file

    @property
    def body_bytes(self) -> int:
        """The maximum size of a request body: a file with its form fields, or the longest text, fully escaped.

        Slightly longer texts still fit, so that the page can respond with an error message.
        """
        return max(self.upload_bytes + 2**16, 12 * self.characters + 2**16, 4 * 2**20)

    def check_text(self, text: str, pair: str | None) -> None:
        """Check the length of a text or pair."""
        if not text.strip() and not (pair or "").strip():
            raise DataError("There is no text yet. Type or paste one, then try again.")
        got = len(text) + len(pair or "")
        if got > self.characters:
            raise DataError(length_problem("The text", got, self.characters, server="page"))

    def check_file(self, size: int) -> None:
        """Check the size of a file in bytes."""
        if size > self.upload_bytes:
            raise DataError(
                f"The file has {size / 2**20:.1f} MB; this page accepts at most {self.upload_bytes / 2**20:g} MB. Split"
                " it, or use `attentune predict --input_file`, which has no limit."
            )

    def check_rows(self, rows: int) -> None:
        """Check the number of rows of a file."""
        if rows > self.rows:
            raise DataError(
                f"The file has {rows:,} rows; this page accepts at most {self.rows:,}. Split it, or use `attentune"
                " predict --input_file`, which has no limit."
            )
