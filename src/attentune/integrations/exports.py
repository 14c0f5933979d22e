"""What all exports share: the check in a process without Attentune, and the model card.

Every export has the same steps: write a folder, load it with the other library, compare what that computes with the
run, and leave nothing behind if it differs. An exported folder has weights, settings, tokenizer and card, and no row of
the data.
"""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from attentune.data.dataset import TextRows
from attentune.errors import ExportError
from attentune.io.files import write_text
from attentune.training.card import CARD_FILE, HOME, NEEDS_ATTENTUNE, USE_HEADING

# Called with a message about each step.
Say = Callable[[str], None]
MADE_UP_NAME = "made-up texts"
_MADE_UP = (
    "The film was not dull at all.",
    "",
    "a",
    "Nobody plays the guitar in 1990, and that is that; it is cold, and the train leaves at 7:45!",
    "[SEP] is not what it looks like here </s>",
    "Prices rose by 12 percent. " * 40,
    "Where did you find such good coffee?",
)


def made_up_rows(*, pairs: bool) -> TextRows:
    """Return synthetic texts with edge cases: short, empty, overlong, and with text that looks like special tokens."""
    ids = tuple(map(str, range(len(_MADE_UP))))
    return TextRows(ids, _MADE_UP, (*_MADE_UP[3:], *_MADE_UP[:3]) if pairs else None, None, MADE_UP_NAME)


# Run in a process that cannot import Attentune, as on the machines that will load the folder.
WITHOUT_ATTENTUNE = """
import sys

class Nothing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "attentune":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Nothing())
"""
_AROUND = """
import json
import torch
from safetensors.torch import save_file

folder, inputs, outputs = sys.argv[1:]
with open(inputs, encoding="utf-8") as file:
    inputs = json.load(file)
"""


def computed_elsewhere(folder: Path, program: str, inputs: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Load a folder in a process that cannot import Attentune; return what the program there computes.

    The program has `folder` and the JSON object `inputs`, and ends with `save_file(TENSORS, outputs)`.
    """
    with tempfile.TemporaryDirectory() as place:
        there, back = Path(place) / "inputs.json", Path(place) / "outputs.safetensors"
        there.write_text(json.dumps(inputs), encoding="utf-8")
        command = [sys.executable, "-c", WITHOUT_ATTENTUNE + _AROUND + program, str(folder), str(there), str(back)]
        # Cached copies of a model's code are deleted with the temporary folder; the hub is not contacted.
        around = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": place}
        done = subprocess.run(command, env=around, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            reason = (done.stderr.strip().splitlines() or ["no error output"])[-1]
            raise ExportError(
                f"{folder}: what was written could not be loaded without Attentune ({reason}); nothing is left of it."
                " An encoder that brings code of its own cannot be exported so."
            )
        return dict(load_file(back))


def check_difference(run: Path, library: str, difference: float, allowed: float) -> None:
    """Refuse an export that computes something else than the run."""
    if not difference <= allowed:
        raise ExportError(
            f"{run}: loaded by {library} its outputs differ by {difference:.2g}, expected at most {allowed:.0e};"
            " nothing was written. Please report it."
        )


_PIPELINE = """With transformers; FOLDER is this folder, or its name on the hub.

```python
from transformers import pipeline

classify = pipeline("text-classification", model="FOLDER"{trust})
print(classify({given}, top_k=None, truncation=True))
```"""
STOCK_USE = _PIPELINE.replace("{trust}", "")
REMOTE_USE = (
    _PIPELINE.replace("{trust}", ", trust_remote_code=True")
    + "\n\n`trust_remote_code` runs the code of the model, which is in this folder."
)
# The pipeline of transformers.js takes single texts.
ONNX_PAIR_USE = f"""In Python with onnxruntime, without PyTorch: `onnx/model.onnx`, `tokenizer.json` and `export.json`,
see [Exporting]({HOME}/exporting/)."""
ONNX_USE = f"""With transformers.js; FOLDER is this folder, or its name on the hub.

```js
import {{ pipeline }} from "@huggingface/transformers";

const classify = await pipeline("text-classification", "FOLDER", {{ dtype: "fp32" }});
console.log(await classify("A text.", {{ top_k: null }}));
```

{ONNX_PAIR_USE}"""
_PAIR = '{"text": "A first text.", "text_pair": "A second one."}'


def copy_card(run: Path, folder: Path, use: str, *, pair: bool, library: str = "transformers") -> None:
    """Write the run's card with another library and section on its use; nothing if the run has no card."""
    if not (run / CARD_FILE).is_file():
        return
    use = use.replace("{given}", _PAIR if pair else '"A text."')
    card = (run / CARD_FILE).read_text(encoding="utf-8").replace(f"- {NEEDS_ATTENTUNE}\n", "")
    card = re.sub(r"^library_name: attentune$", f"library_name: {library}", card, count=1, flags=re.MULTILINE)
    section = re.compile(rf"^{re.escape(USE_HEADING)}\n.*?(?=^## |\Z)", re.MULTILINE | re.DOTALL)
    write_text(folder / CARD_FILE, section.sub(lambda _: f"{USE_HEADING}\n\n{use}\n\n", card, count=1))
