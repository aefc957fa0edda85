"""Models of the Hugging Face hub: their files in the local cache, downloaded where that is allowed."""

from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

from lmkcli.errors import DataError


def local_copy(name: str, revision: str | None, offline: bool) -> Path:
    """The folder of a model in the cache, named for its commit; DataError where it cannot be had."""
    try:
        return Path(snapshot_download(name, revision=revision, local_files_only=offline))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        hub = "is not asked offline" if offline else f"did not answer ({reason})"
        raise DataError(
            f"model {name} is neither a folder nor in the local cache, and the hub {hub}; "
            f"give a folder, or run 'lmk fetch -m {name}' once with a network"
        ) from None


def is_cached(name: str, revision: str | None) -> bool:
    """Whether the local cache has the model."""
    try:
        snapshot_download(name, revision=revision, local_files_only=True)
    except (HFValidationError, OSError):
        return False
    return True
