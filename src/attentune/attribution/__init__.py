"""Attribution methods: one importance score a token, from gradient, attention, leave-one-out, LIME, SHAP and others.

Used by explanations (`explain/`) and token labels (`token_labels/`) alike. Start with `registry.METHODS`.
"""
