"""Text analysis for lexical search: what the terms of a text are.

Follows Lucene's analyzers, with published rules: words end where Unicode's word boundaries (UAX #29)
say so, combining marks belong to their letters, and scripts that are written without spaces become
overlapping pairs of characters. That is decided by each character's script, so mixed text works.
Then clitics and stop words go, and the language's Snowball stemmer (where there is one) cuts endings.
"""

import hashlib
import unicodedata
from itertools import pairwise
from pathlib import Path
from typing import Any

import regex
import Stemmer

from lmkcli.errors import DataError, UnknownName
from lmkcli.reading import whole_file

NONE = "none"  # the stemmer that leaves words as they are, the list of no stop words
# Snowball algorithm for each language code; '' where there is none and terms stay as they are
LANGUAGES = {
    "ar": "arabic", "bn": "", "ca": "catalan", "da": "danish", "de": "german", "el": "greek",
    "en": "english", "es": "spanish", "et": "estonian", "eu": "basque", "fa": "", "fi": "finnish",
    "fr": "french", "ga": "irish", "he": "", "hi": "hindi", "hu": "hungarian", "hy": "armenian",
    "id": "indonesian", "it": "italian", "ja": "", "km": "", "ko": "", "lo": "",
    "lt": "lithuanian", "my": "", "ne": "nepali", "nl": "dutch", "no": "norwegian",
    "pt": "portuguese", "ro": "romanian", "ru": "russian", "sr": "serbian", "sv": "swedish",
    "sw": "", "ta": "tamil", "te": "", "th": "", "tr": "turkish", "uk": "", "und": "", "ur": "",
    "vi": "", "yi": "yiddish", "yo": "", "zh": "",
}  # fmt: skip

# Lucene's English list; other languages keep all words, as inverse document frequency suffices
STOP_WORDS = {
    "en": "a an and are as at be but by for if in into is it no not of on or such that the their "
    "then there these they this to was will with".split(),
}

# elided articles before an apostrophe (l'école, dell'arte)
ELISIONS = {
    "ca": "d l m n s t".split(),
    "fr": "c d j jusqu l lorsqu m n puisqu qu quoiqu s t".split(),
    "ga": "b d m".split(),
    "it": "agl all c coll d dagl dall degl dell gl l m negl nell pell s sugl sull t un v".split(),
}

# written without spaces between words; Hangul too, whose words carry particles
_UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\N{KATAKANA-HIRAGANA PROLONGED SOUND MARK}"
    r"\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
)
_RUN = regex.compile(rf"[{_UNSPACED}]+")
_CHARACTER = regex.compile(r"[\p{L}\p{N}]\p{M}*")
_REST = r"[\p{L}\p{N}\p{M}_]*+"
_WORD = regex.compile(
    rf"_*+[\p{{L}}\p{{N}}]{_REST}"
    # marks that join letters (it's, example.org), and marks that join digits (3.14, 1,000)
    rf"(?:(?:[.':·](?=\p{{L}})(?<=\p{{L}}\p{{M}}*+.)|[.,;'](?=\p{{N}})(?<=\p{{N}}.)){_REST})*+"
)

_QUOTES = dict.fromkeys("\u2018\u2019\u201b", "'")
# invisible: soft hyphen, joiners, marks of direction; Arabic tatweel and short vowels
_DROPPED = [0xAD, *range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0xFEFF]
_VOWELS = [0x640, *range(0x64B, 0x653), 0x670]
_FOLDS = str.maketrans({**_QUOTES, **dict.fromkeys(map(chr, _DROPPED + _VOWELS)), "İ": "i"})
_TURKISH = {**_FOLDS, ord("I"): "\N{LATIN SMALL LETTER DOTLESS I}"}


class Analyzer:
    """Text -> terms, for one language (ISO 639-1, or 'und' for none in particular).

    A `stemmer` (a Snowball algorithm, or 'none') and `stopwords` (with spaces between) take the place
    of the language's own.
    """

    def __init__(
        self, language: str = "en", stemmer: str = "", stopwords: str | None = None
    ) -> None:
        """UnknownName when the language or the stemmer is in no list."""
        if language not in LANGUAGES:
            hint = "('und' stands for any other language)"
            raise UnknownName("language", language, LANGUAGES, hint)
        if stemmer not in ("", NONE, *Stemmer.algorithms()):
            raise UnknownName("stemmer", stemmer, [NONE, *Stemmer.algorithms()])
        self.language = language
        self._algorithm = {"": LANGUAGES[language], NONE: ""}.get(stemmer, stemmer)
        self._stemmer = Stemmer.Stemmer(self._algorithm) if self._algorithm else None
        self._elisions = frozenset(ELISIONS.get(language, ()))
        self._folds = _TURKISH if language == "tr" else _FOLDS
        self._given = stopwords is not None
        own = STOP_WORDS.get(language, ())
        self._stop = frozenset(own if stopwords is None else self._words(stopwords))

    def __call__(self, text: str) -> list[str]:
        """The terms of a text in order, repetitions included; none for an empty text."""
        words = self._words(text)
        terms = [word for word in words if word not in self._stop]
        return list(self._stemmer.stemWords(terms)) if self._stemmer else terms

    def _words(self, text: str) -> list[str]:
        folded = unicodedata.normalize("NFKC", text).translate(self._folds).lower()
        if folded.isascii():
            return self._without_clitics(_WORD.findall(folded))
        words = []
        for word in self._without_clitics(_WORD.findall(_RUN.sub(r" \g<0> ", folded))):
            words += [word] if word.isascii() or not _RUN.match(word) else _pairs(word)
        return words

    def _without_clitics(self, words: list[str]) -> list[str]:
        if self.language == "en":
            return [word.removesuffix("'s") for word in words]
        if self._elisions:
            return [self._without_elision(word) for word in words]
        return words

    def _without_elision(self, word: str) -> str:
        head, _, tail = word.partition("'")
        return tail if tail and head in self._elisions else word

    def identity(self) -> dict[str, Any]:
        """Everything that decides terms; two indexes with equal identities analyse alike."""
        stop = " ".join(sorted(self._stop))
        return {
            "language": self.language,
            "tokenizer": "NFKC, lower case, UAX #29 words, character pairs (1)",
            "stop_words": self._list_name(),
            "stop_words_sha256": hashlib.sha256(stop.encode()).hexdigest(),
            "stemmer": f"snowball {self._algorithm}" if self._algorithm else "none",
            "snowball": Stemmer.version() if self._algorithm else "",
        }

    def _list_name(self) -> str:
        if not self._stop:
            return NONE
        return "as given" if self._given else f"lucene-{self.language}"

    def versions(self) -> dict[str, str]:
        """What else a character's class may depend on: the Unicode tables in use."""
        return {"unicode": unicodedata.unidata_version, "regex": regex.__version__}


def _pairs(run: str) -> list[str]:
    """Overlapping pairs of characters with their marks; a character alone stands for itself."""
    characters = _CHARACTER.findall(run)
    return [first + second for first, second in pairwise(characters)] or characters


def read_stopwords(path: Path) -> str:
    """A file's words, one a line ('#' begins a comment), with spaces between; DataError without any."""
    try:
        lines = whole_file(path).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: stop words cannot be read ({error})") from error
    words = " ".join(word for line in lines for word in line.partition("#")[0].split())
    if not words:
        raise DataError(f"{path} holds no stop words; write one a line, or say --stopwords {NONE}")
    return words
