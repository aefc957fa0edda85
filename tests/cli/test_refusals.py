"""Bad input: one clear message on stderr, the documented exit code, and no file written or changed."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from tests import tiny

Models = Callable[[str], Path]
Lmk = Callable[..., Any]
USAGE, DATA = 2, 3


def tree(folder: Path) -> dict[str, bytes]:
    """Every file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.fixture
def refused(lmk: Lmk, tmp_path: Path) -> Callable[..., str]:
    """Run a command line that must fail and leave the folder of the test unchanged. Returns its message."""

    def run(*words: object, code: int, message: str) -> str:
        before = tree(tmp_path)
        done = lmk(*words, code=code)
        assert done.out == ""
        assert "Traceback" not in done.err
        assert message in " ".join(done.err.split())
        assert tree(tmp_path) == before
        return str(done.err)

    return run


@pytest.fixture
def bert(tiny_model: Models) -> Path:
    return tiny_model("bert")


@pytest.fixture
def vectors(lmk: Lmk, bert: Path, beir: Path, tmp_path: Path) -> Path:
    lmk("encode", beir, "-m", bert, "-o", tmp_path / "vectors")
    return tmp_path / "vectors"


# --- names ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--pool", "lmkk", "--gran", "8"], r"pooler 'lmkk': .* lmk\?"),
        (["--dtype", "fp8"], "--dtype 'fp8': .*auto, fp32, bf16 or fp16"),
        (["--grann", "8"], "--grann"),
        (["--pool", "lmk"], "--pool lmk .*--gran"),
        (["--shard", "3/3"], "--shard 3/3: .*i/n .*0/16"),
        (["--batch-size", "0"], r"--batch-size '0': .*at least 1\b"),
        (["--batch-tokens", "-1"], r"--batch-tokens '-1': .*at least 0\b"),
        (["--max-length", "2"], r"--max-length 2 .*special tokens.*\b2\b"),
        (["--revision", "x"], "--revision x: .*not .*the hub"),
    ],
)
def test_flags_that_cannot_be(
    refused: Any, bert: Path, beir: Path, tmp_path: Path, words: list[str], message: str
) -> None:
    line = ["encode", beir, "-m", bert, "-o", tmp_path / "v", *words]
    assert re.search(message, refused(*line, code=USAGE, message="error: "))


