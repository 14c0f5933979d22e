"""`attentune app`: a local web page that predicts and explains texts with a saved run.

Start with `service` (what the page answers), then `page` (Gradio's fields) and `server` (uvicorn and its protection).
"""
