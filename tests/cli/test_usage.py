"""Usage errors: one line each, with a suggestion of a command or a flag."""

import re
from collections import Counter
from typing import Any

import pytest

from lmkcli.catalog import VERBS
from lmkcli.cli.verbs import meant
from lmkcli.spec.operation import Operation
from lmkcli.spec.option import options
from tests.conftest import Lmk

KINDS: dict[str, type[Operation[Any]]] = {v: VERBS.load(v) for v in VERBS}


@pytest.mark.parametrize(
    ("word", "suggestion"),
    [
        ("rerank", "lmk search --rerank VECTORS"),
        ("evaluate", "lmk eval$"),
        ("fuse", "lmk search INDEX --with OTHER --fuse rrf"),
        ("query", "lmk search INDEX -q"),
        ("ask", "lmk search FOLDER -q"),
        ("embed", "lmk encode$"),
        ("download", "lmk fetch$"),
        ("finetune", "lmk train$"),
        ("gather", "without --shard"),
        ("serach", r"lmk search\?"),
        ("evalaute", r"lmk eval\?"),
        ("frobnicate", "'lmk --help'"),
    ],
)
def test_an_unknown_command_suggests_one(lmk: Lmk, word: str, suggestion: str) -> None:
    err = lmk(word, "x", code=2).err
    assert re.match(f"error: lmk .*command '{word}'; .*{suggestion}", err)
    assert err.count("\n") == 1


def test_every_suggested_command_exists() -> None:
    assert not meant().keys() & {*VERBS}
    for line in meant().values():
        verbs = [word for word in line.replace("(", "").split() if word in VERBS]
        assert verbs or "--shard" in line or line in ("lmk COMMAND -h", "lmk --version"), line


@pytest.mark.parametrize(
    ("line", "suggestion"),
    [
        ("search x --queyr y", r"-q/--query\?"),
        ("search x --depth 5", "-k/--hits"),
        ("search x --k 5", "-k/--hits"),
        ("search x --topics y", "argument COLLECTION"),
        ("search x --qrels y", r"flag of lmk eval\b"),
        ("encode x -m m --fp16", "--dtype .*auto, fp32, bf16 or fp16"),
        ("encode x -m m --chunk-size 64", "--gran$"),
        ("encode x -m m --output-dir y", "-o/--output"),
        ("encode x -m m --overwrite", "--if-exists .*resume, fail, overwrite or update"),
        ("encode x -m m --max_length 9", r"--max-length\?"),
        ("encode x -m m --poolng cls", r"--pool\?"),
        ("encode x -m m --verbose", "lmk --verbose encode"),
        ("grid x.toml -q", "lmk -q grid"),
        ("encode x -m m --frob", "'lmk encode --help-all'"),
        ("eval x --metrics AP", "-m/--measure"),
        ("eval x --frob", "'lmk eval --help-all'"),
        ("--json", "lmk COMMAND --json"),
        ("--verison", r"--version\?"),
    ],
)
def test_an_unknown_flag_suggests_one(lmk: Lmk, line: str, suggestion: str) -> None:
    err = lmk(*line.split(), code=2).err
    found = re.match(rf"error: lmk .*no flag (--?\S+); .*{suggestion}", err)
    assert found
    assert found[1] in line.split()
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("encode", r"INPUT .*missing.* lmk encode \./mydocs -m minilm -o vectors/"),
        ("encode x", "-m/--model .*missing.* mean-minilm or minilm"),
        ("import x", "--from .*missing.* numpy, pyserini or anserini-json"),
        ("encode x -m", "-m .*no value"),
        ("encode x -m m --store-text=1", "--store-text .*switch.*without a value"),
        (
            "encode x -m m --batch-size q",
            r"--batch-size 'q': .*at least 1\b",
        ),
        ("search x --rm3-weight 2", r"--rm3-weight '2': .*\b0 and 1\b"),
        ("encode x -m m --dtype fp8", "--dtype 'fp8': .*auto, fp32, bf16 or fp16"),
        ("analyze maps x", "WHAT 'maps': .*attention, landmarks, lengths, map or similarity"),
        ("encode x y -m m", r"\(y\).*'lmk encode -h'"),
        ("encode x -m m --config", "'--config' .*'lmk encode -h'"),
        ("--quiet=1 encode", "'--quiet' .*'lmk -h'"),
    ],
)
def test_a_mistake_is_one_plain_line(lmk: Lmk, line: str, message: str) -> None:
    done = lmk(*line.split(), code=2)
    assert re.search(message, done.err)
    assert done.err.startswith("error: ")
    assert (done.err.count("\n"), done.out) == (1, "")


def test_a_variable_is_named_instead_of_its_flag(lmk: Lmk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LMK_ENCODE_BATCH_SIZE", "0")
    assert lmk("encode", "x", "-m", "m", code=2).err.startswith(
        "error: LMK_ENCODE_BATCH_SIZE '0': "
    )


def test_aliases_mean_the_flag_and_stay_out_of_help(lmk: Lmk) -> None:
    words = "encode x --encoder m --pooling lmk --granularity=8 --max-seq-length 90"
    plain = "encode x -m m --pool lmk --gran 8 --max-length 90"
    assert lmk(*words.split(), code=2).err == lmk(*plain.split(), code=2).err
    missing = "give a collection of queries"
    assert missing in lmk("search", "x", "--topk", 3, code=2).err
    for verb in VERBS:
        page = lmk(verb, "-h").out
        for option in options(KINDS[verb]):
            assert not {*option.flag.aliases.split()} & {*page.replace(",", " ").split()}


@pytest.mark.parametrize("verb", KINDS)
def test_a_further_spelling_belongs_to_one_flag(verb: str) -> None:
    """No alias and no suggestion hides a flag of the same command, or means two flags."""
    used = Counter[str]()
    for option in options(KINDS[verb]):
        assert not (option.flag.argument and option.flag.aliases)
        used.update(
            [option.spelling, option.flag.short] if option.flag.short else [option.spelling]
        )
        used.update(option.flag.aliases.split() + option.flag.suggest_for.split())
    assert [spelling for spelling, times in used.items() if times > 1] == []
