"""Upload of a model folder to the Hugging Face hub, or to the server of HF_ENDPOINT."""

from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils.tqdm import disable_progress_bars

from lmkcli.artifact import manifest
from lmkcli.errors import DataError, UsageError
from lmkcli.system import network

_MESSAGE = "Upload a model with lmk"


def upload(folder: Path, repo: str, private: bool | None = None) -> str:
    """Upload all files of a folder except its manifest, which names folders of this machine.

    Creates the repository if it is missing. Returns the id of the commit. UsageError for an invalid name,
    DataError if the server refuses the upload or does not answer.
    """
    if network.forbidden():
        raise UsageError(
            f"--repo {repo}: the network is off ({network.VARIABLE}); {folder} was written"
        )
    if get_token() is None:
        raise DataError(
            f"{folder} was written, but not uploaded: there is no token; set HF_TOKEN, or run hf auth login, "
            "and run the same command again"
        )
    disable_progress_bars()  # lmk reports progress itself
    api = HfApi(library_name="lmkcli")
    try:
        api.create_repo(repo, private=private, exist_ok=True)
        commit = api.upload_folder(
            repo_id=repo,
            folder_path=folder,
            ignore_patterns=[manifest.NAME, ".*"],
            commit_message=_MESSAGE,
        )
    except HFValidationError as error:
        raise UsageError(f"--repo {repo}: {error}") from None
    except Exception as error:  # of the hub's server, its client and the library below it
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"{folder} was written, but not uploaded to {repo}: {reason}; run the same command again"
        ) from error
    return str(commit.oid)
