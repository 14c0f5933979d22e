"""Self-Supervised Attention in transformers' own `Trainer`: a callback, a collator, a model. Start with `callback`."""
