"""The page of `attentune app`: one's own texts and a saved run, in a browser."""
