"""Lists the documentation's commands that tests do not run, and the changes that make others smaller."""

from __future__ import annotations

import re

# Maps a command, as written in the documentation, to the reason why it is not run. A test fails on unused entries.
NOT_RUN = {
    "attentune COMMAND '[flags]'": "a form, not a command",
    "attentune COMMAND --help": "a form, not a command",
    "make demo": "sets up an environment from the package index",
    "make test": "would run the tests within themselves",
    "make setup": "sets up an environment from the package index",
    "source .venv/bin/activate": "there is no such environment in the folder of a test",
    "pip install -e '.[embedded]'": "needs the package index",
    "pip install -c requirements/constraints.txt -e '.[embedded,dev]'": "needs the package index",
    "uv sync --extra embedded --extra dev": "needs the package index",
    "pip install 'attentune[serve]'": "needs the package index",
    """curl localhost:8000/predict --json '{"texts": ["The film was lovely.", "What a mess."]}'""": (
        "needs the server of the line before; tests/cli/test_serve.py sends requests"
    ),
    "docker build -t attentune-serve .": "needs docker",
    "docker run -p 8000:8000 -e ATTENTUNE_API_KEY -v ./runs/reviews:/run-folder:ro attentune-serve": "needs docker",
    "pip install 'attentune[export]'": "needs the package index",
    "hf auth login": "needs an account of the hub",
    "attentune export runs/reviews --format transformers --push_to_hub me/reviews --private": (
        "needs the hub; see tests/integrations/hub/test_push.py"
    ),
    "attentune export runs/cola --format transformers --push_to_hub me/cola --private": (
        "needs the hub; see tests/integrations/hub/test_push.py"
    ),
    "pip install ./examples/layer_attention": "needs the package index; the test writes what it makes",
    "pip install 'attentune[peft]'": "needs the package index",
    "pip install jupyterlab": "needs the package index",
    "jupyter lab examples/notebooks/first-model.ipynb": "opens a browser; see tests/test_notebooks.py",
    ".venv/bin/pre-commit install": "would change the checkout",
    "docker run --rm --network none --user 1000 -v '$PWD/model:/model' IMAGE python /model/convert.py": (
        "needs docker; the script itself is run"
    ),
    "accelerate launch --multi_gpu --num_processes 4 -m attentune.cli.main train --task rte --data_dir glue_data "
    "--output_dir runs/rte": "needs four GPUs",
    "ray start --head": "would leave a cluster; see tests/execution/test_clusters.py",
    "attentune compare --tasks cola,rte --presets bert,sesame --executor ray --ray_address auto "
    "--output_dir comparisons/first": "needs the cluster of the line before",
    "attentune search --task cola --preset bert --search training.learning_rate=1e-5,1e-4 --executor slurm "
    "--slurm partition=cpu --slurm timeout_min=60 --output_dir searches/cola": "needs SLURM; see test_clusters.py",
}

# Maps the first words of a command to flags that are appended: fewer runs, but at least one of each kind.
ADDED = {
    "attentune serve": ["--port", "0"],
    "attentune auto": ["--portfolio", "majority,tfidf-linear", "--time_limit", "1h", "--jobs", "1"],
    "attentune demo": ["--presets", "bert,ssa-hybrid", "--num_train_epochs", "0.2", "--train_size", "80"],
    "attentune shortcut": ["--presets", "bert,ssa-hybrid", "--num_train_epochs", "0.2"],
    "attentune faithfulness": ["--max_samples", "4", "--draws", "2", "--beam", "2"],
    "attentune reproduce ": ["--seeds", "1"],
    "attentune compare": ["--seeds", "1,"],
    "attentune compare-runs": [],
    "attentune compare --folds": ["--folds", "2", "--seeds", "1"],
    "attentune search": ["--trials", "2", "--seeds", "1"],
    "torchrun": [],
}

# Replacements in Python code, where no appended flag can override an argument.
_FEW = 'portfolio=["majority", "tfidf-linear"]'
PYTHON = {
    'AttentuneAuto(time_limit="10m"': f"AttentuneAuto({_FEW}",
    "time_limit_s=600": _FEW,
    "seeds=5": "seeds=[1]",
    "trials=20": "trials=2",
    '"/model/': '"model/',
}


def added(command: str) -> list[str]:
    """Return the flags that are appended to a command."""
    best = ""
    for start in ADDED:
        first, _, flag = start.partition(" --")
        if command.startswith(first) and (not flag or f"--{flag} " in f"{command} ") and len(start) > len(best):
            best = start
    return ADDED.get(best, [])


def smaller(code: str) -> str:
    """Return a block of Python code with the replacements of `PYTHON` applied."""
    for long, short in PYTHON.items():
        code = re.sub(rf"{re.escape(long)}\b" if long[-1].isalnum() else re.escape(long), lambda _, s=short: s, code)
    return code
