"""`attentune app`: a local web page that explains predictions of a saved run."""
