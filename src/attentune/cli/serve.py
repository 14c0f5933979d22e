"""`attentune serve`: serve a page for trying a run, and a JSON API."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from attentune.cli.early_checks import check_named
from attentune.cli.flags import Parser, add_precision_flag, names_in, whole_number
from attentune.errors import ConfigError

_PACKAGES = ("fastapi", "fastapi_offline", "prometheus_client", "starlette", "uvicorn")
_EXAMPLES = """examples:
  attentune serve runs/mine
  curl localhost:8000/predict --json '{"texts": ["The film was lovely."]}'
  ATTENTUNE_API_KEY=... attentune serve runs/mine --host 0.0.0.0
  attentune serve runs/mine --max_batch 64 --max_wait_ms 10 --precision bf16-true

The page for typed texts and files is at /. For programs: POST /predict, /explain, /mask, /file, GET /health, GET
/metrics (Prometheus); GET /docs describes them.
Ctrl-C or SIGTERM stops it: requests at work are answered. It stores nothing and contacts no other host."""


def parser() -> Parser:
    """Build the parser of this command."""
    made = Parser(
        prog="attentune serve",
        usage="attentune serve RUN [flags]",
        description="Serve a web page and a JSON API that predict and explain texts with a saved run of any kind.",
        epilog=_EXAMPLES,
    )
    made.add_argument("run", metavar="RUN", help="a run folder or checkpoint")
    made.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    made.add_argument("--port", default="8000", help="the port (default: 8000; 0: any free port)")
    made.add_argument(
        "--api_key",
        metavar="KEY",
        help="the key that requests must have; better in the environment variable ATTENTUNE_API_KEY, since other users"
        " of this machine can see flags (default: none)",
    )
    made.add_argument(
        "--allowed_hosts",
        metavar="NAMES",
        help="further host names that clients may use, comma-separated (default: with a key any, else none)",
    )
    made.add_argument("--max_batch", default="32", help="maximum number of texts in a batch (default: 32)")
    made.add_argument(
        "--max_wait_ms", default="2", help="how long a text waits for others to join its batch (default: 2)"
    )
    made.add_argument("--max_queue", default="1024", help="maximum number of waiting texts (default: 1024)")
    made.add_argument("--max_texts", default="256", help="maximum number of texts of a request (default: 256)")
    made.add_argument("--max_explain_texts", default="16", help="the same for requests for explanations (default: 16)")
    made.add_argument("--max_characters", default="20000", help="maximum length of a text (default: 20000)")
    made.add_argument("--max_body_mb", default="10", help="maximum size of a request body, or of a file (default: 10)")
    made.add_argument("--max_rows", default="10000", help="maximum number of rows of a file (default: 10000)")
    made.add_argument("--timeout_s", default="30", help="maximum time until the answer (default: 30)")
    add_precision_flag(made, predicts=True)
    return made


def run(arguments: Sequence[str]) -> int:
    """Serve until SIGTERM or Ctrl-C; return the exit status."""
    parsed, problems = parser().parse(arguments)
    numbers = _numbers(parsed, problems)
    if numbers["port"] > 65535:
        problems.append(f"--port: got {numbers['port']}, expected a number from 0 to 65535.")
    if numbers["max_queue"] < numbers["max_texts"]:
        problems.append(
            f"--max_queue: got {numbers['max_queue']}, expected at least the {numbers['max_texts']} texts of a request"
            " (--max_texts)."
        )
    missing = [name for name in _PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        problems.append(f"serve: needs {', '.join(missing)}, not installed; run: pip install 'attentune[serve]'")
    if problems:
        raise ConfigError(problems)
    check_named(parsed)

    from attentune.serving.guard import KEY_VARIABLE, check_key
    from attentune.serving.server import bound_socket, on_sigterm, run_server

    source = "--api_key" if parsed.api_key is not None else KEY_VARIABLE
    key = check_key(parsed.api_key if parsed.api_key is not None else os.environ.get(KEY_VARIABLE), source)
    with on_sigterm(_end), bound_socket(parsed.host, numbers["port"]) as listener:
        app = _app(parsed, numbers, key)
        run_server(
            app,
            listener,
            graceful_s=numbers["timeout_s"] + 5,
            ready=lambda url: _announce(url, parsed.host, has_key=key is not None),
        )
    return 0


def _numbers(parsed: Any, problems: list[str]) -> dict[str, int]:
    names = (
        "port", "max_batch", "max_wait_ms", "max_queue", "max_texts", "max_explain_texts", "max_characters",
        "max_body_mb", "max_rows", "timeout_s",
    )  # fmt: skip
    return {
        name: whole_number(
            f"--{name}", getattr(parsed, name), problems, minimum=0 if name in ("port", "max_wait_ms") else 1
        )
        or 0
        for name in names
    }


def _app(parsed: Any, numbers: dict[str, int], key: str | None) -> Any:
    from attentune.inference.predictor import Predictor
    from attentune.serving.api import api_app
    from attentune.serving.backend import RunBackend
    from attentune.serving.limits import ServerLimits

    limits = ServerLimits(
        texts=numbers["max_texts"],
        explain_texts=numbers["max_explain_texts"],
        characters=numbers["max_characters"],
        body_mb=numbers["max_body_mb"],
        rows=numbers["max_rows"],
        timeout_s=numbers["timeout_s"],
        queue=numbers["max_queue"],
    )
    backend = RunBackend(Predictor.load(parsed.run), name=Path(parsed.run).resolve().name, precision=parsed.precision)
    # The first prediction compiles kernels and loads the members of an ensemble; it also shows whether the run works.
    backend.predict([("warm-up", "warm-up" if backend.is_pair else None)])
    hosts = names_in(parsed.allowed_hosts)
    if parsed.host not in ("0.0.0.0", "::", ""):
        hosts.append(parsed.host)
    # A page of another site cannot know the key, so that with a key any host name is safe.
    any_host = key is not None and parsed.allowed_hosts is None
    return api_app(
        backend,
        limits=limits,
        max_batch=numbers["max_batch"],
        max_wait_ms=numbers["max_wait_ms"],
        api_key=key,
        hosts=None if any_host else hosts,
    )


def _announce(url: str, host: str, *, has_key: bool) -> None:
    """Say on standard error where the server is, and who can use it."""
    print(f"The page is at {url}, the description of the API at {url}docs (stop it with Ctrl-C).", file=sys.stderr)
    if host not in ("127.0.0.1", "localhost", "::1"):
        who = "who has the key" if has_key else "who can reach it"
        print(f"It listens on {host or 'all addresses'}: anyone {who} can use it.", file=sys.stderr)
    sys.stderr.flush()


def _end() -> NoReturn:
    raise SystemExit(0)
