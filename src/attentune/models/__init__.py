"""Where Hugging Face meets `nn`: encoder families, the model with its four slots, building and loading."""
