"""`attentune serve`: a page for trying a saved run, and a JSON API that predicts and explains with it.

Start with `api` (the routes and the page), then `engine` (joins waiting requests into batches, one thread computes) and
`backend` (what the run answers). `guard` says who may ask; `page.html.jinja` and `page.js` are the page.
"""
