"""The demo (`attentune demo`): the main job on real sentences.

Start with `run.run_demo`; `domains` reads the sentences, `leaderboard` scores and shows the methods.
"""
