"""What the benchmarks share: paths, Markdown tables, runs in processes of their own, and encoders to measure."""

import atexit
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from attentune.results import versions

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "results"
RECORDS = RESULTS / "bench"


def data_dir() -> Path:
    """Return the folder of the data sets: $ATTENTUNE_DATA, by default ../shared/data beside the checkout."""
    return Path(os.environ.get("ATTENTUNE_DATA") or ROOT.parent / "shared" / "data").absolute()


def named_data_dir() -> Path:
    """Return the same path relative to the checkout, so that commands in records name no path of one machine."""
    return Path(os.path.relpath(data_dir(), ROOT))


def command_of(module: str, arguments: Sequence[str] = ()) -> str:
    """Return the command that made a record."""
    return " ".join(["python", "-m", module, *arguments])


def write_record(file: Path, record: dict[str, Any]) -> None:
    """Write a record as JSON, with the processor and the versions of what it depends on."""
    file.parent.mkdir(parents=True, exist_ok=True)
    facts = {**record, "processor": processor(), "versions": versions()}
    file.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


def write_line(file: Path, record: dict[str, Any]) -> None:
    """Write a record as a line of a file with one for each module, named by its command, name, processor and GPU."""
    record = {**record, "processor": processor(), "versions": versions()}
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    kept = [line for line in lines if _made_by(json.loads(line)) != _made_by(record)]
    kept.append(json.dumps(record))
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(kept) + "\n", encoding="utf-8")


def _made_by(record: dict[str, Any]) -> tuple[str | None, ...]:
    """Return the module, the record's name, the processor, which older records do not name, and the GPU, if any."""
    return str(record["command"]).split()[2], *(record.get(key) for key in ("record", "processor", "device"))


def processor() -> str:
    """Return the processor's name and what makes bf16 products fast, such as "AMD EPYC, avx512_bf16"."""
    from attentune.nn.compiled.native import processor_name

    words = processor_name().split()
    lines = [line for line in processor_name().splitlines() if line.startswith("model name")]
    fast = [flag for flag in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if flag in words]
    return ", ".join([*(line.split(":", 1)[1].strip() for line in lines), *fast[:1]])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "|---" * len(header) + "|"]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def one_run(module: str, *arguments: object) -> dict[str, Any]:
    """Run a module in a process of its own; return the JSON of its last line, or the reason of its failure."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return dict(json.loads(done.stdout.strip().splitlines()[-1]))
    return {"reason": (done.stderr.strip().splitlines() or ["no message"])[-1]}


def interleaved(
    run: Callable[[str], dict[str, Any]], contenders: Iterable[str], repeats: int, once: Collection[str] = ()
) -> dict[str, list[dict[str, Any]]]:
    """Run each contender `repeats` times, or `once`: one run of each in every repeat, so that no drift favours any.

    A contender that fails, with a `reason`, is not run again.
    """
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in contenders}
    for _ in range(repeats):
        for name, own in runs.items():
            if not own or ("reason" not in own[0] and name not in once):
                found = run(name)
                own[:] = [found] if "reason" in found else [*own, found]
    return runs


def medians(runs: Mapping[str, list[dict[str, Any]]], references: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Return each contender's medians, with those of the ratios of its speed to each reference's in the same repeat."""
    speeds = {name: [run["tokens"] / run["seconds"] for run in own if "seconds" in run] for name, own in runs.items()}
    made: dict[str, dict[str, Any]] = {}
    for name, own in runs.items():
        if "reason" in own[0]:
            made[name] = own[0]
            continue
        pairs = {key: zip(speeds[name], speeds.get(other, []), strict=False) for key, other in references.items()}
        ratios = {key: [mine / theirs for mine, theirs in both] for key, both in pairs.items()}
        made[name] = {
            "tokens_per_second": round(statistics.median(speeds[name])),
            "texts_per_second": round(statistics.median(run["texts"] / run["seconds"] for run in own)),
            **{key: round(statistics.median(found), 3) for key, found in ratios.items() if found},
            "seconds": round(statistics.median(run["seconds"] for run in own), 2),
            "peak_memory_mib": round(statistics.median(run["peak_memory_bytes"] for run in own) / 2**20),
            "score": round(statistics.median(run["score"] for run in own), 3),
        }
    return made


def lines_of(made: Mapping[str, dict[str, Any]], columns: Sequence[str]) -> list[str]:
    """Return a Markdown table of facts by name, and the reasons of what has none."""
    rows = [[name, *(str(own.get(column, "")) for column in columns)] for name, own in made.items()]
    reasons = [f"{name}: {own['reason']}" for name, own in made.items() if "reason" in own]
    return table(["", *(column.replace("_", " ") for column in columns)], rows) + (["", *reasons] if reasons else [])


def use_chosen_clock() -> None:
    """If $ATTENTUNE_BENCH_CLOCK is "cpu", measure processor time instead of elapsed time in this process.

    They are equal on one thread of a quiet machine, and nearly so where others use it too.
    """
    if os.environ.get("ATTENTUNE_BENCH_CLOCK") == "cpu":
        time.perf_counter = time.process_time


def built_trainer(config: Any) -> Any:
    """Return the `Trainer` of a configuration, as `attentune.train` builds it; nothing is shown."""
    from attentune.training.building import load_inputs
    from attentune.training.callbacks import ProgressDisplay
    from attentune.training.prepare import prepare_rows, settle
    from attentune.training.run import build
    from attentune.training.run_folder import config_for_run

    with ProgressDisplay(quiet=True) as display:
        inputs = load_inputs(prepare_rows(config_for_run(config)), display)
        return build(settle(inputs, display))


@functools.cache
def random_encoder(layers: int, **sizes: int) -> Path:
    """Save an encoder like the embedded one, with random weights, until this process ends."""
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    from attentune.models.build import resolve_encoder

    folder = Path(tempfile.mkdtemp(prefix="attentune-encoder-"))
    source = resolve_encoder("embedded")
    config = AutoConfig.from_pretrained(source, num_hidden_layers=layers, **sizes)
    AutoModel.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder
