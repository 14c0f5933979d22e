"""Attribution methods: one importance score per token, from gradients, attention, leave-one-out, LIME, SHAP and others.

Explanations (`explain/`) and token labels (`token_labels/`) call the same functions here. Start with
`registry.METHODS`, the methods by name, and `base.Scorer`, the model and rows that they work on.
"""