def test_unknown_names_come_with_the_nearest(
    refused: Any, bert: Path, beir: Path, vectors: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    encode = ("encode", "-m", bert, "-o", out)
    refused(*encode, "beir/scifct/test", code=USAGE, message="beir/scifact/test")
    refused(*encode, "stdlib/function", code=USAGE, message="stdlib/functions")
    refused(*encode, f"{beir},field=x", code=USAGE, message="did you mean fields")
    refused("search", vectors, f"{beir}:tset", "-o", out, code=USAGE, message="did you mean test")
    refused("index", vectors, "--kind", "hnws", "-o", out, code=USAGE, message="did you mean hnsw")
    refused("enocde", code=USAGE, message="no command 'enocde'; did you mean lmk encode?")
    refused("encode", beir, "-m", "minlm", "-o", out, code=DATA, message="did you mean minilm?")
    refused("show", "poolerz", code=USAGE, message="poolers")
    run = tmp_path / "run.trec"
    run.write_text("q0 Q0 d000 1 1.0 x\n")
    refused("eval", run, "--qrels", beir, "-m", "nDGC@10", code=USAGE, message="nDCG")


def test_missing_inputs_are_named(
    refused: Any, bert: Path, beir: Path, vectors: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    refused(
        "encode", "./nothing", "-m", bert, "-o", out, code=DATA, message="no such file or folder"
    )
    refused(
        "encode", tmp_path / "no.jsonl", "-m", bert, "-o", out, code=DATA, message="no such file"
    )
    refused("encode", beir, "-m", "./nothing", "-o", out, code=DATA, message="no model folder")
    refused("encode", beir, "-m", tmp_path, "-o", out, code=DATA, message="no model folder")
    refused("encode", beir, "-m", bert, code=USAGE, message="for instance -o vectors/")
    refused("encode", beir, "-o", out, code=USAGE, message="--model")
    message = "not an lmk artifact: no such file or folder"
    refused("search", tmp_path / "no", beir, "-o", out, code=DATA, message=message)
    refused("search", vectors, code=USAGE, message="-q")
    refused("search", vectors, bert, "-o", out, code=DATA, message="neither a corpus nor queries")
    refused("index", beir, "-o", out, code=USAGE, message="not a vectors folder")
    refused("eval", tmp_path / "no.trec", code=DATA, message="no such run")
    refused(
        "eval",
        tmp_path / "no.trec",
        "-m",
        "AP",
        "R@5",
        code=DATA,
        message="use -m for a measure: -m R@5",
    )
    refused("verify", tmp_path / "no", code=DATA, message="not an lmk artifact")


def test_flags_without_an_effect(
    refused: Any, bert: Path, beir: Path, vectors: Path, tmp_path: Path
) -> None:
    out, message = tmp_path / "out", "no effect"
    refused(
        "encode",
        beir,
        "-m",
        bert,
        "-o",
        out,
        "--gran",
        8,
        "--pool",
        "cls",
        code=USAGE,
        message=message,
    )
    refused("index", beir, "--kind", "bm25", "--m", 8, "-o", out, code=USAGE, message=message)
    refused("index", vectors, "--k1", 1, "-o", out, code=USAGE, message=message)
    refused("search", vectors, beir, "-o", out, "--nprobe", 4, code=USAGE, message=message)
    refused("search", vectors, "-q", "x", "--tag", "t", code=USAGE, message="--tag")


# --- records --------------------------------------------------------------------------------------


def corpus(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


GOOD = ['{"_id": "a", "text": "copper"}', '{"_id": "b", "text": "rivers"}']


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ('{"_id": "c", "text": "cut', r"c\.jsonl line 3: .*valid JSON"),
        ('["c"]', r"c\.jsonl line 3: .*JSON object.* list"),
        ('{"_id": "c"}', r"c\.jsonl line 3: .*text, contents; .*_id; .*--fields"),
        (
            '{"name": "c", "text": "x"}',
            r"c\.jsonl line 3: .*_id, id, docid, doc_id; .*name, text; .*,id=NAME",
        ),
        ('{"_id": "", "text": "x"}', r"c\.jsonl line 3: .*id is empty"),
        ('{"_id": "c d", "text": "x"}', r"c\.jsonl line 3: .*'c d' .*,map_ids=1"),
        ('{"_id": "c\\u2028d", "text": "x"}', r"c\.jsonl line 3: .*'c\\u2028d' .*,map_ids=1"),
        ('{"_id": "c", "text": ["x"]}', r"c\.jsonl line 3: .* list.*--fields"),
        ('{"_id": "a", "text": "again"}', r"c\.jsonl line 3: .*'a' .*twice.* line 1\)"),
    ],
)
@pytest.mark.parametrize("verb", ["tokenize", "encode", "index"])
def test_bad_records_name_file_and_line(
    lmk: Lmk, bert: Path, tmp_path: Path, verb: str, bad: str, message: str
) -> None:
    path = corpus(tmp_path / "c.jsonl", *GOOD, bad)
    how = ["--kind", "bm25"] if verb == "index" else ["-m", bert]
    out = tmp_path / "out"
    done = lmk(verb, path, *how, "-o", out, code=DATA)
    assert re.search(message, done.err)
    assert "Traceback" not in done.err
    assert done.out == ""
    assert not list(out.glob("parts/*"))
    assert not list(out.glob("done/*"))
    assert (
        lmk("search", out, "-q", "copper", code=DATA).out == ""
    )  # an incomplete artifact is not searched


def test_after_a_fix_of_the_file_the_same_command_continues(
    lmk: Lmk, bert: Path, tmp_path: Path
) -> None:
    path = corpus(tmp_path / "c.jsonl", *GOOD, '{"_id": "c d", "text": "x"}')
    command = ["encode", path, "-m", bert, "-o", tmp_path / "v"]
    assert "--map-ids" in lmk(*command, code=DATA).err or "map_ids" in lmk(*command, code=DATA).err
    done = lmk(*command, "--map-ids", "--if-exists", "overwrite", "--json")
    assert done.json["docs"] == 3
    hits = lmk("search", tmp_path / "v", "-q", "x", "--json").json
    assert {hit["id"] for hit in hits} == {"a", "b", "c_d"}


def test_duplicates_far_apart_and_across_a_resume_are_found(
    lmk: Lmk, bert: Path, tmp_path: Path, part_bytes: Callable[[int], None]
) -> None:
    part_bytes(2000)
    lines = [json.dumps({"_id": f"d{i}", "text": tiny.sentence(i, 9)}) for i in range(500)]
    path = corpus(tmp_path / "c.jsonl", *lines, '{"_id": "d3", "text": "again"}')
    command = ["encode", path, "-m", bert, "-o", tmp_path / "v", "--batch-tokens", 64]
    assert "'d3' occurs twice" in lmk(*command, code=DATA).err
    assert len(list((tmp_path / "v" / "parts").glob("0*"))) > 1
    assert "'d3' occurs twice" in lmk(*command, code=DATA).err
    assert "not complete" in lmk("search", tmp_path / "v", "-q", "x", code=DATA).err


def test_empty_documents_are_encoded_and_counted(lmk: Lmk, bert: Path, tmp_path: Path) -> None:
    lines = [*GOOD, '{"_id": "c", "text": ""}', '{"_id": "d", "text": " \\n ", "title": null}']
    path = corpus(tmp_path / "c.jsonl", *lines)
    for pooling in (["--pool", "mean"], ["--pool", "lmk", "--gran", "sentence"]):
        out = tmp_path / pooling[1]
        done = lmk("encode", path, "-m", bert, "-o", out, *pooling, "--json")
        assert (done.json["docs"], done.json["empty"], done.json["vectors"]) == (4, 2, 4)
        assert len(lmk("search", out, "-q", "copper", "--json").json) == 4
        assert "-q is empty" in lmk("search", out, "-q", "", code=2).err
    assert lmk("tokenize", path, "-m", bert, "-o", tmp_path / "t", "--json").json["empty"] == 2


def test_an_empty_collection_is_a_collection(
    lmk: Lmk, bert: Path, beir: Path, tmp_path: Path
) -> None:
    path = corpus(tmp_path / "c.jsonl")
    done = lmk("encode", path, "-m", bert, "-o", tmp_path / "v", "--json")
    assert done.json["docs"] == 0
    assert lmk("search", tmp_path / "v", "-q", "copper").out == "no document found\n"
    lmk("search", tmp_path / "v", beir, "-o", tmp_path / "r.trec")
    assert (tmp_path / "r.trec").read_text() == ""


def test_long_texts_stop_with_on_overflow_error(lmk: Lmk, bert: Path, tmp_path: Path) -> None:
    long = json.dumps({"_id": "long", "text": tiny.sentence(1, 300)})
    path = corpus(tmp_path / "c.jsonl", *GOOD, long)
    command = ["encode", path, "-m", bert, "-o", tmp_path / "v"]
    assert "document long has" in lmk(*command, "--on-overflow", "error", code=DATA).err
    done = lmk(*command, "--json").json
    assert done["cut"] == 1
    assert done["lost"] > 0


# --- models ---------------------------------------------------------------------------------------


def broken_model(source: Path, folder: Path, word: str) -> Path:
    """A copy of a model in which one word has no finite embedding."""
    shutil.copytree(source, folder)
    model = AutoModel.from_pretrained(folder)
    (token,) = AutoTokenizer.from_pretrained(folder)(word, add_special_tokens=False).input_ids
    with torch.no_grad():
        model.get_input_embeddings().weight[token] = torch.nan
    model.save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bert", "document d1 "),
        ("mpnet", "the tensor embeddings.word_embeddings.weight has values"),
    ],
)
def test_a_vector_that_is_not_finite_names_its_document(
    lmk: Lmk, tiny_model: Models, tmp_path: Path, name: str, said: str
) -> None:
    """Unless the trial at the start meets the values first, and names their tensor."""
    model = broken_model(tiny_model(name), tmp_path / "nan", "copper")
    texts = ["rivers carry water", "copper", "bread before dawn"]
    lines = [json.dumps({"_id": f"d{i}", "text": text}) for i, text in enumerate(texts)]
    path = corpus(tmp_path / "c.jsonl", *lines)
    done = lmk("encode", path, "-m", model, "-o", tmp_path / "v", code=DATA)
    assert said in done.err
    assert not list((tmp_path / "v" / "parts").glob("*"))


