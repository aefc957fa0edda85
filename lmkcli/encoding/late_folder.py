"""A late-interaction recipe as PyLate's folder says it: prefixes, skip list, lengths, expansion."""

from typing import Any

from tokenizers import Tokenizer

from lmkcli.errors import UsageError
from lmkcli.models.files import read_json
from lmkcli.models.folder import ModelFolder
from lmkcli.models.late import Vocabulary
from lmkcli.recipe import Recipe


def late_settings(recipe: Recipe, source: ModelFolder) -> dict[str, Any]:
    """What config_sentence_transformers.json holds, in PyLate's words.

    UsageError where queries are expanded with a token that PyLate would not choose.
    """
    doc, query = recipe.doc, recipe.query
    fast = Tokenizer.from_file(str(source.encoder / "tokenizer.json"))

    def words(*ids: int) -> list[str]:
        return [str(fast.id_to_token(one)) for one in ids]

    def prefix(one: int | None) -> str:
        return "" if one is None else words(one)[0]

    if query.expansion is not None:
        known = Vocabulary(source.encoder, read_json(source.encoder / "tokenizer_config.json"))
        if known.filler() != query.expansion:
            raise UsageError(
                f"queries of {source.name} are filled up with {words(query.expansion)[0]!r}, and PyLate's "
                "folders have no place for that; train with another base model"
            )
    return {
        "query_prefix": prefix(query.prefix_token),
        "document_prefix": prefix(doc.prefix_token),
        "query_length": query.max_length,
        "document_length": doc.max_length,
        "do_query_expansion": query.expansion is not None,
        "attend_to_expansion_tokens": query.attend_expansion,
        "skiplist_words": words(*doc.skip),
    }
