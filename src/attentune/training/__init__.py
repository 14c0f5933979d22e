"""Trains one run: from a configuration to a finished run folder.

Start with `train.train`; then `inputs`, `components`, `loop`, `finalize`. `multitask/` trains several tasks.
"""
