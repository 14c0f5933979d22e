"""The demo (`attentune demo`): the main job on real sentences, and an experiment with a planted shortcut.

Start with `run.run_demo`; `domains` reads the sentences, `leaderboard` scores and shows the methods, `shortcut` is the
experiment of `attentune demo --shortcut`.
"""
