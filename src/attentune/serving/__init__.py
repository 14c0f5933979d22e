"""`attentune serve`: a JSON API that predicts and explains with a saved run.

Start with `api` (the routes), then `engine` (the run in a thread of its own) and `batcher` (joins waiting requests).
`guard`, `timeouts` and `server` also protect and run the web page of `attentune app`.
"""
