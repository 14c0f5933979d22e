"""Reports of comparisons as HTML, Markdown, LaTeX or CSV. Never imports torch.

Start with `sections.contents.make_report`: what a report contains, in order.
"""
