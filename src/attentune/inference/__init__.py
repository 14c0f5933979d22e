"""Predicting and scoring with a trained model.

Start with `predictor`: a saved run as an object. `scoring` runs the model over rows and scores splits, `predictions` is
the file of predictions and what they get right and wrong, `streaming` predicts files of any length.
"""
