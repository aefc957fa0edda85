"""lmk verify: encode a sample again and compare; read an index and hold it against its digests."""

from pathlib import Path
from typing import Annotated

import typer

from lmkcli import catalog, manifest
from lmkcli.cli import console
from lmkcli.cli.flags import Subset, with_flags
from lmkcli.cli.options import Json
from lmkcli.errors import CheckFailed, UsageError
from lmkcli.settings import Flag, ModelSettings

SAMPLE = 100  # documents


@with_flags
def verify(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A vectors folder, or an index.")
    ],
    opening: Annotated[ModelSettings, Subset(without=("dtype",))],
    sample: Annotated[
        int | None,
        Flag("Documents to encode again, spread over the folder.", min=1, shown=str(SAMPLE)),
    ] = None,
    json: Json = False,
) -> None:
    """Encode a sample of the stored texts again and compare with the stored vectors; exit 4 if they differ.

    The least cosine must be 0.99999 where fp32 was computed and 0.999 where bf16 or fp16 was. The files of
    an index are read, and held against the digests that they were written with.
    """
    if manifest.read(folder).kind == "index":
        if sample or opening != ModelSettings():
            raise UsageError(
                f"{folder} is an index: its files are read and no text is encoded, so --sample and flags of "
                "the model have no effect; drop them"
            )
        return _verify_index(folder, json)
    from lmkcli.encoding.verifying import verify as run

    result = run(folder, sample or SAMPLE, opening)
    facts = {
        "documents": result.documents,
        "least cosine": result.cosine,
        "largest difference": result.difference,
    }
    if json:
        console.plain_json({"vectors": str(folder), **facts, "tolerance": result.tolerance})
    else:
        console.say(
            f"{folder}: {result.documents} documents encoded again, least cosine {result.cosine:.6f} "
            f"(at least {result.tolerance} wanted), largest difference {result.difference:.2g}"
        )
    if result.cosine < result.tolerance:
        raise CheckFailed(
            f"{folder}: document {result.worst} came out otherwise (cosine {result.cosine:.6f})"
        )


def _verify_index(folder: Path, json: bool) -> None:
    from lmkcli.retrieval.index_folder import check_files

    if manifest.read(folder).identity["family"] in catalog.DATABASES:
        raise UsageError(
            f"the vectors of {folder} are in a database, and there are no files to read; each lmk search "
            "checks what it holds"
        )
    files = check_files(folder)
    size = sum(file.size for file in files)
    if json:
        return console.plain_json({"index": str(folder), "files": len(files), "bytes": size})
    console.say(f"{folder}: {len(files)} files are as they were written, {console.size(size)}")
