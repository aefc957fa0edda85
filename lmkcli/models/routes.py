"""Which way through a model was found right, remembered so that it is checked once, not at every start.

One small file for each model, dtype, kind of device and version of the libraries, in
$XDG_CACHE_HOME/lmk/routes (~/.cache without that variable). A cache that cannot be read or written is
done without.
"""

import json
from collections.abc import Callable
from typing import NamedTuple

import torch
import transformers

from lmkcli import __version__
from lmkcli.manifest import digest
from lmkcli.reading import parsed
from lmkcli.system import caches
from lmkcli.system.atomic import atomic_file


class Route(NamedTuple):
    """How a model runs: layers fused or not, inputs packed or padded, and why they are padded."""

    fused: bool
    packed: bool
    why_padded: str = ""


def route_key(weights: str, dtype: str, device: torch.device, how: tuple[str, bool]) -> str:
    """All that the outcome may depend on; `how` is the extension, and whether to fuse."""
    chip = (
        torch.cuda.get_device_name(device)
        if device.type == "cuda"
        else torch.backends.cpu.get_cpu_capability()
    )
    versions = [__version__, torch.__version__, transformers.__version__]
    return digest([weights, dtype, device.type, chip, *how, versions])


def remembered(key: str, check: Callable[[], Route]) -> Route:
    """The route of this key; checked, and kept, where it is not known."""
    path = caches.own() / "routes" / f"{key[:32]}.json"
    try:
        return Route(**parsed(path.read_text()))
    except (OSError, ValueError, TypeError):
        route = check()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as temporary:
            temporary.write_text(json.dumps(route._asdict()))
    except OSError:
        pass  # the cache cannot be written: the route is checked again next time
    return route
