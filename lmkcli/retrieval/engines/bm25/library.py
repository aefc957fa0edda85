"""The bm25s library, imported without JAX.

Where JAX is installed, bm25s starts it to select the best documents, and JAX reserves most of the memory of a
GPU. lmk selects them itself.
"""

import logging
import sys
from typing import Any

_absent = "jax" not in sys.modules
if _absent:
    sys.modules["jax"] = None  # type: ignore[assignment]  # importing it raises ImportError
import bm25s as _bm25s  # noqa: E402

if _absent:
    del sys.modules["jax"]
logging.getLogger("bm25s").setLevel(logging.WARNING)  # it reports each build at the level DEBUG
bm25s: Any = _bm25s
