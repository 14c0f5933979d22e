"""The server's routes over an `Engine`: the JSON API with its OpenAPI description, and the page."""

import asyncio
import contextlib
import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal, TypeVar

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, Response
from fastapi.security import HTTPBearer
from fastapi_offline import FastAPIOffline
from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException
from starlette.routing import Route

from attentune import __version__
from attentune.data.columns import extra_kind
from attentune.data.tables import Table, as_cell
from attentune.errors import AttentuneError, NonFiniteLossError
from attentune.explain.scorer import Settings
from attentune.serving.backend import Row, RunBackend, Span
from attentune.serving.engine import Engine
from attentune.serving.guard import App, BodyTimeoutError, Guard, Scope, limited
from attentune.serving.limits import RequestError, ServerLimits
from attentune.serving.metrics import ServerMetrics

T = TypeVar("T")

_BUG = (
    "Internal error: this is a bug in Attentune, not in your request. The terminal that runs this server shows the"
    " traceback."
)
_FILE_BODY = {"requestBody": {"required": True, "content": {"text/csv": {"schema": {"type": "string"}}}}}


class Texts(BaseModel):
    """The texts of a request."""

    model_config = ConfigDict(extra="forbid")
    texts: list[str] = Field(description="The (first) texts.", examples=[["The film was lovely."]])
    pairs: list[str] | None = Field(None, description="The second texts, for a run of pairs: one for each text.")
    columns: dict[str, list[str | bool | float | None]] | None = Field(
        None, description="The columns beside the text, for a run that has some: a cell for each text; null is missing."
    )


class Reasons(Texts):
    """The texts to explain, and how."""

    method: str | None = Field(None, description="Default: fast-shap if a head explains enough, else leave-one-out.")
    target: str | None = Field(None, description="The class to explain; default: the predicted one.")
    level: Literal["word", "token"] = "word"
    seed: int = Field(0, ge=0, lt=2**32, description="Random seed of lime, shap and random.")
    steps: int = Field(50, ge=1, description="Steps of integrated-gradients.")
    samples: int | None = Field(None, ge=1, description="Masked copies a text: lime 1000, shap 500 by default.")


class Word(BaseModel):
    """A word of a text, by its characters."""

    model_config = ConfigDict(extra="forbid")
    start: int = Field(ge=0, description="Its first character, from 0.")
    end: int = Field(ge=1, description="The character after its last one.")
    within: Literal["text", "pair"] = Field("text", alias="in", description="The text that it is in.")


class Masked(BaseModel):
    """A text, and its words to mask."""

    model_config = ConfigDict(extra="forbid")
    text: str = Field(description="The (first) text.", examples=["The film was lovely."])
    pair: str | None = Field(None, description="The second text, for a run of pairs.")
    words: list[Word] = Field(max_length=1000, examples=[[{"start": 13, "end": 19}]])


class Prediction(BaseModel):
    """The prediction for a text."""

    prediction: str | list[str] | float = Field(description="A label, several labels (multi-label), or a score.")
    probabilities: dict[str, float] | None = Field(None, description="By label; absent for regression.")
    truncated: bool | None = Field(None, description="True if the text is longer than the run reads; else absent.")
    rejected: bool | None = Field(None, description="Whether it may belong to no class; absent if none is rejected.")
    in_scope_score: float | None = Field(None, description="Rejected if below the threshold of the run; with rejected.")


class Predictions(BaseModel):
    """The predictions for the texts of a request, in their order."""

    predictions: list[Prediction]


class MaskedPredictions(BaseModel):
    """The predictions without and with the words masked, in the same precision."""

    before: Prediction
    after: Prediction
    unread: list[str] = Field(description="Words that the run does not read, since the text is longer than it reads.")


class Explanations(BaseModel):
    """The explanations for the texts of a request, each an object as `attentune explain --format json` prints."""

    explanations: list[dict[str, Any]]


class Health(BaseModel):
    """The server is up, and what it serves."""

    status: str
    version: str
    run: dict[str, Any]


class Error(BaseModel):
    """Why a request was not answered."""

    detail: str


_ERRORS: dict[int | str, dict[str, Any]] = {
    401: {"model": Error, "description": "The API key is missing or wrong."},
    413: {"model": Error, "description": "The request body is too large."},
    422: {"model": Error, "description": "The request is not valid, or has too many or too long texts."},
    503: {"model": Error, "description": "Too many requests wait; the header Retry-After says when to try again."},
    504: {"model": Error, "description": "The answer took too long."},
}


