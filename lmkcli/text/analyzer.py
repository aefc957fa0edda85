"""Text analysis for lexical search: from a text to its terms.

The steps follow Lucene's analyzers and published rules:

1. Words end at Unicode's word boundaries (UAX #29); combining marks belong to their letters.
2. Runs of scripts that are written without spaces become overlapping pairs of characters. The script of
   each character decides, so mixed text works.
3. Clitics and stop words are removed.
4. The Snowball stemmer of the language, if there is one, removes endings.
"""

import hashlib
import unicodedata
from itertools import pairwise
from pathlib import Path
from typing import Any

import regex
import Stemmer

from lmkcli.errors import DataError, UnknownName
from lmkcli.system.input_files import whole_file

NONE = "none"  # the stemmer that changes no word, and the empty list of stop words
# Language code -> Snowball algorithm; '' for languages without a stemmer
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

# Lucene's English list. Other languages keep all words, because inverse document frequency suffices.
STOP_WORDS = {
    "en": "a an and are as at be but by for if in into is it no not of on or such that the their "
    "then there these they this to was will with".split(),
}

# Elided articles and pronouns before an apostrophe (l'école, dell'arte)
ELISIONS = {
    "ca": "d l m n s t".split(),
    "fr": "c d j jusqu l lorsqu m n puisqu qu quoiqu s t".split(),
    "ga": "b d m".split(),
    "it": "agl all c coll d dagl dall degl dell gl l m negl nell pell s sugl sull t un v".split(),
}

# Scripts without spaces between words, and Hangul, because its words include particles
UNSPACED = (
    r"\p{Han}\p{Hiragana}\p{Katakana}\N{KATAKANA-HIRAGANA PROLONGED SOUND MARK}"
    r"\p{Hangul}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}"
)
_RUN = regex.compile(rf"[{UNSPACED}]+")
_CHARACTER = regex.compile(r"[\p{L}\p{N}]\p{M}*")
_REST = r"[\p{L}\p{N}\p{M}_]*+"
WORD = regex.compile(
    rf"_*+[\p{{L}}\p{{N}}]{_REST}"
    # marks between letters (it's, example.org) and between digits (3.14, 1,000)
    rf"(?:(?:[.'\u2019:·](?=\p{{L}})(?<=\p{{L}}\p{{M}}*+.)|[.,;'](?=\p{{N}})(?<=\p{{N}}.)){_REST})*+"
)

_QUOTES = dict.fromkeys("\u2018\u2019\u201b", "'")
# Invisible characters: soft hyphen, joiners, direction marks. Below: Arabic tatweel and short vowels.
_DROPPED = [0xAD, *range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x206A), 0xFEFF]
_VOWELS = [0x640, *range(0x64B, 0x653), 0x670]
_FOLDS = str.maketrans({**_QUOTES, **dict.fromkeys(map(chr, _DROPPED + _VOWELS)), "İ": "i"})
_TURKISH = {**_FOLDS, ord("I"): "\N{LATIN SMALL LETTER DOTLESS I}"}


class Analyzer:
    """Split texts of one language (ISO 639-1 code, or 'und' for any other) into terms.

    `stemmer` (a Snowball algorithm, or 'none') and `stopwords` (words separated by spaces) replace those
    of the language.
    """

    def __init__(
        self, language: str = "en", stemmer: str = "", stopwords: str | None = None
    ) -> None:
        """Raises UnknownName for an unknown language or stemmer."""
        if language not in LANGUAGES:
            hint = "(use 'und' for any other language)"
            raise UnknownName("language", language, LANGUAGES, hint)
        if stemmer not in ("", NONE, *Stemmer.algorithms()):
            raise UnknownName("stemmer", stemmer, [NONE, *Stemmer.algorithms()])
        self.language = language
        self._algorithm = {"": LANGUAGES[language], NONE: ""}.get(stemmer, stemmer)
        self._stemmer = Stemmer.Stemmer(self._algorithm) if self._algorithm else None
        self._elisions = frozenset(ELISIONS.get(language, ()))
        self._folds = _TURKISH if language == "tr" else _FOLDS
        self._custom_stop_words = stopwords is not None
        default = STOP_WORDS.get(language, ())
        self._stop_words = frozenset(default if stopwords is None else self._words(stopwords))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_stemmer"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)  # a stemmer cannot be pickled
        self._stemmer = Stemmer.Stemmer(self._algorithm) if self._algorithm else None

    def __call__(self, text: str) -> list[str]:
        """Return the terms of a text in order, with repetitions."""
        words = self._words(text)
        terms = [word for word in words if word not in self._stop_words]
        return list(self._stemmer.stemWords(terms)) if self._stemmer else terms

    def _words(self, text: str) -> list[str]:
        folded = unicodedata.normalize("NFKC", text).translate(self._folds).lower()
        if folded.isascii():
            return self._without_clitics(WORD.findall(folded))
        words = []
        for word in self._without_clitics(WORD.findall(_RUN.sub(r" \g<0> ", folded))):
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
        """Return all settings that affect terms. Analyzers with equal identities give equal terms."""
        stop_words = " ".join(sorted(self._stop_words))
        source = "as given" if self._custom_stop_words else f"lucene-{self.language}"
        return {
            "language": self.language,
            "tokenizer": "NFKC, lower case, UAX #29 words, character pairs (1)",
            "stop_words": source if self._stop_words else NONE,
            "stop_words_sha256": hashlib.sha256(stop_words.encode()).hexdigest(),
            "stemmer": f"snowball {self._algorithm}" if self._algorithm else "none",
            "snowball": Stemmer.version() if self._algorithm else "",
        }

    def versions(self) -> dict[str, str]:
        """Return the versions of the Unicode tables, which determine the class of a character."""
        return {"unicode": unicodedata.unidata_version, "regex": regex.__version__}


def _pairs(run: str) -> list[str]:
    """Overlapping pairs of characters with their marks; a single character stays single."""
    characters = _CHARACTER.findall(run)
    return [first + second for first, second in pairwise(characters)] or characters


def read_stopwords(path: Path) -> str:
    """Read stop words from a file and join them by spaces. Text after '#' is a comment.

    Raises DataError for a file without words.
    """
    try:
        lines = whole_file(path).decode("utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path}: stop words cannot be read ({error})") from error
    words = " ".join(word for line in lines for word in line.partition("#")[0].split())
    if not words:
        raise DataError(
            f"{path} contains no stop words; write one word per line, or use --stopwords {NONE}"
        )
    return words
