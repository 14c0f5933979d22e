"""Measurements and checks on a GPU; on a CPU with a tiny encoder, as a test of the program.

`workload` has the device, the texts and the encoders; `training`, `prediction`, `correctness` and `processes` have the
parts; `__main__` runs them, prints their tables and writes their records. Start with `__main__`.
"""
