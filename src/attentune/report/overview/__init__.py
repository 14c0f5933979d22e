"""What only the HTML report shows: the answer, the heat map, charts as inline SVG, the rows that methods get wrong.

Start with `contents.make_overview`. `charts` computes positions; the templates in `templates/overview` draw them.
"""