def api_app(
    backend: RunBackend,
    *,
    limits: ServerLimits | None = None,
    api_key: str | None = None,
    hosts: list[str] | None = None,
    log: Callable[[str], None] | None = None,
) -> App:
    """Build the application with all checks; `log` gets a line of JSON for each answered request."""
    limits, facts = limits or ServerLimits(), backend.facts()
    metrics = ServerMetrics({"run": str(facts.get("run")), "kind": str(facts.get("kind")), "version": __version__})
    engine = Engine(backend, limits, on_batch=metrics.count_batch)
    metrics.watch_queues(lambda: engine.batcher.waiting, lambda: engine.explaining)

    @contextlib.asynccontextmanager
    async def run_engine(app: FastAPI) -> AsyncIterator[None]:
        async with engine:
            yield

    app = FastAPIOffline(
        title=f"Attentune: {facts.get('run')}",
        version=__version__,
        description=f"Predictions and explanations. The run {facts.get('run')} ({facts.get('kind')})"
        f" {facts.get('does')}. At most {limits.texts} texts a request, {limits.explain_texts} for explanations, of"
        f" {limits.characters:,} characters each; {limits.body_mb} MB; {limits.timeout_s:g} s.",
        redoc_url=None,
        # `Guard` checks the key; this describes it, so that /docs has a field for it.
        dependencies=[] if api_key is None else [Depends(HTTPBearer(scheme_name="key", auto_error=False))],
        lifespan=run_engine,
    )
    _add_routes(app, engine, limits, metrics)
    _add_page(app, engine, limits, needs_key=api_key is not None)
    _add_error_handlers(app, limits)
    paths = frozenset(route.path for route in app.routes if isinstance(route, Route))

    def answered(scope: Scope, status: int, seconds: float) -> None:
        path = scope["path"]
        metrics.count_request(path if path in paths else "other", status, seconds)
        if log is not None:
            log(_access_line(scope, status, seconds))

    return Guard(
        limited(app, hosts=hosts, body_bytes=limits.body_mb * 2**20),
        api_key=api_key,
        messages={413: limits.body_message},
        count=answered,
    )


def _access_line(scope: Scope, status: int, seconds: float) -> str:
    """Describe a request without its texts: neither its body nor its query, which has the name of a file."""
    client = scope.get("client") or ("",)
    entry = {
        "time": datetime.now(UTC).isoformat(timespec="milliseconds"),
        "client": client[0],
        "method": scope["method"],
        "path": scope["path"],
        "status": status,
        "ms": round(1000 * seconds, 1),
    }
    return json.dumps(entry)


def _add_routes(app: FastAPI, engine: Engine, limits: ServerLimits, metrics: ServerMetrics) -> None:
    backend, facts = engine.backend, engine.backend.facts()
    columns = [extra_kind(setting)[0] for setting in facts.get("columns") or ()]

    @app.get("/health", response_model=Health)
    async def health() -> Response:
        """Return that the server is up, and its model; needs no key."""
        return _json({"status": "ok", "version": __version__, "run": backend.facts()})

    @app.get("/metrics", response_class=Response, responses={401: _ERRORS[401]})
    async def metrics_text() -> Response:
        """Return counters and durations in Prometheus' text format."""
        return Response(metrics.text(), media_type=metrics.content_type)

    @app.post("/predict", response_model=Predictions, responses=_ERRORS)
    async def predict(body: Texts, request: Request) -> Response:
        """Predict texts, together with those of requests that arrive at the same time."""
        limits.check_texts(body.texts, body.pairs, is_pair=backend.is_pair, explains=False)
        answers = await _in_time(request, engine.predict(_rows(body, columns)), limits)
        metrics.count_texts("/predict", len(answers))
        return _json({"predictions": answers})

    @app.post("/explain", response_model=Explanations, responses=_ERRORS)
    async def explain(body: Reasons, request: Request) -> Response:
        """Score how much each word of the texts contributed to the prediction."""
        limits.check_texts(body.texts, body.pairs, is_pair=backend.is_pair, explains=True)
        limits.check_cost(body.steps, body.samples)
        settings = Settings(body.seed, body.steps, body.samples)
        options = {"method": body.method, "target": body.target, "level": body.level, "settings": settings}
        answers = await _in_time(request, engine.explain(_rows(body, columns), **options), limits)
        metrics.count_texts("/explain", len(answers))
        return _json({"explanations": answers})

    @app.post("/mask", response_model=MaskedPredictions, responses=_ERRORS)
    async def mask(body: Masked, request: Request) -> Response:
        """Predict a text without and with words masked."""
        pairs = None if body.pair is None else [body.pair]
        limits.check_texts([body.text], pairs, is_pair=backend.is_pair, explains=True)
        lengths = {"text": len(body.text), "pair": len(body.pair or "")}
        words: list[Span] = [(word.within, word.start, word.end) for word in body.words]
        for number, (within, start, end) in enumerate(words):
            if not start < end <= lengths[within]:
                raise RequestError(
                    422,
                    f"words[{number}]: got characters {start} to {end} of {within}, which has {lengths[within]};"
                    " expected 0 <= start < end <= its length.",
                )
        return _json(await _in_time(request, engine.mask((body.text, body.pair, {}), words), limits))

    @app.post("/file", responses=_ERRORS, openapi_extra=_FILE_BODY)
    async def file(
        request: Request,
        name: str,
        text_column: str | None = None,
        text_pair_column: str | None = None,
        label_column: str | None = None,
        words: bool = False,
    ) -> Response:
        """Predict a file of texts, which is the body; returns `csv` as `attentune predict` writes it, and more."""
        if words and not facts["scores_words"]:
            raise RequestError(
                422,
                "words: this run does not score words when it predicts. Leave words out, or send texts to /explain.",
            )
        columns = {
            "text_column": text_column, "text_pair_column": text_pair_column, "label_column": label_column,
        }  # fmt: skip
        work = engine.file(await request.body(), name, columns, words=words)
        answer = await _in_time(request, work, limits, is_file=True)
        metrics.count_texts("/file", answer["rows"])
        return _json(answer)


