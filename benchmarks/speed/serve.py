"""Requests a second and latency of `attentune serve`: batched, one at a time, and with a pipeline in its place.

    python -m benchmarks.speed.serve [--clients 1,16,64] [--seconds 2] [--repeats 3]

Trains a `bert` run of the embedded encoder on 64 made-up rows, and starts a server for each contender on loopback:
`attentune serve` in bf16; with batches of one; and transformers' pipeline, with the same weights, behind the
same server, text by text and in the same batches. Clients send a text of 3 to 12 words, wait for the answer and send
the next. Each repeat measures every contender with every number of clients, in turn, so that a machine that others use
too favours none. Figures are medians over the repeats; ratios, of `attentune serve` to the contender, are taken within
a repeat. The servers' processor time depends less on what else the machine does. Writes results/bench/serve.json and
prints a table.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import RECORDS, ROOT, command_of, table, write_record

TARGET = RECORDS / "serve.json"
BATCHED, ALONE = "attentune serve", "attentune serve, one at a time"
PIPELINE_BATCHED, PIPELINE_ALONE = "pipeline, batched", "pipeline, one at a time"
CONTENDERS = (BATCHED, ALONE, PIPELINE_BATCHED, PIPELINE_ALONE)
MAX_BATCH = 32
WORDS = "the a film story was is not never so quite very good bad dull fine great awful music plot end"
TRAIN_ROWS = 64
_MOST_REQUESTS = 20_000  # of one measurement, whatever its time
_HEAD = "POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
_ADDRESS = re.compile(r"at http://127\.0\.0\.1:(\d+)/")


def texts(rows: int) -> Iterator[str]:
    """So many made-up short texts, of 3 to 12 words and a number each."""
    generator, words = random.Random(0), WORDS.split()
    for row in range(rows):
        yield f"{' '.join(generator.choices(words, k=generator.randint(3, 12)))} {row}"


def trained_run(folder: Path) -> Path:
    """Train a run on a few rows, whose labels say nothing: only its speed counts."""
    from attentune.config import load_config
    from attentune.training.callbacks import ProgressDisplay
    from attentune.training.run import train

    rows = [json.dumps({"text": text, "label": random.Random(text).choice("ab")}) for text in texts(TRAIN_ROWS)]
    (folder / "rows.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    settings = {
        "data.train_file": str(folder / "rows.jsonl"),
        "model.name_or_path": "embedded",
        "training.num_train_epochs": 1,
        "training.baselines": "none",
        "training.output_dir": str(folder / "run"),
    }
    train(load_config(overrides=settings, preset="bert"), display=ProgressDisplay(quiet=True))
    return folder / "run"


def serve_pipeline(run: str, max_batch: int) -> None:
    """Serve transformers' pipeline with the weights of a run by the same API, on a free port."""
    from transformers import pipeline

    from attentune.inference.predictor import Predictor
    from attentune.integrations.transformers import stock_model, unavailable_reason
    from attentune.serving.api import api_app
    from attentune.serving.backend import Row, RunBackend
    from attentune.serving.limits import ServerLimits
    from attentune.serving.server import bound_socket, on_sigterm, run_server

    saved = Predictor.load(run).single_model("the benchmark")
    if reason := unavailable_reason(saved.model):
        raise SystemExit(reason)
    classify = pipeline("text-classification", model=stock_model(saved.model), tokenizer=saved.tokenizer, device="cpu")

    class PipelineBackend(RunBackend):
        def predict(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
            found = classify([text for text, *_ in rows], truncation=True, top_k=None, batch_size=max_batch)
            return [
                {"prediction": one[0]["label"], "probabilities": {each["label"]: each["score"] for each in one}}
                for one in found
            ]

    backend = PipelineBackend(saved, name="pipeline")
    backend.predict([("warm-up", None, {})])

    def stop() -> None:
        raise SystemExit(0)

    with on_sigterm(stop), bound_socket("127.0.0.1", 0) as listener:
        app = api_app(backend, limits=ServerLimits(batch=max_batch))
        run_server(app, listener, graceful_s=5, ready=lambda url: print(f"at {url}", file=sys.stderr, flush=True))


def command(contender: str, run: Path) -> list[str]:
    """Return the command of a contender's server."""
    batch = MAX_BATCH if contender in (BATCHED, PIPELINE_BATCHED) else 1
    if contender in (PIPELINE_BATCHED, PIPELINE_ALONE):
        return [sys.executable, "-m", "benchmarks.speed.serve", "--serve_pipeline", str(run), str(batch)]
    own = ["--port", "0", "--max_batch", str(batch)]
    return [sys.executable, "-m", "attentune.cli.main", "serve", str(run), "--precision", "bf16", *own]


@dataclass(frozen=True)
class Server:
    """A server on loopback."""

    pid: int
    port: int

    def cpu_seconds(self) -> float:
        """Return the processor time that it has taken, on all cores; Linux only."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def servers(run: Path) -> Iterator[dict[str, Server]]:
    """Start a server for each contender."""
    with contextlib.ExitStack() as stack:
        started = {}
        for contender in CONTENDERS:
            process = subprocess.Popen(command(contender, run), cwd=ROOT, stderr=subprocess.PIPE, text=True)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
            started[contender] = process
        yield {contender: Server(process.pid, port_of(process)) for contender, process in started.items()}


def port_of(process: subprocess.Popen[str]) -> int:
    """Wait until a server listens; return its port."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if found := _ADDRESS.search(line):
            return int(found[1])
    raise SystemExit(f"a server did not start: {''.join(said)[-2000:]}")


async def one_client(port: int, own_texts: Sequence[str], until: float, latencies: list[float]) -> None:
    """Send a text, wait for the answer, and so on until the time is over."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        for text in itertools.cycle(own_texts):
            if time.perf_counter() >= until or len(latencies) >= _MOST_REQUESTS:
                return
            body = json.dumps({"texts": [text]}).encode()
            began = time.perf_counter()
            head = f"{_HEAD}Content-Length: {len(body)}"
            writer.write(head.encode() + b"\r\n\r\n" + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"content-length: (\d+)", answer, re.IGNORECASE)
            assert length, answer
            assert answer.startswith("HTTP/1.1 200"), answer
            await reader.readexactly(int(length[1]))
            latencies.append(time.perf_counter() - began)
    finally:
        writer.close()


async def load(port: int, clients: int, seconds: float) -> list[float]:
    """Return the latencies of all requests of so many clients."""
    given = list(texts(4096))
    latencies: list[float] = []
    until = time.perf_counter() + seconds
    await asyncio.gather(*(one_client(port, given[n::clients], until, latencies) for n in range(clients)))
    return latencies


def measure(server: Server, clients: int, seconds: float) -> dict[str, float]:
    """Requests a second, latencies and processor time of one contender."""
    asyncio.run(load(server.port, clients, 0.5))
    began, cpu_before = time.perf_counter(), server.cpu_seconds()
    latencies = asyncio.run(load(server.port, clients, seconds))
    taken, cpu_taken = time.perf_counter() - began, server.cpu_seconds() - cpu_before
    half, most = np.percentile(latencies, [50, 95])
    return {
        "requests": len(latencies),
        "requests_per_second": round(len(latencies) / taken, 1),
        "p50_ms": round(1000 * float(half), 1),
        "p95_ms": round(1000 * float(most), 1),
        "cpu_ms_per_request": round(1000 * cpu_taken / len(latencies), 1),
    }


def summary(runs: dict[str, list[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Medians over the repeats, and the median ratio of the first contender to each within a repeat."""
    made = {}
    for name, own in runs.items():
        pairs = list(zip(runs[BATCHED], own, strict=True))
        made[name] = {key: statistics.median(run[key] for run in own) for key in own[0]} | {
            f"{key}_ratio": round(statistics.median(us[key] / it[key] for us, it in pairs), 2)
            for key in ("requests_per_second", "p95_ms", "cpu_ms_per_request")
        }
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", default="1,16,64")
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--serve_pipeline", nargs=2, metavar=("RUN", "BATCH"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve_pipeline:
        serve_pipeline(given.serve_pipeline[0], int(given.serve_pipeline[1]))
        return
    numbers = [int(number) for number in given.clients.split(",")]
    runs: dict[int, dict[str, list[dict[str, float]]]] = {n: {name: [] for name in CONTENDERS} for n in numbers}
    loads = []
    with tempfile.TemporaryDirectory() as folder, servers(trained_run(Path(folder))) as started:
        for _ in range(given.repeats):
            for clients, name in itertools.product(numbers, CONTENDERS):
                runs[clients][name].append(measure(started[name], clients, given.seconds))
                print(f"{name}, {clients} clients: {runs[clients][name][-1]}", file=sys.stderr, flush=True)
            loads.append(round(os.getloadavg()[0], 1))
            write(runs, loads)  # after each repeat, so that a stop loses one only
    for clients, own in runs.items():
        by_name = summary(own)
        columns = list(by_name[BATCHED])
        lines = [[name, *(f"{row[column]:g}" for column in columns)] for name, row in by_name.items()]
        print(f"\n{clients} clients", *table(["", *columns], lines), sep="\n")


def write(runs: dict[int, dict[str, list[dict[str, float]]]], loads: Sequence[float]) -> None:
    """Write the record of the repeats so far."""
    facts = {
        "cores": os.cpu_count(),
        "threads": int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1),
        "load_averages": loads,
        "clients_on": "the same machine, one process",
        "max_batch": MAX_BATCH,
        "clients": {clients: summary(own) for clients, own in runs.items()},
        "runs": runs,
    }
    write_record(TARGET, {"command": command_of("benchmarks.speed.serve", sys.argv[1:]), **facts})


if __name__ == "__main__":
    main()
