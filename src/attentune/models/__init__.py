"""Where Hugging Face meets `nn/`: the model class, its four slots, building, saving and loading.

Start with `modeling.AttentuneForSequenceClassification`, then `build.build_model`.
"""
