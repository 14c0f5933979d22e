"""`attentune app`: a local web page that predicts and explains texts with a saved run.

Start with `service` (answers the requests), then `page` (Gradio's fields) and `server` (uvicorn and its protection).
"""
