"""The model class for Hugging Face transformers, its four slots, building, saving and loading.

Start with `modeling.AttentuneForSequenceClassification`, then `build.build_model`.
"""
