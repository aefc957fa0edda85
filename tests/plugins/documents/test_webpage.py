"""HTML pages."""

import contextlib
from pathlib import Path
from random import Random

import pytest

from lmkcli.errors import DataError
from tests import damage

pytest.importorskip("inscriptis")
from lmkcli.plugins.documents.web_encodings import LABELS
from lmkcli.plugins.documents.web_page import read

PAGE = """<!DOCTYPE html><html><head><title> A  title
</title><style>p { color: red }</style><script>var hidden = 1</script></head><body>
<h1>Heading</h1><p>One <b>w</b>ord &amp; an&nbsp;other.<!-- not this --><p style="display: none">nor that</p>
<ul><li>first<li>second</ul><table><tr><td>left</td><td>right</td></tr></table></body></html>"""


def test_the_text_is_that_of_a_browser() -> None:
    title, text = read(PAGE.encode(), "utf-8")
    assert title == "A title"
    assert text.split() == "Heading One word & an other. * first * second left right".split()
    assert "\n" in text


@pytest.mark.parametrize(
    ("page", "title"),
    [
        ("<h1>A <b>bold</b> one</h1><p>x", "A bold one"),
        ("<title></title><h1>Heading</h1>", "Heading"),
        ("<p>nothing", ""),
        ("<p>only words", ""),
    ],
)
def test_without_a_title_the_first_heading_is_the_title(page: str, title: str) -> None:
    assert read(page.encode(), "utf-8").title == title


@pytest.mark.parametrize(
    ("declared", "encoding"),
    [
        ('<meta charset="utf-8">', "utf-8"),
        ("<meta charset=iso-8859-1>", "cp1252"),
        ('<meta http-equiv="Content-Type" content="text/html; charset=Shift_JIS">', "shift_jis"),
        ("<?xml version='1.0' encoding='KOI8-R'?>", "koi8-r"),
        ("<meta charset=utf-16>", "utf-8"),
        ("", "utf-8"),
        ("<meta charset=nonsense>", "utf-8"),
    ],
)
def test_the_declared_encoding_is_used(declared: str, encoding: str) -> None:
    word = {"shift_jis": "日本", "koi8-r": "слово"}.get(encoding, "é")
    assert read(f"{declared}<p>{word}".encode(encoding), "utf-8").text == word


@pytest.mark.parametrize(
    ("declared", "data", "word"),
    [
        ("<meta charset=iso-8859-1>", b"\x93\xe9\x81\x94", "\u201cé\u201d"),
        ("<meta charset=US-ASCII>", b"\x80", "€"),
        ("<meta charset=x-user-defined>", b"\xe9", "é"),
        ("<meta charset=iso-8859-9>", b"\x80\xf0", "€ğ"),
        ("<meta charset=gb2312>", "镕".encode("gbk"), "镕"),
        ("<meta charset=shift_jis>", "①".encode("cp932"), "①"),
        ("<meta charset=ks_c_5601-1987>", "똠".encode("cp949"), "똠"),
        ("<meta charset=x-sjis>", "日".encode("cp932"), "日"),
        ("<meta charset=windows-874>", b"\xa1\x85", "ก…"),
        ("<meta charset=x-mac-roman>", b"\x8e", "é"),
        ("<meta charset=unicode>", "é".encode(), "é"),
        ("<meta charset=utf-7>", "+AOk- é".encode(), "+AOk- é"),  # no browser knows it
        ("<meta charset=unicode_escape>", "\\n é".encode(), "\\n é"),  # a codec of Python
        ("<!-- <meta charset=koi8-r> --><meta charset=utf-8>", "é".encode(), "é"),
        ("<script charset=koi8-r></script>", "é".encode(), "é"),
        ("<meta name=x content='charset=koi8-r'><meta charset=utf-8>", "é".encode(), "é"),
        ("<META CONTENT='text/html;charset=\"koi8-r\"' HTTP-EQUIV=Content-Type>", b"\xc1", "а"),
        ("<meta name=x content='a>b'><meta\ncharset = 'koi8-r' />", b"\xc1", "а"),
        ('<?xml version="1.0" encoding="iso-8859-1"?>', b"\x93\xe9", "\u201cé"),
    ],
)
def test_a_declaration_means_what_it_means_in_a_browser(
    declared: str, data: bytes, word: str
) -> None:
    assert read(declared.encode() + b"<p>" + data, "utf-8").text == word


def test_all_labels_have_a_codec_that_extends_ascii() -> None:
    text = "".join(map(chr, range(32, 126))).replace("\\", "").replace("~", "")
    assert len(LABELS) == 225
    assert all(text.encode().decode(codec) == text for codec in LABELS.values())


def test_another_encoding_than_declared_needs_the_right_one() -> None:
    with pytest.raises(DataError, match="is not utf-8"):
        read(b"<p>\xe9</p>", "utf-8")
    assert read(b"<p>\xe9</p>", "cp1252").text == "é"
    page = b"<meta charset=utf-8><p>x y\xe9</p>"
    with pytest.raises(DataError, match=r"utf-8 .*\(byte 27\)"):
        read(page, "utf-8")
    assert read(page, "cp1252").text == "x yé"


