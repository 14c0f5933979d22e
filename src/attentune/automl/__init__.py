"""`attentune auto`: the best model for some rows within a time limit.

Start with `driver`, which tells the whole story. `portfolio` lists the members that are tried, `budget` plans time and
memory, `members` trains them on folds in worker processes, `leaderboard` shows what came out.
"""
