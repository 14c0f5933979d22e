"""Attentune in other libraries and formats: scikit-learn, transformers' Trainer, the Hugging Face hub, ONNX, and the
program that the authors of Self-Supervised Attention released.
"""
