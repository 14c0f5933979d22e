"""Predicting and scoring with a trained model.

Start with `predictor`: a saved run as an object. `scoring` runs the model over rows, `evaluator` scores splits during
training, `predictions` defines the format of `predictions_SPLIT.csv`, `streaming` predicts files of any length.
"""
