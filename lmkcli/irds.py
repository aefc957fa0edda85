"""Importing this module registers the hub's known collections with ir_datasets.

After `import lmkcli.irds`, `ir_datasets.load("mldr/en/test")` works in any program: documents with
their docstore and slices, judged queries, judgements. Ids that ir_datasets has already are left alone,
so a later release of it that knows them takes over.
"""

from lmkcli.data import hub_layouts, known
from lmkcli.data.collection import open_collection
from lmkcli.data.sources.irds import offer

REGISTERED = offer(
    [name for name in known.names() if hub_layouts.layout_of(name)],
    lambda name: open_collection(f"hf:{name}"),
)
