"""Export runs as folders that work without Attentune, and upload them to the Hugging Face hub.

Start with `export` for transformers: `stock` maps a model onto a class of transformers, `remote_code` writes the
modules of the model as flat files. `sentences` is for sentence-transformers and SetFit, on the encoders that `encoders`
finds. `card` adapts the model card, `push` uploads.
"""
