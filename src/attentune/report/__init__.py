"""Reports of comparisons as HTML, Markdown or LaTeX, and explanations as pages. Never imports torch.

Start with `contents.make_report`: a `document.Report` of sections with sentences, tables and figures, in order. `load`
reads the records, `analysis` compares the methods, `tables` and `details` make tables, `charts` draws with Matplotlib,
and `writing` renders the report with three templates. `explanations` shows explanations of predictions.
"""
