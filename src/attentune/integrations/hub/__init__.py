"""Export runs as folders that transformers loads without Attentune, by `trust_remote_code`.

Start with `export`; `remote_code` turns the model's modules into flat files.
"""
