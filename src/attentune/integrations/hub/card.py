"""The model card of an export: that of the run, with how to load the exported folder."""

from __future__ import annotations

import re
from pathlib import Path

from attentune.io.files import write_text
from attentune.training.model_card import CARD_FILE, HOME, NEEDS_ATTENTUNE, USE_HEADING

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
SENTENCE_USE = """With sentence-transformers; FOLDER is this folder, or its name on the hub.

```python
from sentence_transformers import SentenceTransformer

model = SentenceTransformer("FOLDER")
vectors = model.encode(["A text.", "Another one."])
print(model.similarity(vectors, vectors))
```

If the run scored pairs by this similarity, its score is scale x similarity + offset, with the numbers in
`export.json`; of two classes, this is the logit of the second one."""
SETFIT_USE = """With SetFit; FOLDER is this folder, or its name on the hub. The classifier is a pickle, which runs code
when it is loaded: load only folders that you trust.

```python
from setfit import SetFitModel

model = SetFitModel.from_pretrained("FOLDER")
print(model.predict(["A text."]), model.predict_proba(["A text."]))
```"""
_ONNX_PYTHON = f"""In Python with onnxruntime, without PyTorch: `onnx/model.onnx`, `tokenizer.json` and `export.json`,
see [Exporting]({HOME}/exporting/)."""
# The pipeline of transformers.js takes single texts.
ONNX_PAIR_USE = _ONNX_PYTHON
ONNX_USE = f"""With transformers.js; FOLDER is this folder, or its name on the hub.

```js
import {{ pipeline }} from "@huggingface/transformers";

const classify = await pipeline("text-classification", "FOLDER", {{ dtype: "fp32" }});
console.log(await classify("A text.", {{ top_k: null }}));
```

{_ONNX_PYTHON}"""
_PAIR = '{"text": "A first text.", "text_pair": "A second one."}'


def copy_card(run: Path, folder: Path, use: str, *, pair: bool, library: str = "transformers") -> None:
    """Write the model card of an export; nothing if the run has no card."""
    source = run / CARD_FILE
    if source.is_file():
        text = source.read_text(encoding="utf-8")
        write_text(
            folder / CARD_FILE, card_of_export(text, use.replace("{given}", _PAIR if pair else '"A text."'), library)
        )


def card_of_export(card: str, use: str, library: str) -> str:
    """Return the card with another library and section on its use, and without the limit that it needs Attentune."""
    heading = re.escape(USE_HEADING)
    card = re.sub(r"^library_name: attentune$", f"library_name: {library}", card, count=1, flags=re.MULTILINE)
    card = card.replace(f"- {NEEDS_ATTENTUNE}\n", "")
    return re.sub(
        rf"^{heading}\n.*?(?=^## |\Z)",
        lambda match: f"{USE_HEADING}\n\n{use}\n\n",
        card,
        count=1,
        flags=re.MULTILINE | re.DOTALL,
    )
