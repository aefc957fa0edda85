"""Operations: creation, conversion to words and to JSON and back, checks, and records."""

import dataclasses
import json
import os
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from typer.main import get_command

from lmkcli.artifact import manifest
from lmkcli.catalog import VERBS
from lmkcli.cli.main import app
from lmkcli.errors import DataError, UsageError
from lmkcli.operations.encode import Encode
from lmkcli.operations.index import BuildIndex
from lmkcli.operations.search import Search
from lmkcli.spec.operation import Operation, operation_kind
from lmkcli.spec.option import options, split
from lmkcli.spec.settings import Flag

Lmk = Callable[..., Any]
GROUP: Any = get_command(app)
LINES = [
    "encode ./x -m model --pool lmk --gran 64 --no-store-text --no-normalize --doc-prompt='a: b' -o v",
    "encode ./x -m model --query-prompt='' --normalize --only run.trec --if-exists update -o v",
    "index - --kind OPQ64,IVF4096,PQ64 --max-memory 16GB -o i",
    "index x --kind bm25 --stopwords none --k1 1.5 -o i",
    "search a b --with c --with d --fuse linear:0.3,0.7 --fuse-scale none -k 10 --map-ids -o r",
    "search a --query=--strange-question",
    "search a -q words -k 3",
    "eval q.tsv r.trec s.trec -m 'AP(rel=2)@100' -m nDCG@10 --drop-self no -p -f latex",
    "verify vectors --sample 7",
    "train a.jsonl b -m base --pool lmk --gran 32,64 --lora 8 --dev x --dev y -o model",
    "pretrain a -m base --objective retromae --no-whole-words -o model",
    "import x.npy --from numpy --ids ids.txt -o v",
    "export --to sentence-transformers -m minilm -o out",
    "tokenize --show=-x -m minilm",
    "update docs vectors index",
    "repro run.trec --tolerance 0.1",
]


def parsed(line: str) -> Operation[Any]:
    """The operation of a command line."""
    verb, *words = shlex.split(line)
    command = GROUP.commands[verb]
    context = command.make_context(verb, words)
    values = {name: None if value in ((), []) else value for name, value in context.params.items()}
    values.pop("json", None)
    made: Operation[Any] = command.callback.operation(context, values, False)
    return made


@pytest.mark.parametrize("line", LINES)
def test_words_mean_the_same_operation(line: str) -> None:
    operation = parsed(line)
    assert parsed(shlex.join(operation.words())) == operation
    assert shlex.split(operation.command_line())[0] == "lmk"


@pytest.mark.parametrize("line", LINES)
def test_json_reads_back_as_the_same_operation(line: str) -> None:
    operation = parsed(line)
    stored = json.loads(json.dumps(operation.as_json()))
    assert operation_kind(stored).from_json(stored) == operation


@pytest.mark.parametrize("name", VERBS)
def test_every_operation_declares_its_fields(name: str) -> None:
    kind = VERBS.load(name)
    assert kind.verb == name
    assert kind.__doc__
    found = {option.name for option in options(kind)}
    undeclared = {field.name for field in dataclasses.fields(kind)} - found - {*kind.unused}
    # settings that only Python can change, because the command line has no flag for them
    assert undeclared <= {"stopwords", "nprobe", "ef_search", "seed"}
    assert all(option.flag.help for option in options(kind))


@pytest.mark.parametrize("name", VERBS)
def test_a_flag_is_declared_once(name: str) -> None:
    """A subclass may have another default, but not another Flag, except for the output and the model."""
    flags: dict[str, Flag] = {}
    for group in reversed(VERBS.load(name).__mro__):
        hints = get_type_hints(group, include_extras=True)
        for field in vars(group).get("__annotations__", {}):
            flag = next((mark for mark in split(hints[field])[1] if isinstance(mark, Flag)), None)
            if flag and field not in ("if_exists", "model", "output"):
                assert flags.setdefault(field, flag) is flag, f"{group.__name__}.{field}"


def test_a_consent_is_never_stored_and_never_read() -> None:
    encode = Encode("x", model="m", trust_remote_code=True)
    assert "trust_remote_code" not in encode.as_json()
    with pytest.raises(DataError, match="may not contain trust_remote_code"):
        Encode.from_json({**encode.as_json(), "trust_remote_code": True})


def test_a_record_describes_the_artifact_and_not_the_call() -> None:
    record = Encode("x", model="m", output=Path("v"), if_exists="overwrite", shard="1/2").record()
    assert not {"output", "if_exists", "shard", "dry_run", "offline"} & record.keys()
    assert (record["operation"], record["source"], record["model"]) == ("encode", "x", "m")
    assert "k1" not in BuildIndex("v", output=Path("i")).record()  # without effect for this kind


@pytest.mark.parametrize(
    ("record", "why"),
    [
        ({"operation": "teach"}, "does not have"),
        ({"operation": 3}, "does not have"),
        ({"operation": "index", "version": 2, "source": "x"}, "version 2"),
        ({"operation": "index", "version": 1, "source": "x", "magic": True}, "no setting magic"),
        ({"operation": "index", "version": 1, "source": ["x"]}, "one value"),
        ({"operation": "index", "version": 1, "source": "x", "m": "many"}, "--m"),
        ({"operation": "index", "version": 1, "source": "x", "m": 1}, "at least 2"),
        ({"operation": "index", "version": 1}, "source"),
        ({"operation": "index", "version": 1, "source": "x", "k1": 1.5}, "no effect"),
    ],
)
def test_a_record_that_cannot_be_used_is_refused(record: dict[str, Any], why: str) -> None:
    with pytest.raises(DataError, match=why):
        operation_kind(record).from_json(record)


def test_python_gives_the_errors_of_the_shell() -> None:
    with pytest.raises(UsageError, match="no effect with --kind bm25"):
        BuildIndex("x", kind="bm25", m=5)
    with pytest.raises(UsageError, match="one question"):
        Search(Path("x"))
    with pytest.raises(UsageError, match="--shard"):
        Encode("x", model="m", shard=3)  # type: ignore[arg-type]
    for values, advice in (
        ({"index": ["a", "b"]}, "others="),
        ({"rerank_model": ("a", "b")}, "each"),
        ({"gran": [32, 64]}, "gran='"),
    ):
        with pytest.raises(UsageError, match=f"takes one value.*{advice}"):
            Search(**{"index": "a", "question": "q", **values})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="--batch-size"):
        Encode("x", model="m", batch_size=0)


def test_manifests_store_the_operation_and_the_folder(lmk: Lmk, beir: Path, tmp_path: Path) -> None:
    lmk("index", beir, "--kind", "bm25", "--k1", "1.5", "-o", tmp_path / "bm25")
    facts = manifest.read(tmp_path / "bm25").facts
    assert facts.directory == os.getcwd()
    record = facts.operation
    assert (record["operation"], record["source"], record["k1"]) == ("index", str(beir), 1.5)


def test_an_operation_runs_without_the_shell(
    beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LMK_INDEX_K1", "2.5")
    built = BuildIndex(str(beir), kind="bm25", output=tmp_path / "bm25").run()
    assert manifest.read(tmp_path / "bm25").identity.settings["k1"] == 0.9
    assert built is not None
    assert built.as_json()["documents"] == 60
    hits = Search(tmp_path / "bm25", question="rivers carry water", k=3).run()
    assert hits is not None
    assert len(hits.as_json()) == 3
    assert capsys.readouterr() == ("", "")
