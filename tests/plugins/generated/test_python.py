"""Functions and modules of the standard library and of installed packages."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lmkcli.data.collection import CollectionDigest, doc_hash, open_collection
from lmkcli.errors import DataError, UnknownName, UsageError
from lmkcli.plugins.generated.python_code import open_package, open_stdlib


@pytest.mark.parametrize("name", ["stdlib/functions", "stdlib/modules"])
def test_every_query_has_one_relevant_document(name: str) -> None:
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


def test_a_module_is_its_source_without_those_docstrings() -> None:
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


def test_another_process_reads_the_same() -> None:
    digest = CollectionDigest()
    for doc in open_stdlib("stdlib/functions", {}).docs():
        digest.add(doc_hash(doc))
    code = (
        "from lmkcli.plugins.generated.python_code import open_stdlib\n"
        "from lmkcli.data.collection import CollectionDigest, doc_hash\n"
        "digest = CollectionDigest()\n"
        "for doc in open_stdlib('stdlib/functions', {}).docs(): digest.add(doc_hash(doc))\n"
        "print(digest)"
    )
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    printed = subprocess.check_output([sys.executable, "-c", code], env=env, text=True)
    assert printed.strip() == str(digest)


def test_a_collection_of_some_packages() -> None:
    """Its documents, queries and judgements are those of these packages in the whole collection."""
    some = open_stdlib("stdlib/modules", {"package": "json+textwrap"})
    assert some.name == "stdlib/modules,package=json+textwrap"
    every = open_stdlib("stdlib/modules", {})

    def chosen(name: str) -> bool:
        return name.partition(".")[0] in {"json", "textwrap"}

    docs = {doc.id: doc.text for doc in some.docs()}
    assert {"json", "json.decoder", "textwrap"} <= docs.keys()
    assert docs == {doc.id: doc.text for doc in every.docs() if chosen(doc.id)}
    queries = {query.id for query in some.queries()}
    assert {query.id for query in every.queries() if chosen(query.id)} <= queries
    assert all(map(chosen, queries))
    assert {qrel.doc_id for qrel in some.qrels()} <= docs.keys()


def test_unknown_names_and_options() -> None:
    with pytest.raises(UnknownName, match="did you mean json"):
        open_stdlib("stdlib/functions", {"package": "email+jsonn"})
    with pytest.raises(UnknownName, match="package"):
        open_stdlib("stdlib/functions", {"package": ""})
    with pytest.raises(DataError, match=r"package=math\+sys"):
        list(open_stdlib("stdlib/functions", {"package": "sys+math"}).docs())
    with pytest.raises(UnknownName, match="did you mean stdlib/functions"):
        open_stdlib("stdlib/function", {})
    with pytest.raises(UnknownName, match="option"):
        open_stdlib("stdlib/functions", {"fields": "a"})


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """An installed package that must never be imported."""
    files = {
        "__init__.py": 'raise SystemExit("imported")\n',
        "_knots.py": (
            '"""Knots."""\n\n\ndef tie(rope):\n    """Tie a rope to itself. Twice."""\n    return rope\n'
            '\n\ndef _pull(rope):\n    """Pull at what was tied before."""\n    return rope\n'
        ),
        "tests/__init__.py": "",
        "tests/test_knots.py": 'def test():\n    """Knots hold what they should."""\n    assert 1\n',
        "_vendor/__init__.py": 'def split():\n    """Split what others have written."""\n    return 1\n',
    }
    for name, text in files.items():
        path = tmp_path / "lmk_ropes" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (tmp_path / "lmk_sail.py").write_text(files["_knots.py"])
    monkeypatch.syspath_prepend(tmp_path)
    return "lmk_ropes"


@pytest.mark.parametrize("name", ["lmk_ropes", "lmk_sail"])
def test_a_package_is_read_and_not_imported(package: str, name: str) -> None:
    module = "lmk_ropes._knots" if name == package else name
    functions = open_collection(f"python/{name}/functions")
    assert [doc[:2] for doc in functions.docs()] == [
        (f"{module}.tie", "def tie(rope):\n    return rope\n")
    ]
    assert [query[:2] for query in functions.queries()] == [
        (f"{module}.tie", "Tie a rope to itself.")
    ]
    modules = open_collection(f"python/{name}/modules")
    texts = {doc.id: doc.text for doc in modules.docs()}
    assert texts.keys() == ({package, module} if name == package else {name})
    assert "Pull at what" in texts[module]
    assert "Tie a rope" not in texts[module]
    assert [qrel[:] for qrel in modules.qrels()] == [(f"{module}.tie", module, 1)]
    assert name not in sys.modules


def test_the_version_of_a_package_is_part_of_the_settings() -> None:
    import pluggy

    collection = open_package("python/pluggy/functions", {})
    assert collection.settings == {"version": pluggy.__version__}
    assert "pluggy._manager.PluginManager.register" in {doc.id for doc in collection.docs()}


def test_packages_that_cannot_be_read() -> None:
    with pytest.raises(UnknownName, match="did you mean python/pluggy/functions"):
        open_package("python/pluggy/function", {})
    with pytest.raises(UsageError, match="stdlib/functions"):
        open_package("python/json/functions", {})
    for name in ("lmk_none", "os.path", ""):
        with pytest.raises(DataError, match="pip install"):
            open_package(f"python/{name}/functions", {})
