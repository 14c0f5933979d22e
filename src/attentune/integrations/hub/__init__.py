"""Export runs as folders that transformers loads without Attentune, by `trust_remote_code`.

Start with `export`; `remote_code` writes the modules of the model as flat files.
"""
