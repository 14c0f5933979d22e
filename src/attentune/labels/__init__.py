"""Help with labels: which labels are probably wrong, and which texts to label next.

Start with `label_check.check_labels` (`attentune doctor --labels`) and `suggest.suggest_texts` (`attentune suggest`).
"""