# --- artifacts ------------------------------------------------------------------------------------


def test_another_recipe_never_joins_a_folder(
    refused: Any, bert: Path, tiny_model: Models, beir: Path, vectors: Path
) -> None:
    command = ("encode", beir, "-m", bert, "-o", vectors)
    refused(*command, "--pool", "cls", code=DATA, message="recipe.doc.pool: 'mean' | 'cls'")
    refused(*command, "--max-length", 64, code=DATA, message="recipe.doc.max_length: 128 | 64")
    refused(*command, "--store-dtype", "fp32", code=DATA, message="store_dtype: 'fp16' | 'fp32'")
    refused(*command, "--shard", "0/2", code=DATA, message="shards: 1 | 2")
    other = tiny_model("modernbert")
    refused("encode", beir, "-m", other, "-o", vectors, code=DATA, message="recipe.doc.weights")
    refused(*command, "--if-exists", "fail", code=DATA, message="--if-exists")


def test_a_collection_that_changed_is_refused(
    lmk: Lmk, refused: Any, bert: Path, beir: Path, tmp_path: Path
) -> None:
    mine = shutil.copytree(beir, tmp_path / "beir")
    command = ("encode", mine, "-m", bert, "-o", tmp_path / "v")
    lmk(*command)
    with open(mine / "corpus.jsonl", "a") as file:
        file.write('{"_id": "new", "text": "new"}\n')
    refused(*command, code=DATA, message="has changed since")


