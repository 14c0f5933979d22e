"""File readers: CSV, TSV, JSON, JSON lines, Parquet and Hugging Face data sets into `table.Table`.

Start with `read.read_table`. Errors name the file and the line.
"""
