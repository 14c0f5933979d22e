"""Many runs: `comparison/` (every method on every task with every seed), `search/` (hyper-parameters), `execution/`
(the processes that train them).
"""
