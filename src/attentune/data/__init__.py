"""From files to checked, tokenised, batched rows.

Start with `load.load_data`, the entry for any dataset; `dataset` defines what it returns, `tokenization` makes
batches of it. `files` reads files of all kinds, `doctor` is `attentune doctor`, `builtin_tasks/` has the tasks.
"""