def test_tokens_of_another_tokenizer_are_refused(
    lmk: Lmk, refused: Any, bert: Path, tiny_model: Models, beir: Path, tmp_path: Path
) -> None:
    tokens, out = tmp_path / "t", tmp_path / "v"
    lmk("tokenize", beir, "-m", bert, "-o", tokens)
    other = tiny_model("roberta")
    refused(
        "encode", tokens, "-m", other, "-o", out, code=DATA, message="tokenized with other settings"
    )
    prompted = ("encode", tokens, "-m", bert, "-o", out, "--doc-prompt", "passage: ")
    refused(*prompted, code=DATA, message="prompt: '' | 'passage: '")
    sentences = ("encode", tokens, "-m", bert, "-o", out, "--pool", "lmk", "--gran", "sentence")
    refused(*sentences, code=DATA, message="splitter: '' | 'sentence'")


def test_other_files_are_never_changed(
    refused: Any, bert: Path, beir: Path, vectors: Path, tmp_path: Path
) -> None:
    mine = tmp_path / "thesis"
    mine.mkdir()
    (mine / "chapter.tex").write_text("years of work")
    for words in (["--if-exists", "overwrite"], []):
        refused(
            "encode", beir, "-m", bert, "-o", mine, *words, code=DATA, message="was not made by lmk"
        )
        refused(
            "tokenize",
            beir,
            "-m",
            bert,
            "-o",
            mine,
            *words,
            code=DATA,
            message="was not made by lmk",
        )
        refused("index", vectors, "-o", mine, *words, code=DATA, message="was not made by lmk")
        chapter = mine / "chapter.tex"
        refused(
            "search", vectors, beir, "-o", chapter, *words, code=DATA, message="was not made by lmk"
        )


def test_another_run_is_never_overwritten(
    lmk: Lmk, refused: Any, beir: Path, vectors: Path, tmp_path: Path
) -> None:
    run = tmp_path / "r.trec"
    lmk("search", vectors, beir, "-k", 5, "-o", run)
    refused("search", vectors, beir, "-k", 6, "-o", run, code=DATA, message="k: 5 | 6")
    lmk("search", vectors, beir, "-k", 6, "-o", run, "--if-exists", "overwrite")
    assert len(run.read_text().splitlines()) == 12 * 6


