"""How much one visitor may ask for at once, and what the page says beyond that."""

from __future__ import annotations

from dataclasses import dataclass

from attentune.errors import DataError


@dataclass(frozen=True)
class RequestLimits:
    """The most that is taken.

    Attributes:
        characters: of a text that is typed; of a pair both together.
        upload_bytes: of a file.
        rows: of a file.
    """

    characters: int = 100_000
    upload_bytes: int = 10 * 2**20
    rows: int = 10_000

    @property
    def body_bytes(self) -> int:
        """Of any request: a file with what a form puts around it, or the longest text with all of it escaped.

        A text that is a little too long still comes through, so that the page can say so.
        """
        return max(self.upload_bytes + 2**16, 12 * self.characters + 2**16, 4 * 2**20)

    def check_text(self, text: str, pair: str | None) -> None:
        """Raises:
        DataError: there is no text, or too much of it.
        """
        if not text.strip() and not (pair or "").strip():
            raise DataError("There is no text yet. Type or paste one, then ask again.")
        got = len(text) + len(pair or "")
        if got > self.characters:
            raise DataError(
                f"The text has {got:,} characters; this page takes at most {self.characters:,}. Shorten it, or start"
                f" the page with --max_characters {got}."
            )

    def check_file(self, size: int) -> None:
        """Raises:
        DataError: the file is too large.
        """
        if size > self.upload_bytes:
            raise DataError(
                f"The file has {size / 2**20:.1f} MB; this page takes at most {self.upload_bytes / 2**20:g} MB. Cut it,"
                " or use `attentune predict --input_file`, which has no limit."
            )

    def check_rows(self, rows: int) -> None:
        """Raises:
        DataError: there are too many rows.
        """
        if rows > self.rows:
            raise DataError(
                f"The file has {rows:,} rows; this page takes at most {self.rows:,}. Cut it, or use `attentune predict"
                " --input_file`, which has no limit."
            )
