"""Usage errors: one line each, with a suggestion of a command or a flag."""

import re
from collections import Counter
from typing import Any

import pytest

from lmkcli.catalog import OPERATIONS, load
from lmkcli.cli.verbs import MEANT, VERBS
from lmkcli.spec.operation import Operation, options
from tests.cli.conftest import Lmk

KINDS: dict[str, type[Operation[Any]]] = {v: load(OPERATIONS, v, "operation") for v in OPERATIONS}


@pytest.mark.parametrize(
    ("word", "suggestion"),
    [
        ("rerank", "use lmk search --rerank"),
        ("evaluate", "use lmk eval"),
        ("fuse", "use lmk search INDEX --with OTHER --fuse rrf"),
        ("query", "use lmk search INDEX -q"),
        ("ask", "use lmk search FOLDER -q"),
        ("embed", "use lmk encode"),
        ("download", "use lmk fetch"),
        ("finetune", "use lmk train"),
        ("gather", "use the same command as for the shards, without --shard"),
        ("serach", "did you mean lmk search?"),
        ("evalaute", "did you mean lmk eval?"),
        ("frobnicate", "'lmk --help' lists the commands"),
    ],
)
def test_an_unknown_command_suggests_one(lmk: Lmk, word: str, suggestion: str) -> None:
    err = lmk(word, "x", code=2).err
    assert err.startswith(f"error: lmk has no command '{word}'; {suggestion}")
    assert err.count("\n") == 1


def test_every_suggested_command_exists() -> None:
    assert not MEANT.keys() & VERBS.keys()
    for meant in MEANT.values():
        verbs = [word for word in meant.replace("(", "").split() if word in VERBS]
        assert verbs or "--shard" in meant or meant in ("lmk COMMAND -h", "lmk --version"), meant


@pytest.mark.parametrize(
    ("line", "suggestion"),
    [
        ("search x --queyr y", "did you mean -q/--query?"),
        ("search x --depth 5", "use -k/--hits"),
        ("search x --topics y", "use the argument COLLECTION, without a flag"),
        ("search x --qrels y", "it is a flag of lmk eval"),
        ("encode x -m m --fp16", "use --dtype (auto, fp32, bf16 or fp16)"),
        ("encode x -m m --chunk-size 64", "use --gran"),
        ("encode x -m m --output-dir y", "use -o/--output"),
        ("encode x -m m --overwrite", "use --if-exists (resume, fail, overwrite or update)"),
        ("encode x -m m --max_length 9", "did you mean --max-length?"),
        ("encode x -m m --poolng cls", "did you mean --pool?"),
        ("encode x -m m --verbose", "write it before the command: lmk --verbose encode"),
        ("encode x -m m --frob", "'lmk encode --help-all' lists its flags"),
        ("eval x --metrics AP", "use -m/--measure"),
        ("eval x --frob", "'lmk eval --help-all' lists its flags"),
        ("--json", "flags of a command follow it: lmk COMMAND --json"),
        ("--verison", "did you mean --version?"),
    ],
)
def test_an_unknown_flag_suggests_one(lmk: Lmk, line: str, suggestion: str) -> None:
    err = lmk(*line.split(), code=2).err
    assert " has no flag --" in err
    assert suggestion in err
    assert err.startswith("error: lmk ")
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("encode", r"INPUT .*missing.* lmk encode \./mydocs -m minilm -o vectors/"),
        ("encode x", "-m/--model .*missing.* lmk-minilm or minilm"),
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
