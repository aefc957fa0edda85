"""Collections that lmk generates: facts in long texts, and Python code."""

from lmkcli.catalog import SourceRow

ROWS = (
    SourceRow(
        "stdlib",
        "lmkcli.plugins.generated.python_code:open_stdlib",
        "functions and modules of Python's standard library (offline): stdlib/functions, stdlib/modules",
        prefixes=("stdlib/",),
        examples=("stdlib/functions", "stdlib/modules"),
    ),
    SourceRow(
        "python",
        "lmkcli.plugins.generated.python_code:open_package",
        "functions and modules of an installed package: python/numpy/functions, python/numpy/modules",
        prefixes=("python/",),
    ),
    SourceRow(
        "synthetic",
        "lmkcli.plugins.generated.synthetic:open_synthetic",
        "synthetic: one fact in a long text: passkey/256 … passkey/32768, needle/256 …",
        prefixes=("passkey/", "needle/"),
    ),
    SourceRow(
        "haystack",
        "lmkcli.plugins.generated.haystack:open_haystack",
        "relevant passages joined with random passages: haystack,from=COLLECTION",
        names=("haystack",),
    ),
)