def test_an_index_that_cannot_be_built_leaves_the_one_before(
    lmk: Lmk, refused: Any, beir: Path, vectors: Path, tmp_path: Path
) -> None:
    over = ("-o", tmp_path / "i", "--if-exists", "overwrite")
    lmk("index", vectors, "-o", tmp_path / "i")
    message = "no kind of index fits"
    refused("index", vectors, *over, "--max-memory", "1KB", code=DATA, message=message)
    message = "trained on at least"
    refused("index", vectors, *over, "--kind", "IVF64,Flat", code=DATA, message=message)
    message = "FAISS cannot create this"
    refused("index", vectors, *over, "--kind", "HNSW32,Foo", code=USAGE, message=message)
    message = "applies only to chunks: add --unit chunk"
    refused("index", beir, *over, "--kind", "bm25", "--gran", "8", code=USAGE, message=message)


def test_a_model_that_cannot_be_opened_leaves_the_vectors_before(
    lmk: Lmk, refused: Any, bert: Path, beir: Path, tmp_path: Path
) -> None:
    model, out = shutil.copytree(bert, tmp_path / "model"), tmp_path / "v"
    words = ("encode", beir, "-m", model, "-o", out)
    lmk(*words)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    refused(*words, "--if-exists", "overwrite", code=DATA, message="cannot be loaded")
    assert lmk("show", out, "--json").json["contents"]["docs"] == 60


def test_artifacts_are_not_taken_for_each_other(
    lmk: Lmk, refused: Any, bert: Path, beir: Path, vectors: Path, tmp_path: Path
) -> None:
    lmk("tokenize", beir, "-m", bert, "-o", tmp_path / "t")
    lmk("index", vectors, "-o", tmp_path / "i")
    refused("search", tmp_path / "t", "-q", "x", code=DATA, message="contains tokens")
    refused("index", tmp_path / "t", "-o", tmp_path / "x", code=DATA, message="contains tokens")
    refused("verify", tmp_path / "t", code=DATA, message="contains tokens; give vectors")
    assert "1 file unchanged" in lmk("verify", tmp_path / "i").out
    refused("encode", beir, "-m", bert, "-o", tmp_path / "t", code=DATA, message="tokens | vectors")
    refused(
        "encode", vectors, "-m", bert, "-o", tmp_path / "x", code=DATA, message="contains vectors"
    )


@pytest.mark.parametrize(
    "file", ["manifest.json", "parts/*/vectors.npy", "parts/*/docs.parquet", "parts/*/part.json"]
)
def test_damaged_files_are_named(
    lmk: Lmk, vectors: Path, beir: Path, tmp_path: Path, file: str
) -> None:
    (path,) = vectors.glob(file)
    path.write_bytes(path.read_bytes()[:40])
    done = lmk("search", vectors, beir, "-o", tmp_path / "r.trec", code=DATA)
    assert path.name in done.err
    assert "Traceback" not in done.err
    assert not (tmp_path / "r.trec").exists()


# --- judgements -----------------------------------------------------------------------------------


def test_judgements_of_other_queries(
    lmk: Lmk, refused: Any, beir: Path, vectors: Path, tmp_path: Path
) -> None:
    mine = shutil.copytree(beir, tmp_path / "beir")
    qrels = mine / "qrels" / "test.tsv"
    qrels.write_text("query-id\tcorpus-id\tscore\nunknown\td001\t1\n")
    out = tmp_path / "r.trec"
    refused("search", vectors, mine, "-o", out, code=DATA, message="judge none of its queries")
    lmk("search", vectors, mine, "-o", out, "--all-queries")
    refused("eval", out, code=DATA, message="no query of the run is judged")
    qrels.write_text(qrels.read_text() + "q0\td001\t1\n")
    assert "(unknown)" in lmk("eval", out, "-m", "RR@10").err


def test_judged_documents_outside_the_collection_count_as_not_found(
    lmk: Lmk, beir: Path, vectors: Path, tmp_path: Path
) -> None:
    mine = shutil.copytree(beir, tmp_path / "beir")
    lmk("search", vectors, mine, "-o", tmp_path / "r.trec")
    before = lmk("eval", tmp_path / "r.trec", "-m", "R@100", "--json").json[0]["R@100"]
    with open(mine / "qrels" / "test.tsv", "a") as file:
        file.write("".join(f"q{i}\tnowhere\t1\n" for i in range(12)))
    after = lmk("eval", tmp_path / "r.trec", "-m", "R@100", "--json").json[0]["R@100"]
    assert (before, after) == (1.0, 0.75)


