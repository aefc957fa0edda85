"""The model that an artifact records, opened for whoever holds the artifact.

An artifact may come from a stranger. Its manifest says which model made it, and may do no more than
that: what it names is not downloaded, and code beside a model does not run, unless the user says so.
"""

from lmkcli import manifest
from lmkcli.encoding.encoder import Encoder, open_encoder
from lmkcli.errors import DataError
from lmkcli.models.finding import is_here, read_model
from lmkcli.models.folder import ModelFolder
from lmkcli.recipe import EncoderConfig
from lmkcli.settings import EncodeSettings, ModelSettings
from lmkcli.store.vectors import Vectors


def open_recorded(vectors: Vectors, query: bool, settings: ModelSettings) -> Encoder:
    """The encoder of one side of the vectors' recipe.

    DataError where the model would run code or be downloaded and `settings` do not allow it.
    """
    manifest.check_whole(vectors.folder, vectors.manifest)
    recipe = vectors.recipe.moved(settings.model) if settings.model else vectors.recipe
    side = recipe.query if query else recipe.doc
    if side.trust_remote_code and not settings.trust_remote_code:
        refuse_code(str(vectors.folder), side.model)
    dtype = settings.dtype or vectors.manifest.execution["dtype"]
    folder = _located(vectors, side, settings)
    return open_encoder(side, folder, EncodeSettings(dtype=dtype, device=settings.device))


def refuse_code(artifact: str, model: str) -> None:
    """DataError: an artifact's model needs code that comes with it, and nobody here allowed that."""
    raise DataError(
        f"{artifact} was made with code that comes with the model {model}. Such code can do anything "
        "that you can: if you trust both, say --trust-remote-code"
    )


def _located(vectors: Vectors, side: EncoderConfig, settings: ModelSettings) -> ModelFolder:
    """The folder of the side's model; only one that the user named may be downloaded."""
    if not settings.model and not is_here(side.model, side.revision or None):
        revision = f" --revision {side.revision}" if side.revision else ""
        raise DataError(
            f"{vectors.folder} was made with the model {side.model}, which is not on this machine, and "
            f"what an artifact names is not downloaded: run 'lmk fetch -m {side.model}{revision}' once, "
            "or say where the model is with --model"
        )
    # here as it is, it is not asked for again, and neither is what it is itself made of
    offline = settings.offline or not settings.model
    return read_model(side.model, side.revision or None, offline)
