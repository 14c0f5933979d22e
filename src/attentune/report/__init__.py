"""Reports of comparisons as HTML, Markdown, LaTeX or CSV, and explanations as pages and figures. Never imports torch.

Start with `contents.make_report`: a `document.Report` of sections with sentences, tables and figures, in order. `load`
reads the records, `analysis` compares the methods, `answer` says which is best, `tables` and `details` make tables,
`charts` draws with Matplotlib, and `writing` renders the report with three templates. `explanations` and `tokens` show
explanations of predictions.
"""
