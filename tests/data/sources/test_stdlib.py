"""The offline demonstration collection."""

import ast
import subprocess
import sys

import pytest

from lmkcli.data.sources.stdlib import open_stdlib
from lmkcli.errors import UnknownName


@pytest.mark.parametrize("name", ["stdlib/functions", "stdlib/modules"])
def test_every_query_has_one_answer_that_is_there(name: str) -> None:
    collection = open_stdlib(name, {})
    docs = list(collection.docs())
    ids = {doc.id for doc in docs}
    queries, qrels = list(collection.queries()), list(collection.qrels())
    assert len(ids) == len(docs) == len({doc.text for doc in docs})
    assert [qrel.query_id for qrel in qrels] == [query.id for query in queries]
    assert {qrel.doc_id for qrel in qrels} <= ids
    assert len({query.text for query in queries}) == len(queries) > 1500
    assert min(len(query.text.split()) for query in queries) >= 4


def test_a_function_is_its_source_without_the_docstring() -> None:
    docs = {doc.id: doc.text for doc in open_stdlib("stdlib/functions", {}).docs()}
    queries = {query.id: query.text for query in open_stdlib("stdlib/functions", {}).queries()}
    text = docs["textwrap.dedent"]
    assert text.startswith("def dedent(text):\n")
    assert ast.get_docstring(ast.parse(text).body[0]) is None  # type: ignore[arg-type]
    assert queries["textwrap.dedent"] == (
        "Remove any common leading whitespace from every line in `text`."
    )
    assert "json.decoder.JSONDecoder.decode" in docs
    assert docs["fractions.Fraction.limit_denominator"].startswith("def limit_denominator(self")


def test_a_module_is_whole_but_for_those_docstrings() -> None:
    modules = {doc.id: doc.text for doc in open_stdlib("stdlib/modules", {}).docs()}
    text = modules["textwrap"]
    assert "def dedent(text):" in text
    assert "Remove any common leading whitespace" not in text
    assert text.startswith('"""Text wrapping')
    assert not any(
        part in {"test", "tests", "idlelib"} for name in modules for part in name.split(".")
    )
    answers = {qrel.query_id: qrel.doc_id for qrel in open_stdlib("stdlib/modules", {}).qrels()}
    assert answers["json.decoder.JSONDecoder.decode"] == "json.decoder"


def test_the_same_in_another_process() -> None:
    code = (
        "from lmkcli.data.sources.stdlib import open_stdlib\n"
        "from lmkcli.data.collection import CollectionDigest, doc_hash\n"
        "digest = CollectionDigest()\n"
        "for doc in open_stdlib('stdlib/functions', {}).docs(): digest.add(doc_hash(doc))\n"
        "print(digest)"
    )
    command = [sys.executable, "-c", code]
    runs = {subprocess.run(command, capture_output=True, check=True).stdout for _ in range(2)}
    assert len(runs) == 1


def test_unknown_names_and_options() -> None:
    with pytest.raises(UnknownName, match="did you mean stdlib/functions"):
        open_stdlib("stdlib/function", {})
    with pytest.raises(UnknownName, match="option"):
        open_stdlib("stdlib/functions", {"fields": "a"})
