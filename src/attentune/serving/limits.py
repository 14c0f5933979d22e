"""Limits on requests, and the errors of requests that exceed them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

_SURROGATE = re.compile("[\ud800-\udfff]")
# LIME's default of 5,000 samples would take too long on a shared server.
LIME_SAMPLES = 1000


class RequestError(Exception):
    """A request that is not answered."""

    def __init__(self, status: int, message: str, *, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.status, self.retry_after_s = status, retry_after_s


@dataclass(frozen=True)
class ServerLimits:
    """The maximum size of a request to the API, and of what waits."""

    texts: int = 256  # texts of a request for predictions
    explain_texts: int = 16  # texts of a request for explanations
    characters: int = 20_000  # the length of a text; of a pair, of both texts in total
    rows: int = 10_000  # rows of a file
    body_mb: int = 10  # the size of a request body, in MiB
    timeout_s: float = 30  # seconds until the answer
    queue: int = 1024  # texts that wait for their prediction
    batch: int = 32  # texts of a batch
    wait_ms: float = 2  # how long a text waits for others to join its batch
    explain_queue: int = 16  # requests for explanations that wait or are at work
    samples: int = 5000  # masked copies per text for LIME and SHAP
    steps: int = 500  # steps of integrated gradients

    @property
    def body_message(self) -> str:
        """The message for a body that is too large."""
        return (
            f"The request body is larger than {self.body_mb} MB, the most that this server accepts. Send fewer texts a"
            " request, split the file, or start the server with a higher --max_body_mb."
        )

    def check_texts(self, texts: Sequence[str], pairs: Sequence[str] | None, *, is_pair: bool, explains: bool) -> None:
        """Check the number and the lengths of the texts."""
        most, flag = (self.explain_texts, "--max_explain_texts") if explains else (self.texts, "--max_texts")
        seconds = [""] * len(texts) if pairs is None else pairs
        problem = None
        if not texts:
            problem = "texts: got an empty list, expected at least one text."
        elif len(texts) > most:
            problem = (
                f"texts: got {len(texts):,}; this server accepts at most {most:,} a request. Send them in several"
                f" requests, or start the server with {flag} {len(texts)}."
            )
        elif is_pair and pairs is None:
            problem = "pairs: got none, but this run reads pairs: give the second text of each in pairs."
        elif not is_pair and pairs is not None:
            problem = "pairs: got second texts, but this run reads single texts: leave pairs out."
        elif len(seconds) != len(texts):
            problem = f"pairs: got {len(seconds)} second texts for {len(texts)} texts, expected one for each."
        if problem is not None:
            raise RequestError(422, problem)
        for name, column in (("texts", texts), ("pairs", seconds)):
            for number, text in enumerate(column):
                if _SURROGATE.search(text):
                    problem = f"{name}[{number}] holds half of a surrogate pair, such as \\ud83d alone; remove it."
                    raise RequestError(422, problem)
        for number, length in enumerate(len(text) + len(second) for text, second in zip(texts, seconds, strict=True)):
            if length > self.characters:
                raise RequestError(
                    422,
                    f"texts[{number}] has {length:,} characters; this server accepts at most {self.characters:,}."
                    f" Shorten it, or start the server with --max_characters {length}.",
                )

    def check_cost(self, steps: int, samples: int | None) -> None:
        """Check the options of an explanation that multiply its cost."""
        for name, got, most in (("steps", steps, self.steps), ("samples", samples, self.samples)):
            if got is not None and got > most:
                raise RequestError(
                    422, f"{name}: got {got:,}; this server accepts at most {most:,}. For more, use attentune explain."
                )
