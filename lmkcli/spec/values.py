"""Values with a notation: granularity, window, overlap, shard, size, encoding by MUVERA and device.

Each value is parsed once, where it enters the program, and prints in the notation of the user. Flags, config
files and manifests use the same notation.
"""

import re
from dataclasses import dataclass
from typing import Any, Self

from lmkcli.errors import DataError, UsageError

SPLITTERS = ("sentence", "given")  # granularities that cut the text before it is tokenized
WIDEST = 1 << 16  # dimensions of an encoding by MUVERA; the paper uses up to 20,480
MOST_SHARDS = 99_999  # the names of parts have five digits for shard numbers


def check_utf8(text: str, name: str) -> None:
    """Raise UsageError for a text with bytes that are not UTF-8, which Python reads as half surrogates."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(text[error.start])
        byte = f"byte {code - 0xDC00:#04x}" if 0xDC80 <= code <= 0xDCFF else f"U+{code:04X}"
        raise UsageError(
            f"{name}: its text is not UTF-8 ({byte}); convert it, for instance from Latin-1: "
            "iconv -f LATIN1 -t UTF-8"
        ) from None


def is_digits(text: str) -> bool:
    r"""Return whether a text is a whole number in at most 18 digits of ASCII, so that it fits in 64 bits.

    `str.isdecimal` and `\d` accept the digits of all scripts, and `int` refuses thousands of digits.
    """
    return text.isascii() and text.isdigit() and len(text) <= 18


def is_count(text: str) -> bool:
    """Return whether a text is a whole number from 1 on, in at most nine plain digits."""
    return is_digits(text) and len(text) < 10 and int(text) > 0


class Granularity(str):
    """The length of chunks: '64' (tokens), 'sentence', 'given' (as the collection defines), or '' (not cut).

    tokens: the number of tokens of a chunk, or 0. splitter: 'sentence', 'given' or ''.
    """

    tokens: int
    splitter: str

    def __new__(cls, text: str | int = "") -> Self:
        """Parse a granularity. Raises UsageError for an invalid one."""
        text = str(text)
        if text and text not in SPLITTERS and not is_count(text):
            raise UsageError(
                f"--gran {text}: write a number of tokens of at least 1, 'sentence' or 'given'"
            )
        self = super().__new__(cls, str(int(text)) if is_count(text) else text)
        self.tokens = int(text) if is_count(text) else 0
        self.splitter = text if text in SPLITTERS else ""
        return self


WHOLE_TEXT = Granularity()  # texts are not cut


class Granularities(str):
    """One granularity, or several with commas between them, from which training draws ('32,64,128').

    values: the granularities.
    """

    values: tuple[Granularity, ...]

    def __new__(cls, text: str) -> Self:
        """Parse granularities. Raises UsageError for an invalid one."""
        values = tuple(Granularity(part) for part in text.split(","))
        self = super().__new__(cls, ",".join(values))
        self.values = values
        return self

    @property
    def single(self) -> Granularity:
        """The only granularity. Raises UsageError for several."""
        if len(self.values) > 1:
            raise UsageError(
                f"--gran {self}: write one granularity; only training draws from several"
            )
        return self.values[0]


class Window(str):
    """The text that the model reads at once: 'full' (a text, truncated), 'chunk', or a number of positions.

    'even:512' makes as many windows as '512', but about equally long.
    positions: the number of positions, or 0. even: whether the windows of a text are about equally long.
    """

    positions: int
    even: bool

    def __new__(cls, text: str | int = "full") -> Self:
        """Parse a window. Raises UsageError for an invalid one."""
        text = str(text)
        even, number = text.startswith("even:"), text.removeprefix("even:")
        if text not in ("full", "chunk") and not is_count(number):
            raise UsageError(
                f"--window {text}: write full, chunk, or a number of positions such as 512 or even:512"
            )
        positions = int(number) if is_count(number) else 0
        self = super().__new__(cls, f"{'even:' * even}{positions}" if positions else text)
        self.positions, self.even = positions, even
        return self

    def as_json(self) -> int | str:
        """Return the number of positions, or the text if it is not a number."""
        return int(self) if self.isdigit() else str(self)

    @property
    def length(self) -> str:
        """The length of the windows in words: '512 positions'."""
        return f"at most {self.positions} positions" if self.even else f"{self.positions} positions"


FULL = Window("full")
EACH_CHUNK = Window("chunk")


class Overlap(str):
    """The end of the previous window that a window repeats: tokens ('128') or chunks ('10c').

    At most one of `tokens` and `chunks` is greater than 0.
    """

    tokens: int
    chunks: int

    def __new__(cls, text: str | int = "0") -> Self:
        """Parse an overlap. Raises UsageError for an invalid one."""
        match = re.fullmatch(r"([0-9]{1,9})(c?)", str(text))
        if not match:
            raise UsageError(f"--overlap {text}: write tokens, such as 128, or chunks, such as 10c")
        count = int(match[1])
        self = super().__new__(cls, f"{count}{match[2]}")
        self.tokens, self.chunks = (0, count) if match[2] else (count, 0)
        return self

    def __bool__(self) -> bool:
        return bool(self.tokens or self.chunks)

    def as_json(self) -> int | str:
        """Return the number of tokens, or the chunks as '10c'."""
        return str(self) if self.chunks else self.tokens


NO_OVERLAP = Overlap()


@dataclass(frozen=True, order=True)
class Shard:
    """Shard `number` of `count`, counted from 0."""

    number: int = 0
    count: int = 1

    def rows(self, total: int) -> range:
        """Return the rows of this shard. The shards in order cover all `total` rows in equal shares."""
        return range(total * self.number // self.count, total * (self.number + 1) // self.count)

    @classmethod
    def parse(cls, text: str) -> Self:
        """'3/16' -> Shard(3, 16). Raises UsageError unless 0 <= i < n <= 99,999."""
        number, _, count = text.partition("/")
        digits = is_digits(number) and is_digits(count)
        if digits and int(number) < int(count) <= MOST_SHARDS:
            return cls(int(number), int(count))
        raise UsageError(
            f"--shard {text}: write i/n with 0 <= i < n, such as 0/16 … 15/16; n is at most {MOST_SHARDS}"
        )

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


WHOLE = Shard(0, 1)


class Size(int):
    """A number of bytes, written as 16GB or 800MB (powers of 1,000)."""

    text: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """'16GB' -> 16000000000. Raises UsageError for anything else."""
        match = re.fullmatch(
            r"([0-9]{1,18}(?:\.[0-9]+)?)\s*([kMGT]?)i?B?", text.strip(), re.IGNORECASE
        )
        if not match:
            raise UsageError(f"{text!r} is not a size; write for instance 16GB or 800MB")
        self = cls(float(match[1]) * 1000 ** "_kmgt".index(match[2].lower() or "_"))
        self.text = text.strip()
        return self

    def __str__(self) -> str:
        return getattr(self, "text", "") or int.__repr__(self)


NO_LIMIT = Size(0)


class Muvera(str):
    """The size of an encoding by MUVERA, '20x5x16': repetitions, bits of a cluster's number, dimensions of
    a projected vector. '' is none.

    width: the number of dimensions of an encoding, repetitions * 2^bits * dims.
    """

    repetitions: int
    bits: int
    dims: int
    width: int

    def __new__(cls, text: str = "") -> Self:
        """Parse a size. Raises UsageError for an invalid one."""
        parts = text.split("x") if text else ["0", "0", "0"]
        if text and not (len(parts) == 3 and all(map(is_count, parts)) and int(parts[1]) <= 16):
            raise UsageError(
                f"--muvera {text}: write repetitions, bits (at most 16) and dimensions, such as 20x5x16"
            )
        self = super().__new__(cls, "x".join(str(int(part)) for part in parts) if text else "")
        self.repetitions, self.bits, self.dims = map(int, parts)
        self.width = self.repetitions * (1 << self.bits) * self.dims
        if self.width > WIDEST:
            raise UsageError(
                f"--muvera {text}: an encoding would have {self.width:,} dimensions, and {WIDEST:,} are "
                "allowed; write fewer repetitions, bits or dimensions, such as 20x5x16"
            )
        return self


NO_MUVERA = Muvera()


_ONE_DEVICE = r"(?:cpu|cuda(?::[0-9]{1,3})?)"


class Device(str):
    """The device that runs a model: 'auto' (the first GPU, else the CPU), 'cpu', 'cuda' or 'cuda:1'.

    Several devices are a list with commas, or 'all' GPUs.
    """

    def __new__(cls, text: str = "auto") -> Self:
        """Parse a device. Raises DataError for an invalid one; `choose_device` checks whether it exists."""
        if not re.fullmatch(rf"auto|all|{_ONE_DEVICE}(,{_ONE_DEVICE})*", text):
            raise DataError(f"--device {text}: write auto, cpu, cuda, cuda:0, all or cuda:0,cuda:1")
        return super().__new__(cls, text)

    @property
    def several(self) -> bool:
        """Whether the text names several devices."""
        return self == "all" or "," in self


AUTO = Device("auto")


def parser_of(kind: Any) -> Any:
    """Return the function that reads a value type from a text, or None for other types."""
    if not isinstance(kind, type):
        return None
    if hasattr(kind, "parse"):
        return kind.parse
    return kind if issubclass(kind, str) and kind is not str else None
