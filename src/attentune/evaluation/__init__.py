"""Predicting with a model, and scoring what it predicted."""
