"""Reports of comparisons as HTML, Markdown, LaTeX or CSV, and explanations as pages and figures. Never imports torch.

Start with `sections.contents.make_report`: what a report contains, in order. `load` reads the records, `analysis`
compares the methods, `sections` turns the results into tables and figures, `figures` draws with Matplotlib, `overview`
makes what only the page shows, and `page` and `writing` render the files from `templates`. `explanations` renders
explanations of predictions.
"""
