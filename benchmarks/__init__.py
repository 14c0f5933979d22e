"""Measurements of this project, by subject: speed, statistics and quality. README.md has the commands and the figures.

Run them from the repository's root as modules: `python -m benchmarks.speed.peers`.
"""
