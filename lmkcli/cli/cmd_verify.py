"""lmk verify: encode a sample again and compare."""

from pathlib import Path
from typing import Annotated

import typer

from lmkcli.cli import console, options
from lmkcli.cli.flags import with_flags
from lmkcli.errors import CheckFailed
from lmkcli.settings import Offline


@with_flags
def verify(
    folder: Annotated[Path, typer.Argument(metavar="VECTORS", help="A vectors folder.")],
    sample: Annotated[
        int, typer.Option(min=1, help="Documents to encode again, spread over the folder.")
    ] = 100,
    model: Annotated[str, typer.Option(help="Where the model is now, if it was moved.")] = "",
    trust_remote_code: options.TrustRemoteCode = False,
    device: options.Device = "auto",
    offline: Offline = False,
    json: options.Json = False,
) -> None:
    """Encode a sample of the stored texts again and compare with the stored vectors; exit 4 if they differ.

    The least cosine must be 0.99999 where fp32 was computed and 0.999 where bf16 or fp16 was.
    """
    from lmkcli.encoding.recorded import ModelSettings
    from lmkcli.encoding.verifying import verify as run

    opening = ModelSettings(model, trust_remote_code, device, offline=offline)
    result = run(folder, sample, opening)
    facts = {
        "documents": result.documents,
        "least cosine": result.cosine,
        "largest difference": result.difference,
    }
    if json:
        console.plain_json({"vectors": str(folder), **facts, "tolerance": result.tolerance})
    else:
        print(
            f"{folder}: {result.documents} documents encoded again, least cosine {result.cosine:.6f} "
            f"(at least {result.tolerance} wanted), largest difference {result.difference:.2g}"
        )
    if result.cosine < result.tolerance:
        raise CheckFailed(
            f"{folder}: document {result.worst} came out otherwise (cosine {result.cosine:.6f})"
        )
