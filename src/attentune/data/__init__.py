"""From files to checked, tokenised, batched rows.

Start with `load.load_data`, the entry for any dataset; `dataset` defines what it returns, `tokenization` and `batching`
turn that into tensors. `readers/` parses files, `checks/` is `attentune doctor`, `builtin_tasks/` has one YAML file per
built-in task.
"""
