"""Register the known collections of the Hugging Face hub with ir_datasets.

After `import lmkcli.irds`, `ir_datasets.load("mldr/en/test")` works in any program, with documents
(docstore and slices), judged queries and judgements. Ids that ir_datasets already has are unchanged, so a
later release of ir_datasets can provide them itself.
"""

from lmkcli.data import hub_layouts, known_collections
from lmkcli.data.collection import open_collection
from lmkcli.data.sources.irds_collections import register

REGISTERED = register(
    [name for name in known_collections.names() if hub_layouts.layout_of(name)],
    lambda name: open_collection(f"hf:{name}"),
)
