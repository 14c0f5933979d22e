"""Reader of a folder of text files by class: `reviews/good/1.txt`, `reviews/bad/7.txt`."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from attentune.data.readers.formats import find_encoding
from attentune.data.readers.table import Table
from attentune.errors import DataError

_TEXT, _LABEL, _FILE = "text", "label", "file"


def is_class_folder(path: Path) -> bool:
    """Return whether the folder has folders with text files."""
    return path.is_dir() and any(path.glob("*/*.txt"))


def parse_class_folder(path: Path, keep: Collection[str] | None, max_bytes: float) -> Table:
    """Read the .txt files of each folder in a folder, in the order of their names."""
    files = sorted(path.glob("*/*.txt"))
    texts, size, encodings = [], 0, set[str]()
    for file in files:
        try:
            content = file.read_bytes()
        except OSError as error:
            raise DataError(f"cannot be read: {error.strerror or error}.", path=file) from error
        size += len(content)
        if size > max_bytes:
            raise DataError(f"its files hold more than the {max_bytes} bytes that are read. Divide it.", path=path)
        encoding = find_encoding(content)
        try:
            texts.append(content.decode(encoding or "utf-8").removeprefix("\ufeff").replace("\r\n", "\n").strip())
        except UnicodeDecodeError as error:
            raise DataError(
                f"byte {error.start + 1} is 0x{content[error.start]:02x}, which is not UTF-8. Save the file as UTF-8.",
                path=file,
            ) from error
        encodings.add(encoding or "utf-8")
    other = sorted(encodings - {"utf-8"})
    notes = (f"{path}: {len(files):,} text files are read, some of them as {', '.join(other)}.",) if other else ()
    columns = {
        _FILE: tuple(str(file.relative_to(path)) for file in files),
        _TEXT: tuple(texts),
        _LABEL: tuple(file.parent.name for file in files),
    }
    kept = {name: cells for name, cells in columns.items() if keep is None or name in keep}
    return Table(str(path), tuple(columns), kept, len(files), notes=notes)
