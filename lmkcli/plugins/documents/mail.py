"""Mail messages, one in each file (.eml)."""

from lmkcli.data.filetext import FileText
from lmkcli.data.mbox import read_message


def read(data: bytes, encoding: str) -> FileText:
    """Read the subject as title, and the sender, the receiver, the date and the body as text."""
    if not data.strip():
        return FileText("", "")
    message = read_message(data)
    names = {"From": "from", "To": "to", "Date": "date"}
    lines = [f"{name}: {message[key]}" for name, key in names.items() if message[key]]
    return FileText(message["title"], "\n".join([*lines, "", message["text"]]).strip())