def _add_page(app: FastAPI, engine: Engine, limits: ServerLimits, *, needs_key: bool) -> None:
    """Add the page at /, and what only the page asks for."""
    pages = Environment(loader=PackageLoader("attentune.serving", "."), autoescape=True, undefined=StrictUndefined)
    html = pages.get_template("page.html.jinja").render(
        facts=engine.backend.facts(), limits=limits, needs_key=needs_key, version=__version__
    )

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return HTMLResponse(html)

    @app.get("/example", include_in_schema=False)
    async def example(request: Request) -> Response:
        return _json(await _in_time(request, engine.example(), limits))

    @app.get("/errors", include_in_schema=False)
    async def errors(request: Request) -> Response:
        return _json(await _in_time(request, engine.errors(), limits))


def _rows(body: Texts, known: Sequence[str]) -> list[Row]:
    """Return the texts of a request with their cells of the columns beside the text, which the run knows."""
    seconds, columns = itertools.repeat(None) if body.pairs is None else body.pairs, body.columns or {}
    for name, cells in columns.items():
        if name not in known or len(cells) != len(body.texts):
            raise RequestError(
                422,
                f"columns: got {len(cells)} cells of {name!r} for {len(body.texts)} texts, expected a cell for each"
                f" text of any of {', '.join(known) or 'no columns: the run reads texts only'}.",
            )
        # A batch would count the row of a bad cell among those of other requests.
        Table("columns", (name,), {name: [as_cell(cell) for cell in cells]}, len(cells)).values(name)
    by_row = ({name: values[row] for name, values in columns.items()} for row in range(len(body.texts)))
    return list(zip(body.texts, seconds, by_row, strict=False))


def _json(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    body = json.dumps(content, allow_nan=False, separators=(",", ":"))
    return Response(body, status, headers, media_type="application/json")


async def _in_time(request: Request, answer: Awaitable[T], limits: ServerLimits, *, is_file: bool = False) -> T:
    """Wait for an answer; a client that goes cancels it. A file may take longer: its rows are limited instead."""
    timeout_s = None if is_file else limits.timeout_s
    work, gone = asyncio.ensure_future(answer), asyncio.create_task(_disconnected(request))
    try:
        await asyncio.wait({work, gone}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        if gone.done():
            raise RequestError(499, "The client has gone.")  # nginx's status; nobody reads it
        raise RequestError(
            504,
            f"The answer was not ready within {limits.timeout_s:g} s, the time limit of this server. Send fewer or"
            " shorter texts a request (explanations: a faster method, or fewer samples), or start the server with a"
            " higher --timeout_s.",
        )
    finally:
        for task in (work, gone):
            task.cancel()
        await asyncio.gather(work, gone, return_exceptions=True)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _add_error_handlers(app: FastAPI, limits: ServerLimits) -> None:
    @app.exception_handler(RequestError)
    async def refused(request: Request, error: RequestError) -> Response:
        retry = {} if error.retry_after_s is None else {"retry-after": str(error.retry_after_s)}
        return _json({"detail": str(error)}, error.status, retry)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return _json({"detail": " ".join(_problem(problem) for problem in error.errors()[:5])}, 422)

    @app.exception_handler(AttentuneError)
    async def mistaken(request: Request, error: AttentuneError) -> Response:
        return _json({"detail": str(error)}, 500 if isinstance(error, NonFiniteLossError) else 422)

    @app.exception_handler(HTTPException)
    async def other(request: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, BodyTimeoutError):
            return _json({"detail": str(error.__cause__)}, 408)
        details = {
            404: "There is nothing here. The API is described at /docs.",
            405: f"{request.method} does not work here. The API is described at /docs.",
            413: limits.body_message,
        }
        return _json({"detail": details.get(error.status_code, error.detail)}, error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def bug(request: Request, error: Exception) -> Response:  # uvicorn prints the traceback
        return _json({"detail": _BUG}, 500)


def _problem(problem: Mapping[str, Any]) -> str:
    """Return one sentence for a problem that pydantic found."""
    place = ".".join(map(str, problem["loc"][1:]))
    if problem["type"] == "extra_forbidden":
        return f"{place}: unknown field; see /docs for the fields."
    if problem["type"] == "json_invalid":
        return f"The body is not valid JSON: {problem['ctx']['error']} (at character {problem['loc'][-1]})."
    if not place:
        return 'The body: expected a JSON object such as {"texts": ["The film was lovely."]}, of type application/json.'
    return f"{place}: {problem['msg'][:1].lower()}{problem['msg'][1:]}."
