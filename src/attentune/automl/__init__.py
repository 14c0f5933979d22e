"""`attentune auto`: the best model for some rows within a time limit.

Start with `auto`, which tells the whole story. `portfolio` lists the members that are tried, `budget` plans time
and updates, `members` trains a fold, `delivery` fuses what is complete and writes the model.
"""
