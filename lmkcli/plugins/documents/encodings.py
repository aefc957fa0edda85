"""The encoding of a text file that does not declare one, guessed from its bytes (charset-normalizer)."""

from charset_normalizer import from_bytes

from lmkcli.data.filetext import escaped_encoding, marked_encoding, wide_encoding

# Common encodings, the most frequent first. Of two that decode a text equally well, the first one wins.
_CANDIDATES = (
    "cp1252 cp1250 cp1251 koi8_r cp1253 cp1254 cp1255 cp1256 cp932 euc_jp gb18030 euc_kr big5 iso8859_2 "
    "cp874 cp866"
).split()
_SAMPLE = 1 << 20  # bytes; the whole file must have the encoding


def guess_encoding(data: bytes) -> str:
    """Return the encoding of a text that is not valid UTF-8; empty if the bytes are no text in a common
    encoding.

    'utf-8' if all but a few bytes are UTF-8.
    """
    sample = data[:_SAMPLE]
    if _is_mostly_utf8(sample):
        return "utf-8"
    if known := marked_encoding(data) or wide_encoding(data) or escaped_encoding(data):
        return known
    matches = sorted(
        from_bytes(sample, cp_isolation=_CANDIDATES),
        key=lambda each: (each.chaos, -each.coherence, _CANDIDATES.index(each.encoding)),
    )
    if not matches:
        return ""
    text = str(matches[0])
    for name in _CANDIDATES:  # several encodings may give this text
        try:
            if data.decode(name).startswith(text):
                return name
        except UnicodeError:
            continue
    return ""


def _is_mostly_utf8(sample: bytes) -> bool:
    """Return whether a text is UTF-8 with wrong bytes, such as the half of a character where a program cut
    it.

    Of a text in another encoding, few of the bytes beyond ASCII are characters of UTF-8.
    """
    if 0 in sample:
        return False
    text = sample.decode("utf-8", "replace")
    wrong = text.count("\ufffd")
    good = len(text) - len(text.encode("ascii", "ignore")) - wrong
    return good >= max(wrong, 1)