@pytest.mark.parametrize("page", ["<html></html>", "<script>main()</script>", "<!-- -->", "<img>"])
def test_a_page_without_text_is_refused_and_an_empty_file_is_empty(page: str) -> None:
    with pytest.raises(DataError, match="has no text"):
        read(page.encode(), "utf-8")
    assert read(b" \n", "utf-8") == ("", "")


@pytest.mark.parametrize("page", ["<div>" * 3000 + "x", "<p>" + "x" * 11_000_000])
def test_a_page_that_the_parser_abandons_is_refused_and_not_truncated(page: str) -> None:
    with pytest.raises(DataError, match="to its end"):
        read(page.encode(), "utf-8")


def test_the_title_is_not_repeated() -> None:
    page = "<title>The  heron</title><h1>The <i>heron</i></h1><p>It fishes."
    assert read(page.encode(), "utf-8") == ("The heron", "It fishes.")


def test_tables_and_margins_are_not_padded() -> None:
    page = "<table><tr><td>a</td><td>wide enough</td></tr><tr><td>b</td></tr></table><h1>c</h1><p>d"
    assert read(page.encode(), "utf-8").text == "a  wide enough\nb\n\nc\n\nd"


@pytest.mark.parametrize(
    "page",
    [
        *(
            "<dl><dt>aa</dt><dd>bb</dd><dt>cc</dt></dl>",
            "<section>aa</section><section>bb</section>cc",
        ),
        *(
            "<details open><summary>aa</summary>bb</details>cc",
            "<form>aa</form><center>bb</center>cc",
        ),
        *("<select><option>aa</option><option>bb</option></select>cc", "<p>aa<hr>bb<br>cc"),
        *(
            "<fieldset><legend>aa</legend>bb</fieldset>cc",
            "<button>aa</button><button>bb</button>cc",
        ),
        *(
            "<table><caption>aa</caption><tr><th>bb</th><td>cc</td></tr></table>",
            "<menu>aa</menu>bb cc",
        ),
        *(
            "<article>aa</article><aside>bb</aside><nav>cc</nav>",
            "<ul><li>aa<li>bb</ul><pre>cc</pre>",
        ),
        "<figure>aa<figcaption>bb</figcaption></figure><blockquote>cc</blockquote>",
    ],
)
def test_words_of_neighbouring_elements_are_apart(page: str) -> None:
    text = read(f"<body>{page}</body>".encode(), "utf-8").text
    assert text.replace("*", " ").split() == ["aa", "bb", "cc"]


def test_readings_of_ruby_do_not_divide_words() -> None:
    page = "<p><ruby>漢<rp>(</rp><rt>かん</rt><rp>)</rp>字<rt>じ</rt></ruby>です"
    assert read(page.encode(), "utf-8").text == "漢字です"


def test_styles_cannot_use_much_memory() -> None:
    page = (
        "<p style='padding-left: 999999999em; margin-top: 99999999em'>x</p><ol start=99999999><li>y"
    )
    assert len(read(page.encode(), "utf-8").text) < 1_000_000


def test_damage_gives_a_text_or_a_data_error(tmp_path: Path) -> None:
    for seed in range(200):
        file = tmp_path / f"{seed}" / "page.html"
        file.parent.mkdir()
        file.write_text(PAGE)
        damage.damage(file, Random(seed))
        if file.is_file():
            with contextlib.suppress(DataError):  # any other error is a bug
                assert isinstance(read(file.read_bytes(), "utf-8").text, str), seed


@pytest.mark.parametrize(
    "hidden",
    [
        *("<p hidden>b</p>", "<div hidden='hidden'>b<p>c</p></div>", "<h1 hidden>b</h1>"),
        *("<template><p>b</p></template>", "<noscript><p>b</p></noscript>", "<!-- b -->"),
        *("<script>b</script>", "<style>b</style>", "<dialog>b</dialog>", "<iframe>b</iframe>"),
        *("<p style='DISPLAY : none !important'>b</p>", "<p style='visibility:hidden'>b</p>"),
        *("<datalist><option>b</datalist>", "<video>b</video>", "<canvas>b</canvas>"),
        "<div hidden>b<div hidden>c</div></div>",
    ],
)
def test_what_a_browser_does_not_show_is_no_text(hidden: str) -> None:
    page = f"<html><body><p>first</p>{hidden} tail<p hidden=until-found>found</p></body></html>"
    found = read(page.encode(), "utf-8")
    assert (found.title, found.text.split()) == ("", ["first", "tail", "found"])


def test_a_page_of_hidden_text_has_no_text() -> None:
    with pytest.raises(DataError, match="no text"):
        read(b"<p hidden>a</p><noscript>enable scripts</noscript>", "utf-8")
