"""Many runs.

`comparison/`: methods by tasks by seeds; `search/`: hyper-parameters; `execution/`: worker processes.
"""
