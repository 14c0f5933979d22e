"""From files to checked, tokenised, batched rows.

`load.load_data` is the one entry for any data set; `dataset` defines what it returns, `tokenization` and `batching`
turn that into tensors. `readers/` parses files, `checks/` is `attentune doctor`, `builtin_tasks/` describes the known
tasks, one YAML file each.
"""
