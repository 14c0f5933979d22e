"""The sheets of a spreadsheet as JSON, a program: damage that ends it, or takes all memory, does not end the reader.

It imports nothing of the package, so that it starts in a moment.
"""

import datetime
import json
import sys
from typing import Any


def main(path: str, max_bytes: int) -> None:
    """Write the rows of texts by the name of the sheet, or the reason why it cannot be read."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (max_bytes, max_bytes))
    except (ImportError, ValueError, OSError):
        pass  # not everywhere
    import python_calamine

    found: Any = {}
    try:
        with python_calamine.CalamineWorkbook.from_path(path) as book:
            for name in book.sheet_names:
                rows = book.get_sheet_by_name(name).to_python(skip_empty_area=False)
                found[name] = [[_text(cell) for cell in row] for row in rows]
    except BaseException as error:  # of each format its own; a panic of Rust is no Exception
        found = str(error) or type(error).__name__
    json.dump(found, sys.stdout)


def _text(cell: Any) -> str:
    if isinstance(cell, bool):
        return "true" if cell else "false"
    if isinstance(cell, float) and cell.is_integer() and abs(cell) < 1e15:
        return str(int(cell))
    if isinstance(cell, (datetime.date, datetime.time)):
        return cell.isoformat()
    return "" if cell is None or cell != cell else str(cell)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
