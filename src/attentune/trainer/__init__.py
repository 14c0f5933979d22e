"""Self-Supervised Attention in transformers' own Trainer: a model, a callback that labels tokens, a collator."""
