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
    """The whole file; its title is the first heading that has words."""
    text = decoded(data, encoding)
    return FileText(heading(text), text)


def heading(text: str) -> str:
    """The first heading of a Markdown text: `# …` outside of code, or a line over `===`."""
    fence, above = "", ""
    for line in text.split("\n"):
        if mark := FENCE.match(line):
            fence = "" if fence == mark[1] else fence or mark[1]
            above = ""
        elif not fence:
            if (found := HEADING.match(line)) and found["title"]:
                return found["title"]
            if above and UNDERLINE.match(line):
                return above
            above = line.strip()
    return ""
