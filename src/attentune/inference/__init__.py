"""Predicting and scoring with a trained model.

Start with `predictor`: a saved run as an object. `scoring` runs the model over rows and scores splits, `evaluation`
lists what is right and wrong, `predictions` is the file of predictions, `streaming` predicts files of any length.
"""
