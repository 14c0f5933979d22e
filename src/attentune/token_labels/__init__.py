"""Token labels for Self-Supervised Attention: the generators, and the plans of epochs that they make.

Start with `base.LabelGenerator`; `planner` lists the generators by name.
"""