def test_damaged_runs_and_qrels_name_the_line(refused: Any, beir: Path, tmp_path: Path) -> None:
    run = corpus(tmp_path / "r.trec", "q0 Q0 d000 1 1.0 x", "q0 Q0 d001 2 high x")
    refused("eval", run, "--qrels", beir, code=DATA, message="line 2: the score 'high'")
    run = corpus(tmp_path / "r2.trec", "q0 Q0 d000 1 1.0 x", "q0 Q0 d000 2 0.5 x")
    refused("eval", run, "--qrels", beir, code=DATA, message="line 2: document 'd000' occurs twice")
    good = corpus(tmp_path / "r3.trec", "q0 Q0 d000 1 1.0 x")
    qrels = corpus(tmp_path / "x.qrels", "q0 0 d000 1", "q0 0 d001 much")
    refused("eval", good, "--qrels", qrels, code=DATA, message="line 2")
    refused("eval", good, code=USAGE, message="--qrels")


def test_a_missing_query_fails_a_strict_check(lmk: Lmk, beir: Path, tmp_path: Path) -> None:
    run = corpus(tmp_path / "r.trec", "q0 Q0 d000 1 1.0 x")
    assert "11 missing count as 0" in lmk("eval", run, "--qrels", beir).err
    assert "11 of the judged queries" in lmk("eval", run, "--qrels", beir, "--strict", code=4).err


def test_a_run_never_takes_the_place_of_a_folder(refused: Any, vectors: Path, beir: Path) -> None:
    """Not even in an artifact that is overwritten."""
    message = "is a folder; name a file"
    refused(
        "search",
        vectors,
        beir,
        "-o",
        vectors,
        "--if-exists",
        "overwrite",
        code=USAGE,
        message=message,
    )
    assert (vectors / "manifest.json").is_file()


@pytest.mark.parametrize("output", ["/", ".", "..", "folder", "folder/..", "./.", "/.."])
@pytest.mark.parametrize(
    "words",
    [
        ["search", "VECTORS", "BEIR", "-o"],
        ["analyze", "lengths", "BEIR", "-o"],
        ["browse", "RUN", "BEIR", "-o"],
        ["eval", "RUN", "--qrels", "BEIR", "--plot"],
        ["eval", "RUN", "--qrels", "BEIR", "--log"],
        ["plot", "RUN", "-o"],
    ],
    ids=lambda words: f"{words[0]} {words[-1]}",
)
def test_an_output_file_is_no_folder(
    words: list[str],
    output: str,
    lmk: Lmk,
    vectors: Path,
    beir: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    work = tmp_path / "a" / "b"
    (work / "folder").mkdir(parents=True)
    monkeypatch.chdir(work)
    run = corpus(tmp_path / "r.trec", "q0 Q0 d000 1 1.0 x")
    places = {"VECTORS": vectors, "BEIR": beir, "RUN": run}
    before = sorted(tmp_path.rglob("*"))
    if words[0] == "analyze" and output == "folder":
        lmk(*(places.get(word, word) for word in words), output)  # writes folder.svg
        assert (work / "folder.svg").is_file()
        return
    done = lmk(*(places.get(word, word) for word in words), output, code=2)
    assert "is a folder; name a file" in done.err
    assert sorted(tmp_path.rglob("*")) == before


def test_queries_that_come_twice(refused: Any, vectors: Path, tmp_path: Path) -> None:
    queries = corpus(tmp_path / "q.jsonl", *GOOD, '{"_id": "a", "text": "again"}')
    message = "the query id 'a' occurs twice"
    refused("search", vectors, queries, "-o", tmp_path / "r.trec", code=DATA, message=message)


def test_unsuitable_inputs_of_an_index_are_reported(
    refused: Callable[..., str], vectors: Path, tmp_path: Path
) -> None:
    out = tmp_path / "i"
    message = "needs the collection itself"
    refused("index", vectors, "--kind", "bm25", "-o", out, code=USAGE, message=message)
    message = "exact search needs no index"
    refused("index", vectors, "--kind", "exact", "-o", out, code=USAGE, message=message)
