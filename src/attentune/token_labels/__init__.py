"""Token labels for Self-Supervised Attention: the generators, and the plan of an epoch that they make.

Start with `base.LabelGenerator`; `registry` lists the generators by name.
"""
