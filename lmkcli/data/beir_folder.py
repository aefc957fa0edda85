"""The names of the files in a folder of BEIR's layout. Reads no file, and imports no large library."""

from pathlib import Path

_COMPRESSED = ("", ".gz", ".zst", ".zip")
# Of corpus and queries; the first existing file is read.
SUFFIXES = (
    *(f"{each}{zipped}" for each in (".jsonl", ".tsv", ".csv", ".json") for zipped in _COMPRESSED),
    ".parquet",
)


def is_beir(folder: Path) -> bool:
    """Return whether a folder contains a corpus or queries, as BEIR's folders do."""
    stems = ("corpus", "queries")
    return any((folder / f"{stem}{suffix}").is_file() for stem in stems for suffix in SUFFIXES)
