"""The output of libraries on stderr: what they log or warn of is cleaned like lmk's own text.

Their messages contain names of tensors, files and tokens, which come from files of other people.
"""

import logging
import re
import traceback
import warnings
from typing import Any

from lmkcli.deprecation import Deprecated
from lmkcli.text.formatting import visible

_COLOUR = re.compile("\x1b\\[[0-9;]*m")  # of a library for a terminal, or of a hostile name
_format_warning = warnings.formatwarning


class _VisibleRecord(logging.LogRecord):
    """A record without control characters: its message, and the exception that belongs to it."""

    def __init__(self, *words: Any, **named: Any) -> None:
        super().__init__(*words, **named)
        if self.exc_info and self.exc_info[0]:
            self.exc_text = _clean("".join(traceback.format_exception(*self.exc_info)).rstrip())

    def getMessage(self) -> str:  # noqa: N802 (the name of logging)
        """Return the message; every handler of every library formats it with this method."""
        return _clean(super().getMessage())


def escape_control_characters() -> None:
    """Print the control characters in all later logs and warnings of this process as escapes."""
    logging.setLogRecordFactory(_VisibleRecord)
    warnings.formatwarning = _visible_warning


def _visible_warning(message: Any, category: type[Warning], *words: Any, **named: Any) -> str:
    if issubclass(category, Deprecated):  # a note for people, who have no line of code to look at
        return f"{_clean(str(message))}\n"
    return _clean(_format_warning(message, category, *words, **named))


def _clean(text: str) -> str:
    """Remove colours, which a library and a hostile name write alike; escape other control characters."""
    return visible(_COLOUR.sub("", text))
