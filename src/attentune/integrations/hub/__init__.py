"""Export runs as folders that work without Attentune, and upload them to the Hugging Face hub.

Start with `export` for transformers: `stock` maps a model onto a class of transformers, otherwise the modules of the
model are written as flat files. `sentences` is for sentence-transformers and SetFit. `publish` adapts the model card
and uploads.
"""
