"""The model class for Hugging Face transformers, its four slots, building, saving and loading.

Start with `modeling.AttentuneForSequenceClassification`, then `build.build_model`. Importing `modeling` registers the
model and its pipeline with transformers.
"""
