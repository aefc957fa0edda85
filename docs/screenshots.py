"""Takes the pictures of the search page: serve.png, serve-document.png and tutorials/search-page.png.

    python docs/screenshots.py

It makes the folder and the indexes of the tutorial "From a folder to a search page", and a third index with
one vector per document. Needs chromium and chromedriver, and the packages selenium and pillow.
"""

import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlencode

from PIL import Image
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))
from tests import tutorials  # noqa: E402

TUTORIAL = DOCS / "tutorials" / "search-page.md"
WHOLE = [
    "encode",
    "folder:python",
    "-m",
    "lmk-minilm",
    "--pool",
    "lmk",
    "--gran",
    "64",
    "-o",
    "whole",
]
COLOURS = 64  # enough for texts; a picture with all colours is three times as large


class Picture(NamedTuple):
    """A picture: its file, the indexes of the server, the part of the address after '#', the final status of
    the page, and the size in pixels.
    """

    file: str
    indexes: tuple[str, ...]
    address: dict[str, str | list[str]]
    status: str
    size: tuple[int, int] = (1200, 800)


QUESTION, DEFAULTS = "leave a loop early", "default value of a parameter"
PICTURES = (
    Picture(
        "tutorials/search-page.png",
        ("meaning", "words"),
        {"q": QUESTION, "view": ["meaning", "words", "fused"]},
        "documents in",
    ),
    Picture(
        "serve.png",
        ("meaning", "words"),
        {"q": DEFAULTS, "doc": "function.md", "index": "meaning", "view": ["meaning"]},
        "Best passage",
        (1000, 560),
    ),
    Picture(
        "serve-document.png",
        ("whole",),
        {"q": DEFAULTS, "doc": "function.md", "index": "whole", "view": ["whole"]},
        "contributes most",
        (1000, 480),
    ),
)


def make_indexes(folder: Path) -> dict[str, str]:
    """Make the indexes of the tutorial, and `whole`, in a folder. Returns the environment of its commands."""
    env = tutorials.environment(folder, None)
    for step in tutorials.steps(TUTORIAL.read_text(encoding="utf-8")):
        if isinstance(step, tutorials.Save):
            (folder / step.name).write_text(step.text, encoding="utf-8")
        elif step.line.startswith("lmk serve"):
            break
        else:
            tutorials.typed(step.line, folder, env)
    subprocess.run([str(folder / "bin" / "lmk"), "-q", *WHOLE], cwd=folder, env=env, check=True)
    return env


@contextmanager
def server(folder: Path, env: dict[str, str], indexes: tuple[str, ...]) -> Iterator[str]:
    """The address of a server."""
    line = [str(folder / "bin" / "lmk"), "serve", *indexes, "--port", "0"]
    running = subprocess.Popen(line, cwd=folder, env=env, stderr=subprocess.PIPE, text=True)
    assert running.stderr is not None
    try:
        yield (
            next(line for line in running.stderr if " at http" in line).split(" at ")[1].split()[0]
        )
    finally:
        running.kill()
        running.wait()


def browser() -> Any:
    """Chromium without a window."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for word in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(word)
    return webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))


def take(opened: Any, url: str, picture: Picture) -> None:
    """Write a picture when its page is complete."""
    width, height = picture.size
    size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    opened.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    opened.get("about:blank")
    opened.get(f"{url}/#{urlencode(picture.address, doseq=True)}")
    status = "return document.getElementById('status').textContent"
    WebDriverWait(opened, 120).until(lambda _: picture.status in opened.execute_script(status))
    shot = Image.open(io.BytesIO(opened.get_screenshot_as_png())).convert("RGB")
    few = shot.quantize(COLOURS, dither=Image.Dither.NONE)
    few.save(DOCS / picture.file, optimize=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="lmk-pictures-") as root:
        environment = make_indexes(Path(root))
        opened = browser()
        try:
            for picture in PICTURES:
                with server(Path(root), environment, picture.indexes) as url:
                    take(opened, url, picture)
        finally:
            opened.quit()
