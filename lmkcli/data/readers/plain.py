"""Plain text, and Markdown, which is read as it is written."""

import re

from lmkcli.data.filetext import FileText, decoded

FENCE = re.compile(r" {0,3}(```|~~~)")
HEADING = re.compile(r" {0,3}#{1,6}[ \t]+(?P<title>.*?)(?:[ \t]+#+)?[ \t]*$")
UNDERLINE = re.compile(r" {0,3}=+[ \t]*$")


def read_text(data: bytes, encoding: str) -> FileText:
    """The whole file, without a title."""
    return FileText("", decoded(data, encoding))


def read_markdown(data: bytes, encoding: str) -> FileText:
    """The file as it is written; its title is the first heading that has words.

    Where the file begins with it, the text is what follows, so that it is not there twice.
    """
    lines = decoded(data, encoding).split("\n")
    title, place = heading(lines)
    if not "".join(lines[: place.start]).strip():
        del lines[: place.stop]
    return FileText(title, "\n".join(lines).strip("\n"))


def heading(lines: list[str]) -> tuple[str, range]:
    """The first heading of a Markdown text, `# …` outside of code or a line over `===`, and its lines."""
    fence = ""
    for row, line in enumerate(lines):
        if mark := FENCE.match(line):
            fence = "" if fence == mark[1] else fence or mark[1]
        elif fence:
            continue
        elif (match := HEADING.match(line)) and match["title"]:
            return match["title"], range(row, row + 1)
        elif row and UNDERLINE.match(line) and _is_text(lines[row - 1]):
            return lines[row - 1].strip(), range(row - 1, row + 1)
    return "", range(0)


def _is_text(line: str) -> bool:
    return bool(line.strip()) and not FENCE.match(line) and not UNDERLINE.match(line)
