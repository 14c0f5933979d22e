"""Self-Supervised Attention (SSA) for the `Trainer` of transformers.

Start with `callback.SSACallback`; `building.new_model` builds the model and `collator` adds token labels to batches.
"""
