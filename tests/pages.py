"""PDF files, written by hand: no library is needed to make one of a few lines."""

from pathlib import Path

HEAD = 4  # objects before those of the pages
ENCRYPTED = b"<< /Filter /Standard /V 1 /R 2 /P -4 /O <%s> /U <%s> >>" % (
    b"41" * 32,
    b"42" * 32,
)


def pdf(texts: list[str], title: str = "", encrypted: bool = False) -> bytes:
    """A file with a page for each text, in lines; an encrypted one opens with no password."""
    kids = " ".join(f"{HEAD + 1 + 2 * i} 0 R" for i in range(len(texts)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(texts)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        ENCRYPTED if encrypted else f"<< /Title ({_escaped(title)}) >>".encode("latin-1"),
    ]
    for number, text in enumerate(texts):
        objects += [_page(HEAD + 2 + 2 * number), _stream(text)]
    trailer = b"/Root 1 0 R " + (b"/Encrypt 4 0 R /ID [<00> <00>]" if encrypted else b"/Info 4 0 R")
    return pdf_file(objects, trailer)


def save_pdf(path: Path, texts: list[str], title: str = "") -> None:
    """The same into a file."""
    path.write_bytes(pdf(texts, title))


def _page(contents: int) -> bytes:
    return (
        "<< /Type /Page /Parent 2 0 R /MediaBox [0 0 612 792] "
        f"/Contents {contents} 0 R /Resources << /Font << /F1 3 0 R >> >> >>"
    ).encode()


def _stream(text: str) -> bytes:
    lines = " T* ".join(f"({_escaped(line)}) Tj" for line in text.split("\n"))
    drawn = f"BT /F1 12 Tf 14 TL 72 720 Td {lines} ET".encode("latin-1")
    return b"<< /Length %d >>\nstream\n%s\nendstream" % (len(drawn), drawn)


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace("(", r"\(").replace(")", r"\)")


def pdf_file(objects: list[bytes], trailer: bytes) -> bytes:
    """A file with these objects, numbered from 1."""
    out, places = b"%PDF-1.4\n", []
    for number, each in enumerate(objects, 1):
        places.append(len(out))
        out += b"%d 0 obj\n%s\nendobj\n" % (number, each)
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    count = len(objects) + 1
    return out + (
        b"xref\n0 %d\n0000000000 65535 f \n%strailer\n<< /Size %d %s >>\nstartxref\n%d\n%%%%EOF\n"
        % (count, table, count, trailer, len(out))
    )
