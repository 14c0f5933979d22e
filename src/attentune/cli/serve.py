"""`attentune serve`: serve a page for trying a run, and a JSON API."""

import os
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from attentune.cli.flags import PRECISION, check, parser_of
from attentune.cli.inputs import check_named, tell
from attentune.plugins import require_extra

_PACKAGES = ("fastapi", "fastapi_offline", "prometheus_client", "starlette", "uvicorn")
_HELP = f"""
attentune serve RUN [flags]

Serve a web page and a JSON API that predict and explain texts with a saved run of any kind.

RUN  a run folder or checkpoint
--host NAME  the address to listen on (default: 127.0.0.1)
--port N>=0  the port; 0: any free port (default: 8000)
--api_key KEY  the key that requests must have; better in the environment variable ATTENTUNE_API_KEY, since other users
    of this machine can see flags
--allowed_hosts NAME,NAME  further host names that clients may use (default: with a key any, else none)
--max_batch N  maximum number of texts in a batch (default: 32)
--max_wait_ms N>=0  how long a text waits for others to join its batch (default: 2)
--max_queue N  maximum number of waiting texts (default: 1024)
--max_texts N  maximum number of texts of a request (default: 256)
--max_explain_texts N  the same for requests for explanations (default: 16)
--max_characters N  maximum length of a text (default: 20000)
--max_body_mb N  maximum size of a request body, or of a file (default: 10)
--max_rows N  maximum number of rows of a file (default: 10000)
--timeout_s N  maximum time until the answer (default: 30)
--access_log  a line of JSON on standard error for each request: time, client, method, path, status, ms
{PRECISION}

examples:
  attentune serve runs/mine
  curl localhost:8000/predict --json '{{"texts": ["The film was lovely."]}}'
  ATTENTUNE_API_KEY=... attentune serve runs/mine --host 0.0.0.0
  attentune serve runs/mine --max_batch 64 --max_wait_ms 10 --precision bf16

The page for typed texts and files is at /. For programs: POST /predict, /explain, /mask, /file, GET /health, GET
/metrics (Prometheus); GET /docs describes them.
Ctrl-C or SIGTERM stops it: requests at work are answered. It stores nothing and contacts no other host."""

parser = parser_of("serve", _HELP)


def run(arguments: Sequence[str]) -> int:
    parsed, problems = parser().parse(arguments)
    if parsed.port > 65535:
        problems.append(f"--port: got {parsed.port}, expected a number from 0 to 65535.")
    if parsed.max_queue < parsed.max_texts:
        problems.append(
            f"--max_queue: got {parsed.max_queue}, expected at least the {parsed.max_texts} texts of a request"
            " (--max_texts)."
        )
    check(problems)
    require_extra("serve", *_PACKAGES, what="serve")
    check_named(parsed)

    from attentune.serving.guard import KEY_VARIABLE, check_key
    from attentune.serving.server import bound_socket, on_sigterm, run_server

    source = "--api_key" if parsed.api_key is not None else KEY_VARIABLE
    key = check_key(parsed.api_key if parsed.api_key is not None else os.environ.get(KEY_VARIABLE), source)
    with on_sigterm(sys.exit), bound_socket(parsed.host, parsed.port) as listener:
        app = _app(parsed, key)
        run_server(
            app,
            listener,
            graceful_s=parsed.timeout_s + 5,
            ready=lambda url: _announce(url, parsed.host, has_key=key is not None),
        )
    return 0


def _app(parsed: Any, key: str | None) -> Any:
    from attentune.explain.explainer import weak_head_note
    from attentune.inference.predictor import Predictor
    from attentune.serving.api import api_app
    from attentune.serving.backend import RunBackend
    from attentune.serving.limits import ServerLimits

    limits = ServerLimits(
        texts=parsed.max_texts,
        explain_texts=parsed.max_explain_texts,
        characters=parsed.max_characters,
        body_mb=parsed.max_body_mb,
        rows=parsed.max_rows,
        timeout_s=parsed.timeout_s,
        queue=parsed.max_queue,
        batch=parsed.max_batch,
        wait_ms=parsed.max_wait_ms,
    )
    saved = Predictor.load(parsed.run)
    tell([note] if (note := weak_head_note(saved)) else [])
    backend = RunBackend(saved, name=Path(parsed.run).resolve().name, precision=parsed.precision)
    # The first prediction compiles kernels and loads the members of an ensemble; it also shows whether the run works.
    backend.predict([("warm-up", "warm-up" if backend.is_pair else None, {})])
    hosts = [*(parsed.allowed_hosts or ()), *([] if parsed.host in ("0.0.0.0", "::", "") else [parsed.host])]
    # A page of another site cannot know the key, so that with a key any host name is safe.
    any_host = key is not None and parsed.allowed_hosts is None
    log = partial(print, file=sys.stderr, flush=True) if parsed.access_log else None
    return api_app(backend, limits=limits, api_key=key, hosts=None if any_host else hosts, log=log)


def _announce(url: str, host: str, *, has_key: bool) -> None:
    tell([f"The page is at {url}, the description of the API at {url}docs (stop it with Ctrl-C)."])
    if host not in ("127.0.0.1", "localhost", "::1"):
        who = "who has the key" if has_key else "who can reach it"
        tell([f"It listens on {host or 'all addresses'}: anyone {who} can use it."])
