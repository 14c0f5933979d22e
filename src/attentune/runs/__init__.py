"""Many runs: their grid, records and driver, with comparisons and searches on top.

`grid` lists runs, `worker` executes one, `driver` all of a command, and `records` keeps what came out. Start with
`compare.compare` or `search.search`.
"""
