"""Self-Supervised Attention in transformers' own `Trainer`.

Start with `callback.SSACallback`; `building.new_model` builds the model, `collator` the batches with token labels.
"""
