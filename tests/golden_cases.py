"""The command lines of golden.py, in groups, and the inputs that they all find in their folder.

A case is a command line without `lmk`, or a `Case` with what comes before it. Steps before a case are command
lines that must succeed, or changes of files. Paths are relative to the folder in which the commands run.
"""

import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

# ruff: noqa: E501 (a command line is easier to read on one line)

Change = Callable[[Path], None]


class Case(NamedTuple):
    """A command line, the steps before it, its stdin and its own variables.

    `probe` is the collection that an index made by the case is searched with; '' does not search.
    """

    line: str
    before: tuple[str | Change, ...] = ()
    stdin: str = ""
    env: dict[str, str] = {}  # noqa: RUF012 (never changed)
    probe: str = "small"


Group = dict[str, str | Case]

SETTINGS = {  # variables of every command
    "COLUMNS": "120",
    "HF_HUB_OFFLINE": "1",
    "LANG": "C.UTF-8",
    "OMP_NUM_THREADS": "1",
    "RAYON_NUM_THREADS": "1",
    "TERM": "dumb",
    "TOKENIZERS_PARALLELISM": "true",
    "TZ": "UTC",
}
MIRROR = {"LMK_DATA": "mirror"}


# --- inputs ---------------------------------------------------------------------------------------

DOCS = [
    {"id": "tea", "title": "Green tea", "text": "Steep green tea at eighty degrees.", "body": "Two minutes."},
    {"id": "bread", "title": "Sourdough", "text": "Let the dough rise overnight.", "body": "Bake it hot."},
    {"id": "bike", "title": "Flat tyre", "text": "Take the wheel off. Find the hole.", "body": "Patch it."},
    {"id": "empty", "title": "", "text": "", "body": ""},
]  # fmt: skip
FILES = {
    "questions.tsv": "q1\thow hot should the water be\nq2\tI have a flat tyre\n",
    "judged.qrels": "q1 0 tea 1\nq2 0 bike 1\nq2 0 bread 0\n",
    "notes/tea.md": "# Green tea\n\nSteep it at eighty degrees.\n\n## Water\n\nSoft water is best.\n",
    "notes/bike.txt": "Take the wheel off. Find the hole under water.\n",
    "notes/deep/bread.html": "<html><title>Bread</title><body><p>Bake it hot, with steam.</p></body></html>\n",
    "notes/photo.jpg": "no picture\n",
    "bad/json.jsonl": '{"_id": "a", "text": "copper"}\n{"_id": "c", "text": "cut\n',
    "bad/id.jsonl": '{"_id": "a", "text": "copper"}\n{"_id": "c d", "text": "x"}\n',
    "bad/twice.jsonl": '{"_id": "a", "text": "copper"}\n{"_id": "a", "text": "again"}\n',
    "bad/text.jsonl": '{"_id": "a", "text": "copper"}\n{"_id": "b"}\n',
    "bad/none.jsonl": "",
    "bad/latin.txt/a.txt": "plain\n",
    "bad/run.trec": "q0 Q0 d000 1\n",
    "bad/grid.toml": "[grid]\ncollections = 'small'\nmodel = 'bert'\npool = 'lmkk'\n",
    "bad/log.jsonl": '{"run": "x"\n',
    "thesis/chapter.tex": "years of work\n",
    "stop.txt": "the\nto\nby\n",
    "qrels.txt": "".join(f"q{i} 0 d1 1\n" for i in range(5)),
    "config.toml": '[encode]\nmodel = "bert"\npool = "lmk"\ngran = "8"\nstore-text = false\n[search]\nhits = 3\n'
    '[eval]\nmeasure = ["nDCG@10", "R@5"]\n[index]\nkind = "bm25"\nk1 = 1.5\n',
    "wrong.toml": '[encode]\npol = "lmk"\n',
    "broken.toml": "[encode\n",
    "train.toml": '[train]\nmodel = "bert"\npool = "lmk"\ngran = "4,8"\nmax-length = 32\nsteps = 2\nbatch-size = 8\n'
    'dims = "32,16"\ndtype = "fp32"\nlog-every = 1\n',
    "grid.toml": '[grid]\ncollections = ["./small", "./other"]\nmodel = "bert"\npool = ["mean", "lmk"]\n'
    'gran = ["", 16]\nmax-length = [32, 128]\nk = 20\nmeasures = ["nDCG@10", "R@5"]\ndtype = "fp32"\n'
    'store-dtype = "fp32"\n[table]\nbaseline = { pool = "mean", max-length = 32 }\n',
    "tiny-grid.toml": '[grid]\ncollections = "./small"\nkind = ["bm25"]\nk1 = [0.9, 1.5]\nk = 5\n'
    'measures = ["nDCG@10"]\n',
    "failing-grid.toml": '[grid]\ncollections = "./docs.jsonl"\nkind = "bm25"\nk = 5\nmeasures = ["nDCG@10"]\n',
    "m2.json": json.dumps(
        {
            "model_type": "m2-bert", "vocab_size": 512, "hidden_size": 32, "intermediate_size": 64,
            "num_hidden_layers": 1, "max_position_embeddings": 64, "hyena_filter_order": 16,
        }
    ),
    "new-bert.toml": 'model_type = "bert"\nvocab_size = 512\nhidden_size = 32\nnum_attention_heads = 4\n'
    "num_hidden_layers = 1\nintermediate_size = 64\nmax_position_embeddings = 64\n",
}  # fmt: skip


def make_sources() -> None:
    """Write models, collections and files into the current folder, with the makers of other tests."""
    from tests import mirrors, tiny
    from tests.models.test_crossencoder import save

    for name in ("bert", "roberta", "modernbert", "qwen2"):
        tiny.save(Path(name), name)
    save(Path("cross"), 1)
    _save_m2bert(Path("m2bert"))
    _save_tite(Path("tite"))
    for path in Path().glob("*/tokenizer.json"):
        _fix_vocabulary(path)
    tiny.collection(Path("small"))
    tiny.collection(Path("other"), docs=40, queries=10)
    mirrors.longembed(Path("mirror"), "passkey", mirrors.LENGTHS)
    mirrors.conteb(Path("mirror"), "football", "train", "chunk_id")
    for name, text in FILES.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text, encoding="utf-8")
    lines("docs.jsonl", DOCS)
    lines(
        "given.jsonl",
        [{"id": f"g{i}", "chunks": [tiny.sentence(i + j, 6) for j in range(3)]} for i in range(4)],
    )
    lines("long.jsonl", [{"id": f"l{i}", "text": tiny.sentence(i, 300)} for i in range(3)])
    lines(
        "pairs.jsonl",
        [
            {"query": tiny.sentence(i, 4), "positive": f"{tiny.sentence(i, 20)} {i}"}
            for i in range(30)
        ],
    )
    lines("scored.jsonl", [_scored(i) for i in range(20)])
    lines("chunked.jsonl", [_chunked(i) for i in range(12)])
    orders = {"better": ["d1 d2 d3"] * 5, "base": ["d1 d2 d3"] * 2 + ["d3 d2 d1"] * 3}
    for name, found in orders.items():
        rows = [
            f"q{i} Q0 {doc} {rank} {9 - rank} {name}\n"
            for i, order in enumerate(found)
            for rank, doc in enumerate(order.split(), 1)
        ]
        Path(f"{name}.trec").write_text("".join(rows))


def _fix_vocabulary(path: Path) -> None:
    """Give a tokenizer the same vocabulary in every run; trainers of tokenizers break ties at random."""
    from tokenizers.pre_tokenizers import ByteLevel

    from tests.tiny import TEXTS, VOCABULARY

    read = json.loads(path.read_text(encoding="utf-8"))
    words = [word for word, _ in Counter(" ".join(TEXTS).split()).most_common()]
    vocabulary = [token["content"] for token in read["added_tokens"]]
    merges: list[list[str]] = []
    if read["model"]["type"] == "WordPiece":
        letters = sorted(set("".join(words)))
        vocabulary += [*letters, *(f"##{letter}" for letter in letters), *words]
    else:  # byte-level BPE: the first words, each joined letter by letter
        vocabulary += sorted(ByteLevel.alphabet())
        for word in filter(str.isascii, words):
            whole = "\u0120"  # a space
            for letter in word:
                if [whole, letter] not in merges:
                    merges.append([whole, letter])
                    vocabulary.append(whole + letter)
                whole += letter
        merges = merges[: VOCABULARY - len(vocabulary) + len(merges)]
        read["model"]["merges"] = merges
    vocabulary = list(dict.fromkeys(vocabulary))[:VOCABULARY]
    read["model"]["vocab"] = {token: number for number, token in enumerate(vocabulary)}
    path.write_text(json.dumps(read, ensure_ascii=False), encoding="utf-8")


def _scored(i: int) -> dict[str, Any]:
    from tests.tiny import sentence

    negatives = [f"{sentence(i + j, 9)} other {i} {j}" for j in range(1, 5)]
    scores = {"pos_scores": [3.0], "neg_scores": [0.1, 0.2, 0.3, 0.4]}
    return {
        "query": sentence(i, 4),
        "pos": [f"{sentence(i, 20)} number {i}"],
        "neg": negatives,
        **scores,
    }


def _chunked(i: int) -> dict[str, Any]:
    from tests.tiny import sentence

    chunks = [sentence(9 * i + n, 6) for n in range(4)]
    asked = [{"query": sentence(200 + 9 * i + n, 3), "chunk": n} for n in range(4)]
    return {"id": f"d{i}", "chunks": chunks, "queries": asked}


def _save_m2bert(folder: Path) -> None:
    import torch

    from lmkcli.plugins.m2bert.config import M2BertConfig
    from lmkcli.plugins.m2bert.model import M2BertModel
    from tests import tiny

    torch.manual_seed(0)
    config = M2BertConfig(
        vocab_size=tiny.VOCABULARY, hidden_size=tiny.WIDTH, intermediate_size=64, num_hidden_layers=2,
        max_position_embeddings=64, hyena_filter_order=16,
    )  # fmt: skip
    M2BertModel(config).save_pretrained(folder)
    tiny.wordpiece().save_pretrained(folder)


def _save_tite(folder: Path) -> None:
    import torch

    from lmkcli.plugins.tite.config import TiteConfig
    from lmkcli.plugins.tite.model import TiteModel
    from tests import tiny

    torch.manual_seed(7)
    config = TiteConfig(
        vocab_size=tiny.VOCABULARY, num_hidden_layers=4, hidden_sizes=[16, 16, 32, 32],
        num_attention_heads=4, intermediate_sizes=64, max_position_embeddings=40,
        kernel_sizes=[None, 4, 4, 3], strides=[None, 4, 4, 3], initializer_range=0.3,
        norm_location="post", norm_type="layer", absolute_positional_embedding_type="learned",
    )  # fmt: skip
    TiteModel(config).save_pretrained(folder)
    tiny.wordpiece(markers=False).save_pretrained(folder)


FP32 = "--dtype fp32 --store-dtype fp32"
INPUTS = [  # artifacts that later commands read
    f"encode small -m bert --pool mean {FP32} -o v",
    f"encode small -m bert --pool lmk --gran 8 --unit chunk {FP32} -o chunks",
    f"encode docs.jsonl -m bert --pool mean {FP32} -o dv",
    "tokenize small -m bert -o tokens",
    "index v -o hnsw",
    "index small --kind bm25 -o bm25",
    "search v small -k 10 -o run.trec",
    "search v small -k 5 -o five.trec",
    "search bm25 small -k 10 -o bm25.trec",
    "eval run.trec -m nDCG@10 -m R@5 --log scores.jsonl",
    "eval five.trec -m nDCG@10 -m R@5 --log scores.jsonl",
    "export v --to numpy -o exported",
    "export v --to pyserini -o theirs",
    "train pairs.jsonl -m bert --pool lmk --gran 4,8 --max-length 32 --steps 4 --batch-size 8 --dtype fp32"
    " --log-every 1 -o model",
]


# --- changes of files -----------------------------------------------------------------------------


def lines(name: str, records: list[dict[str, Any]]) -> None:
    """Write records as JSON lines."""
    Path(name).write_text(
        "".join(json.dumps(record) + "\n" for record in records), encoding="utf-8"
    )


def append(name: str, text: str) -> Change:
    """Append text to a file."""

    def change(folder: Path) -> None:
        with open(folder / name, "a", encoding="utf-8") as file:
            file.write(text)

    return change


def write(name: str, text: str) -> Change:
    """Write a file."""

    def change(folder: Path) -> None:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")

    return change


def replace(name: str, old: str, new: str) -> Change:
    """Replace text in a file once."""

    def change(folder: Path) -> None:
        text = (folder / name).read_text(encoding="utf-8")
        assert old in text, f"{name} lacks {old}"
        (folder / name).write_text(text.replace(old, new, 1), encoding="utf-8")

    return change


def remove(pattern: str) -> Change:
    """Remove the files and folders that match a pattern."""

    def change(folder: Path) -> None:
        found = list(folder.glob(pattern))
        assert found, f"nothing matches {pattern}"
        for path in found:
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def cut(pattern: str) -> Change:
    """Cut the last ten bytes off the files that match a pattern."""

    def change(folder: Path) -> None:
        found = list(folder.glob(pattern))
        assert found, f"nothing matches {pattern}"
        for path in found:
            path.write_bytes(path.read_bytes()[:-10])

    return change


def flip(pattern: str) -> Change:
    """Change the last byte of the files that match a pattern."""

    def change(folder: Path) -> None:
        found = list(folder.glob(pattern))
        assert found, f"nothing matches {pattern}"
        for path in found:
            data = bytearray(path.read_bytes())
            data[-1] ^= 0x55
            path.write_bytes(data)

    return change


def move(old: str, new: str) -> Change:
    """Rename a file or folder."""
    return lambda folder: (folder / old).rename(folder / new) and None


def shorten(folder: Path) -> None:
    """Remove the first five documents of `small` and add one."""
    path = folder / "small" / "corpus.jsonl"
    kept = path.read_text(encoding="utf-8").rstrip("\n").split("\n")[5:]
    kept.append('{"_id": "fresh", "title": "", "text": "copper conducts electricity"}')
    path.write_text("".join(f"{line}\n" for line in kept), encoding="utf-8")


# --- cases ----------------------------------------------------------------------------------------

GENERAL: Group = {
    "nothing": "",
    "version": "--version",
    "unknown-command": "enocde small",
    "help": "--help",
    **{
        f"help-{verb}": f"{verb} --help"
        for verb in (
            "analyze browse compact demo doctor encode eval export fetch grid import index plot pretrain repro search "
            "serve show tokenize train update verify"
        ).split()
    },
    "verbose": "-v verify ./nothing",
    "quiet": "-q encode small -m bert --pool mean -o out",
    "quiet-variable": Case("encode small -m bert --pool mean -o out", env={"LMK_QUIET": "1"}),
    "unknown-flag": "encode small -m bert -o out --grann 8",
    "variables": Case(
        "encode small -o out",
        env={"LMK_ENCODE_MODEL": "bert", "LMK_ENCODE_POOL": "mean", "LMK_ENCODE_STORE_TEXT": "0"},
    ),
    "variable-and-flag": Case(
        "encode small -m bert --pool cls -o out", env={"LMK_ENCODE_POOL": "mean"}
    ),
    "variable-list": Case("eval run.trec --json", env={"LMK_EVAL_MEASURE": "nDCG@10 R@5"}),
    "variable-wrong": Case("search v -q copper", env={"LMK_SEARCH_HITS": "many"}),
    "config": "encode small --config config.toml -o out",
    "config-variable": Case("encode small -o out", env={"LMK_ENCODE_CONFIG": "config.toml"}),
    "config-and-flag": "search v -q copper --config config.toml -k 2 --json",
    "config-list": "eval run.trec --config config.toml",
    "config-index": "index small --config config.toml -o out",
    "config-wrong-key": "encode small -m bert -o out --config wrong.toml",
    "config-not-toml": "encode small -m bert -o out --config broken.toml",
    "config-missing": "encode small -m bert -o out --config no.toml",
    "config-other-table": "tokenize small -m bert -o out --config config.toml",
    "home": "index small --kind bm25 -o ~/out",
    "json-error": "show ./nothing --json",
}

TOKENIZE: Group = {
    "plain": "tokenize small -m bert -o out",
    "json": "tokenize small -m bert -o out --json",
    "again": "tokenize small -m bert -o tokens",
    "shard": "tokenize small -m bert -o out --shard 1/3 --json",
    "all-shards": Case(
        "tokenize small -m bert -o out --shard 2/3 --json",
        ("tokenize small -m bert -o out --shard 0/3", "tokenize small -m bert -o out --shard 1/3"),
    ),
    "sentences": "tokenize notes/tea.md -m bert --pool lmk --gran sentence -o out",
    "sentences-json": "tokenize docs.jsonl -m bert --pool lmk --gran sentence -o out --json",
    "folder": "tokenize folder:notes -m bert --pool lmk --gran sentence -o out --json",
    "prompt": 'tokenize small -m bert --doc-prompt "passage: " -o out --json',
    "no-text": "tokenize docs.jsonl -m roberta --no-store-text --fields text+body -o out --json",
    "show": 'tokenize --show "copper conducts electricity better than iron" -m bert --pool lmk --gran 2',
    "show-json": 'tokenize --show "copper conducts electricity" -m bert --pool lmk --gran 2 --json',
    "show-window": 'tokenize --show "copper conducts electricity better than iron or lead" -m modernbert --pool mean'
    " --window 8 --overlap 2 --json",
    "show-tite": 'tokenize --show "copper conducts" -m tite --json',
    "show-m2bert": 'tokenize --show "copper conducts" -m m2bert --json',
    "show-and-collection": 'tokenize small --show "x" -m bert',
    "overwrite": "tokenize small -m roberta -o tokens --if-exists overwrite --json",
    "other-tokenizer": "tokenize small -m roberta -o tokens",
    "no-output": "tokenize small -m bert",
    "no-model": "tokenize small -o out",
    "gran-without-effect": "tokenize small -m bert --pool cls --gran 8 -o out",
    "bad-json": "tokenize bad/json.jsonl -m bert -o out",
}

ENCODE: Group = {
    "plain": "encode small -m bert -o out",
    "json": "encode small -m bert --pool mean -o out --json",
    "fp32": f"encode small -m bert --pool mean {FP32} -o out --json",
    "cls": f"encode small -m bert --pool cls {FP32} -o out --json",
    "last": f"encode small -m qwen2 --pool last {FP32} -o out --json",
    "mean-of-k": f"encode small -m bert --pool mean@3 {FP32} -o out --json",
    "multicls": f"encode small -m bert --pool multicls --gran 8 {FP32} -o out --json",
    "lmk": f"encode small -m bert --pool lmk --gran 8 {FP32} -o out --json",
    "lmk-sentence": f"encode small -m modernbert --pool lmk --gran sentence {FP32} -o out --json",
    "lmk-given": f"encode given.jsonl -m bert --pool lmk --gran given --unit chunk {FP32} -o out --json",
    "latent": f"encode small -m bert --pool latent {FP32} -o out --json",
    "chunks": f"encode small -m bert --pool mean --unit chunk --gran 8 {FP32} -o out --json",
    "chunks-context": f"encode folder:notes -m bert --pool mean --unit chunk --gran 8 --window chunk --context headings"
    f" {FP32} -o out --json",
    "chunks-field": f"encode docs.jsonl -m bert --pool mean --unit chunk --gran 8 --window chunk --context field:body"
    f" {FP32} -o out --json",
    "token": f"encode docs.jsonl -m bert --unit token {FP32} -o out --json",
    "window": f"encode long.jsonl -m bert --pool mean --window 32 --overlap 8 {FP32} -o out --json",
    "window-chunk": f"encode small -m bert --pool lmk --gran 8 --window chunk {FP32} -o out --json",
    "max-length": f"encode small -m bert --pool mean --max-length 20 --query-max-length 12 {FP32} -o out --json",
    "prompts": f'encode small -m bert --pool mean --doc-prompt "passage: " --query-prompt "query: " {FP32} -o out --json',
    "dim": f"encode small -m bert --pool mean --dim 16 {FP32} -o out --json",
    "no-normalize": f"encode small -m bert --pool mean --no-normalize {FP32} -o out --json",
    "extend-grouped": f"encode long.jsonl -m bert --pool mean --extend grouped --max-length 256 {FP32} -o out --json",
    "extend-interpolate": f"encode long.jsonl -m bert --pool mean --extend interpolate --max-length 256 {FP32} -o out",
    "extend-ntk": f"encode long.jsonl -m qwen2 --pool last --extend ntk --max-length 256 {FP32} -o out --json",
    "extend-wrong": f"encode long.jsonl -m bert --pool mean --extend ntk --max-length 256 {FP32} -o out",
    "roberta": f"encode small -m roberta --pool mean {FP32} -o out --json",
    "modernbert": f"encode small -m modernbert --pool cls {FP32} -o out --json",
    "m2bert": f"encode small -m m2bert {FP32} -o out --json",
    "m2bert-no-pad": f"encode small -m m2bert --no-pad-to-max {FP32} -o out --json",
    "tite": f"encode small -m tite {FP32} -o out --json",
    "trained-model": f"encode small -m model {FP32} -o out --json",
    "int8": "encode small -m bert --pool mean --dtype fp32 --store-dtype int8 -o out --json",
    "binary": "encode small -m bert --pool mean --dtype fp32 --store-dtype binary -o out --json",
    "batches": f"encode small -m bert --pool mean --batch-tokens 200 --batch-size 4 {FP32} -o out --json",
    "no-text": f"encode small -m bert --pool mean --no-store-text {FP32} -o out --json",
    "tokens": f"encode tokens -m bert --pool lmk --gran 8 {FP32} -o out --json",
    "tokens-of-another": "encode tokens -m roberta --pool mean -o out",
    "tokens-and-fields": "encode tokens -m bert --pool mean --fields text -o out",
    "fields": f"encode docs.jsonl -m bert --pool mean --fields title+body {FP32} -o out --json",
    "unknown-field": "encode docs.jsonl -m bert --pool mean --fields nothing -o out",
    "map-ids": f"encode bad/id.jsonl -m bert --pool mean --map-ids {FP32} -o out --json",
    "folder": f"encode folder:notes -m bert --pool mean {FP32} -o out --json",
    "stdin": Case(
        f"encode - -m bert --pool mean {FP32} -o out --json",
        stdin='{"_id": "a", "text": "copper"}\n{"_id": "b", "text": "rivers"}\n',
    ),
    "only": f"encode small -m bert --pool mean --only five.trec {FP32} -o out --json",
    "dry-run": "encode small -m bert --pool mean --dry-run",
    "dry-run-json": "encode small -m bert --pool mean --dry-run --json",
    "shard": f"encode small -m bert --pool mean {FP32} --shard 1/3 -o out --json",
    "last-shard": Case(
        f"encode small -m bert --pool mean {FP32} --shard 1/2 -o out",
        (f"encode small -m bert --pool mean {FP32} --shard 0/2 -o out",),
    ),
    "again": f"encode small -m bert --pool mean {FP32} -o v",
    "resume": Case(
        f"encode small -m bert --pool mean {FP32} -o v --json",
        (remove("v/done"), remove("v/parts/0*")),
    ),
    "overwrite": f"encode small -m bert --pool cls {FP32} -o v --if-exists overwrite --json",
    "exists": "encode small -m bert --pool mean -o v --if-exists fail",
    "other-recipe": f"encode small -m bert --pool cls {FP32} -o v",
    "other-model": f"encode small -m modernbert --pool mean {FP32} -o v",
    "other-dtype": "encode small -m bert --pool mean -o v",
    "changed-collection": Case(f"encode small -m bert --pool mean {FP32} -o v", (shorten,)),
    "update": Case(
        f"encode small -m bert --pool mean {FP32} -o v --if-exists update --json", (shorten,)
    ),
    "update-new": f"encode small -m bert --pool mean {FP32} -o out --if-exists update",
    "update-other-recipe": f"encode small -m bert --pool cls {FP32} -o v --if-exists update",
    "not-ours": "encode small -m bert -o thesis --if-exists overwrite",
    "overflow": f"encode long.jsonl -m bert --pool mean {FP32} -o out --json",
    "overflow-error": "encode long.jsonl -m bert --pool mean --on-overflow error -o out",
    "empty-collection": "encode bad/none.jsonl -m bert --pool mean -o out --json",
    "bad-id": "encode bad/id.jsonl -m bert --pool mean -o out",
    "bad-twice": "encode bad/twice.jsonl -m bert --pool mean -o out",
    "bad-text": "encode bad/text.jsonl -m bert --pool mean -o out",
    "group": Case(
        "encode longembed/passkey -m bert --pool mean --dtype fp32 --store-dtype fp32 -o out",
        env=MIRROR,
    ),
    "conteb": Case(
        f"encode conteb/football -m bert --pool mean --unit chunk --gran given {FP32} -o out --json",
        env=MIRROR,
    ),
    "no-model": "encode small -o out",
    "no-output": "encode small -m bert",
    "no-collection": "encode ./nothing -m bert -o out",
    "no-model-folder": "encode small -m ./nothing -o out",
    "model-name": "encode small -m minlm -o out",
    "collection-name": "encode beir/scifct/test -m bert -o out",
    "collection-option": "encode small,field=x -m bert -o out",
    "pool-name": "encode small -m bert --pool lmkk --gran 8 -o out",
    "pool-without-gran": "encode small -m bert --pool lmk -o out",
    "gran-without-effect": "encode small -m bert --pool cls --gran 8 -o out",
    "dtype-name": "encode small -m bert --dtype fp8 -o out",
    "shard-wrong": "encode small -m bert --shard 3/3 -o out",
    "batch-size-0": "encode small -m bert --batch-size 0 -o out",
    "max-length-2": "encode small -m bert --max-length 2 -o out",
    "max-length-long": "encode small -m bert --pool mean --max-length 4000 -o out",
    "revision": "encode small -m bert --revision x -o out",
    "unit-name": "encode small -m bert --unit word -o out",
    "device-name": "encode small -m bert --pool mean --device cuda -o out",
    "pad-to-max": "encode small -m bert --pool mean --pad-to-max -o out",
    "overlap-without-window": "encode small -m bert --pool mean --overlap 4 -o out",
    "dim-too-large": "encode small -m bert --pool mean --dim 64 -o out",
    "damaged-tokens": Case(
        "encode tokens -m bert --pool mean -o out", (cut("tokens/parts/0*/ids.npy"),)
    ),
    "damaged-model": Case(
        "encode small -m bert --pool mean -o out", (cut("bert/model.safetensors"),)
    ),
}

INDEX: Group = {
    "hnsw": "index v -o out",
    "hnsw-json": "index v --m 8 --ef-construction 40 -o out --json",
    "ivf": "index v --kind ivf -o out --json",
    "int8": "index v --kind int8 -o out --json",
    "binary": "index v --kind binary -o out --json",
    "pq": "index v --kind pq -o out --json",
    "factory": "index v --kind IVF1,Flat -o out --json",
    "factory-wrong": "index v --kind IVF4096,PQ64 -o out",
    "chunks": "index chunks -o out --json",
    "max-memory": "index v --max-memory 1KB -o out",
    "bm25": "index small --kind bm25 -o out",
    "bm25-json": "index small --kind bm25 --k1 1.2 --b 0.7 --language de -o out --json",
    "bm25-stemmer": "index small --kind bm25 --stemmer porter --stopwords stop.txt -o out --json",
    "bm25-no-stemmer": "index small --kind bm25 --stemmer none --stopwords none -o out --json",
    "bm25-chunks": "index small --kind bm25 --unit chunk --gran 8 --context title -o out --json",
    "bm25-fields": Case(
        "index docs.jsonl --kind bm25 --fields title+body -o out --json", probe="questions.tsv"
    ),
    "bm25-map-ids": Case("index bad/id.jsonl --kind bm25 --map-ids -o out", probe="questions.tsv"),
    "bm25-group": Case("index longembed/passkey --kind bm25 -o out", env=MIRROR, probe=""),
    "bm25-shard": "index small --kind bm25 --shard 0/2 -o out",
    "bm25-stdin": Case(
        "index - --kind bm25 -o out --json",
        stdin='{"_id": "a", "text": "copper"}\n',
        probe="questions.tsv",
    ),
    "shard": "index v --kind IVF1,Flat --shard 0/2 -o out --json",
    "joined": Case(
        "index v --kind IVF1,Flat -o out --json",
        (
            "index v --kind IVF1,Flat --shard 0/2 -o out",
            "index v --kind IVF1,Flat --shard 1/2 -o out",
        ),
    ),
    "apart": Case(
        "index v --kind IVF1,Flat --apart -o out --json",
        (
            "index v --kind IVF1,Flat --shard 0/2 -o out",
            "index v --kind IVF1,Flat --shard 1/2 -o out",
        ),
    ),
    "again": "index v -o hnsw",
    "other": "index v --m 8 -o hnsw",
    "overwrite": "index v --m 8 -o hnsw --if-exists overwrite --json",
    "exists": "index v -o hnsw --if-exists fail",
    "update": Case(
        "index v -o hnsw --if-exists update",
        (shorten, f"encode small -m bert --pool mean {FP32} -o v --if-exists update"),
    ),
    "update-bm25": Case("index small --kind bm25 -o bm25 --if-exists update --json", (shorten,)),
    "incomplete": Case(
        "index out -o i", (f"encode small -m bert --pool mean {FP32} --shard 0/2 -o out",)
    ),
    "allow-incomplete": Case(
        "index out --allow-incomplete -o i --json",
        (f"encode small -m bert --pool mean {FP32} --shard 0/2 -o out",),
    ),
    "token-vectors": Case(
        "index out -o i", (f"encode docs.jsonl -m bert --unit token {FP32} -o out",)
    ),
    "kind-name": "index v --kind hnws -o out",
    "no-output": "index v",
    "collection-as-vectors": "index small -o out",
    "k1-without-effect": "index v --k1 1 -o out",
    "m-without-effect": "index small --kind bm25 --m 8 -o out",
    "gran-without-unit": "index small --kind bm25 --gran 8 -o out",
    "language-name": "index small --kind bm25 --language xx -o out",
    "milvus-without-uri": "index v --kind milvus -o out",
    "not-ours": "index v -o thesis",
    "onto-input": "index v --kind hnsw -o v --if-exists overwrite",
    "damaged-vectors": Case("index v -o out", (cut("v/parts/0*/vectors.npy"),)),
    "damaged-manifest": Case("index v -o out", (cut("v/manifest.json"),)),
}

SEARCH: Group = {
    "run": "search v small -k 5 -o out.trec",
    "run-json": "search v small -k 5 -o out.trec --json",
    "run-gz": "search v small -k 5 --tag mine -o out.trec.gz --json",
    "no-output": "search v small -k 2",
    "all-queries": "search v small --all-queries -k 3 -o out.trec --json",
    "question": 'search v -q "copper conducts electricity" -k 3',
    "question-json": 'search v -q "copper conducts electricity" -k 3 --json',
    "question-chunks": 'search chunks -q "copper conducts electricity" -k 3 --json',
    "question-bm25": 'search bm25 -q "copper conducts electricity" -k 3 --json',
    "question-empty": 'search v -q "" -k 1 --json',
    "question-docs": 'search dv -q "flat tyre"',
    "interactive": Case("search v -i -k 2", stdin="copper\nrivers carry water\n"),
    "hnsw": "search hnsw small -k 5 --ef-search 60 -o out.trec --json",
    "bm25": "search bm25 small -k 5 -o out.trec --json",
    "run-input": "search run.trec small -k 3 -o out.trec --json",
    "chunk-level": "search chunks small -k 5 --level chunk -o out.trec --json",
    "chunk-sum": "search chunks small -k 5 --aggregate sum -o out.trec --json",
    "chunk-avg": "search chunks small -k 5 --aggregate avg -o out.trec --json",
    "chunk-first": "search chunks small -k 5 --aggregate first -o out.trec --json",
    "token": Case(
        "search out -q water -k 2 --json",
        (f"encode docs.jsonl -m bert --unit token {FP32} -o out",),
    ),
    "ivf-nprobe": Case(
        "search ivf small -k 3 --nprobe 1 -o out.trec", ("index v --kind IVF1,Flat -o ivf",)
    ),
    "binary": Case(
        "search out small -k 3 -o out.trec",
        ("encode small -m bert --pool mean --dtype fp32 --store-dtype binary -o out",),
    ),
    "int8": Case(
        "search out small -k 3 -o out.trec",
        ("encode small -m bert --pool mean --dtype fp32 --store-dtype int8 -o out",),
    ),
    "max-memory": "search v small -k 5 --max-memory 16GB -o out.trec --json",
    "rrf": "search bm25 small --with v --fuse rrf:10 -k 5 -o out.trec --json",
    "linear": "search run.trec small --with bm25 --fuse linear:0.3,0.7 --fuse-scale zscore -k 5 -o out.trec --json",
    "runs": "search run.trec small --with bm25.trec --with five.trec --fuse linear -k 5 -o out.trec",
    "rerank": "search bm25 small --rerank v --rerank-depth 7 --interpolate 0.5 -o out.trec --json",
    "rerank-question": 'search bm25 -q "copper conducts" --rerank chunks --json',
    "rerank-model": "search bm25 small --rerank-model cross --rerank-depth 5 -o out.trec --json",
    "rerank-model-run": "search bm25.trec small --rerank-model cross --rerank-depth 5 -o out.trec",
    "rm3": "search bm25 small --rm3 --rm3-terms 3 --rm3-docs 2 --rm3-weight 0.4 -k 5 -o out.trec --json",
    "rocchio": "search bm25 small --rocchio -k 5 -o out.trec",
    "dtype": "search v small -k 5 --dtype fp32 --device cpu --offline -o out.trec --json",
    "rerank-dtype": "search bm25 small --rerank-model cross --dtype fp32 -o out.trec",
    "moved-model": Case(
        "search v small -k 3 --model elsewhere -o out.trec", (move("bert", "elsewhere"),)
    ),
    "lost-model": Case("search v small -k 3 -o out.trec", (move("bert", "elsewhere"),)),
    "other-model": "search v small -k 3 --model modernbert -o out.trec",
    "moved-vectors": Case("search hnsw small -k 3 --vectors w -o out.trec", (move("v", "w"),)),
    "lost-vectors": Case("search hnsw small -k 3 -o out.trec", (move("v", "w"),)),
    "queries-tsv": "search dv questions.tsv -k 2 -o out.trec --json",
    "queries-option": "search dv docs.jsonl,queries=questions.tsv,qrels=judged.qrels -k 2 -o out.trec --json",
    "queries-stdin": Case(
        "search v - -k 2 -o out.trec --json", stdin='{"_id": "a", "text": "copper"}\n'
    ),
    "shard": "search v small -k 5 --shard 0/2 -o out.trec --json",
    "joined": Case(
        "search v small -k 5 -o out.trec --json",
        (
            "search v small -k 5 --shard 0/2 -o out.trec",
            "search v small -k 5 --shard 1/2 -o out.trec",
        ),
    ),
    "shards-missing": Case(
        "search v small -k 5 -o out.trec", ("search v small -k 5 --shard 0/2 -o out.trec",)
    ),
    "group": Case(
        "search b longembed/passkey -k 3 -o out",
        ("index longembed/passkey --kind bm25 -o b",),
        env=MIRROR,
    ),
    "again": "search v small -k 10 -o run.trec",
    "other-k": "search v small -k 6 -o run.trec",
    "overwrite": "search v small -k 6 -o run.trec --if-exists overwrite --json",
    "exists": "search v small -k 10 -o run.trec --if-exists fail",
    "behind": Case(
        'search hnsw -q "copper conducts electricity" -k 1 --json',
        (shorten, f"encode small -m bert --pool mean {FP32} -o v --if-exists update"),
    ),
    "no-index": "search ./nothing small -o out.trec",
    "no-queries": "search v",
    "model-as-queries": "search v bert -o out.trec",
    "split-name": "search v small:tset -o out.trec",
    "tag-without-effect": "search v -q x --tag t",
    "nprobe-without-effect": "search v small --nprobe 4 -o out.trec",
    "fuse-without-with": "search v small --fuse rrf -o out.trec",
    "with-without-fuse": "search bm25 small --with v -o out.trec",
    "fuse-name": "search bm25 small --with v --fuse borda -o out.trec",
    "weights-wrong": "search bm25 small --with v --fuse linear:1 -o out.trec",
    "with-twice": "search bm25 small --with bm25 --fuse rrf -o out.trec",
    "depth-without-effect": "search bm25 small --rerank-depth 5 -o out.trec",
    "interpolate-wrong": "search bm25 small --rerank v --interpolate 1.5 -o out.trec",
    "two-rerankers": "search bm25 small --rerank v --rerank-model cross -o out.trec",
    "level-without-chunks": "search v small --level chunk -o out.trec",
    "rm3-without-effect": "search v small --rm3 -o out.trec",
    "k-0": "search v small -k 0 -o out.trec",
    "run-question": "search run.trec -q river",
    "not-ours": "search v small -o thesis/chapter.tex",
    "damaged-index": Case("search hnsw small -k 3 -o out.trec", (cut("hnsw/1/faiss.index"),)),
    "damaged-vectors": Case("search v small -k 3 -o out.trec", (cut("v/parts/0*/vectors.npy"),)),
    "missing-part": Case("search v small -k 3 -o out.trec", (remove("v/parts/0*"),)),
    "incomplete": Case("search v small -k 3 -o out.trec", (remove("v/done"),)),
    "damaged-run": "search bad/run.trec small -o out.trec",
}

EVAL: Group = {
    "table": "eval run.trec",
    "json": "eval run.trec bm25.trec -m nDCG@10 -m R@5 --json",
    "format-json": "eval run.trec -f json",
    "markdown": "eval run.trec bm25.trec -f markdown",
    "csv": "eval run.trec bm25.trec -f csv",
    "latex": "eval run.trec bm25.trec -f latex",
    "names": "eval run.trec bm25.trec --name dense --name lexical -f csv",
    "qrels": "eval better.trec base.trec --qrels qrels.txt -m RR@10 --json",
    "qrels-first": "eval qrels.txt better.trec -m P@1 --json",
    "qrels-collection": "eval run.trec --qrels small --json",
    "per-query": "eval run.trec -m nDCG@10 -p --json",
    "per-query-table": "eval better.trec --qrels qrels.txt -m RR@10 -p",
    "baseline": "eval run.trec bm25.trec --baseline run.trec --json",
    "baseline-table": "eval better.trec base.trec --qrels qrels.txt --baseline base.trec -m RR@10",
    "correction": "eval better.trec base.trec --qrels qrels.txt --baseline base.trec -m RR@10 -m P@1"
    " --correction bonferroni --json",
    "all-pairs": "eval run.trec bm25.trec five.trec --all-pairs -m nDCG@10 --json",
    "by-length": "eval bm25.trec -m nDCG@10 --by length --bins 0,20,200 --json",
    "by-query-length": "eval bm25.trec -m nDCG@10 --by query-length",
    "log": "eval bm25.trec -m nDCG@10 --log scores.jsonl --json",
    "log-new": "eval better.trec --qrels qrels.txt -m P@1 --log new.jsonl",
    "drop-self": "eval run.trec --drop-self yes -m nDCG@10 --json",
    "strict": "eval five.trec base.trec --qrels small --strict",
    "ir-metadata": "eval run.trec -m nDCG@10 --ir-metadata",
    "plot": "eval run.trec bm25.trec -m nDCG@10 --plot out.svg",
    "plot-kind": "eval run.trec bm25.trec -m nDCG@10 --plot out.gif",
    "folder": Case(
        "eval runs --json",
        (
            "index longembed/passkey/256 --kind bm25 -o b",
            "search b longembed/passkey/256 -k 3 -o runs/a.trec",
        ),
        env=MIRROR,
    ),
    "measure-name": "eval run.trec -m nDGC@10",
    "measures-together": "eval run.trec -m AP R@5",
    "no-run": "eval no.trec",
    "no-qrels": "eval better.trec",
    "baseline-not-a-run": "eval better.trec --qrels qrels.txt --baseline base.trec",
    "two-tables": "eval better.trec base.trec --qrels qrels.txt --baseline base.trec --per-query",
    "bins-without-by": "eval run.trec --bins 1,2",
    "by-name": "eval run.trec --by colour",
    "correction-without-effect": "eval run.trec --correction holm",
    "json-and-format": "eval run.trec --json -f csv",
    "names-too-few": "eval run.trec bm25.trec --name dense",
    "damaged-run": "eval bad/run.trec --qrels qrels.txt",
    "document-twice": Case(
        "eval better.trec --qrels qrels.txt", (append("better.trec", "q1 Q0 d1 9 0.5 x\n"),)
    ),
}

PAIRS = "train pairs.jsonl -m bert --pool mean --max-length 32"
FEW = "--steps 2 --batch-size 8 --dtype fp32 --log-every 1"
TRAIN: Group = {
    "plain": f"{PAIRS} {FEW} -o out",
    "json": f"train pairs.jsonl small:test,per_query=1 -m bert --pool lmk --gran 4,8 --max-length 32 {FEW} -o out --json",
    "config": "train pairs.jsonl --config train.toml -o out --json",
    "settings": f"{PAIRS} --epochs 1 --batch-size 8 --lr 1e-3 --warmup 1"
    " --schedule cosine --weight-decay 0.1 --max-grad-norm 0.5 --seed 3 --temperature 0.05 --symmetric --dtype fp32"
    " --log-every 1 --batches mixed --sampling-temperature 2 --no-like-length -o out --json",
    "m3-kd": f"train scored.jsonl,per_query=3 -m bert --pool cls --max-length 32 --loss m3-kd {FEW} -o out --json",
    "margin-mse": f"train scored.jsonl -m bert --pool cls --max-length 32 --loss margin-mse {FEW} -o out --json",
    "kl": f"train scored.jsonl -m bert --pool cls --max-length 32 --loss kl {FEW} -o out --json",
    "token": f"train scored.jsonl -m bert --unit token --max-length 32 {FEW} -o out --json",
    "chunks": f"train chunked.jsonl -m bert --unit chunk --pool mean --gran given --max-length 64 {FEW} -o out --json",
    "teacher": f"{PAIRS} --teacher roberta --teacher-weight 0.5 {FEW} -o out --json",
    "lora": f"{PAIRS} --lora 2 --lr 1e-3 {FEW} -o out --json",
    "freeze": f"{PAIRS} --freeze embeddings --lr 1e-3 {FEW} -o out --json",
    "parts": f"{PAIRS} --train layers.1,norms --lr 1e-3 {FEW} -o out",
    "caching": f"{PAIRS} --batch-tokens 128 {FEW} -o out --json",
    "checkpointing": f"{PAIRS} --gradient-checkpointing {FEW} -o out --json",
    "skip-positions": f"train pairs.jsonl -m bert --pool mean --max-length 64 --skip-positions 0.5 {FEW} -o out --json",
    "window": f"train pairs.jsonl -m bert --pool lmk --gran 4,8 --max-length 32 --window 16 {FEW} -o out",
    "prompts": f'{PAIRS} --query-prompt "query: " --doc-prompt "doc: "'
    f" --query-max-length 16 {FEW} -o out --json",
    "extend": f"train pairs.jsonl -m bert --pool mean --extend interpolate --max-length 160 {FEW} -o out --json",
    "negatives": f"train small:test,negatives=bm25.trec,depth=1:10,per_query=2 -m bert --pool mean --max-length 32 {FEW}"
    " -o out --json",
    "dev": f"{PAIRS} --steps 4 --batch-size 8 --dtype fp32 --log-every 1"
    " --dev small:test --dev-every 2 --dev-measure RR@10 --patience 1 -o out --json",
    "dry-run": f"train pairs.jsonl -m bert --pool lmk --gran 4,8 --max-length 32 {FEW} --dry-run",
    "dry-run-json": f"train pairs.jsonl -m bert --pool lmk --gran 4,8 --max-length 32 {FEW} --dry-run --json",
    "save-every": f"{PAIRS} --save-every 1 {FEW} -o out --json",
    "again": "train pairs.jsonl -m bert --pool lmk --gran 4,8 --max-length 32 --steps 4 --batch-size 8 --dtype fp32"
    " --log-every 1 -o model",
    "other-settings": "train pairs.jsonl -m bert --pool lmk --gran 4,8 --max-length 32 --steps 4 --batch-size 8"
    " --dtype fp32 --log-every 1 --lr 1 -o model",
    "overwrite": f"{PAIRS} {FEW} -o model --if-exists overwrite --json",
    "from-trained": f"train pairs.jsonl -m model {FEW} -o out --json",
    "stdin": Case(
        "train - -m bert --pool mean --max-length 32 --steps 1 --batch-size 2 --dtype fp32 -o out --json",
        stdin='{"query": "a b", "positive": "copper"}\n{"query": "c d", "positive": "rivers"}\n',
    ),
    "no-examples": "train no.jsonl -m bert --pool mean -o out",
    "empty": "train bad/none.jsonl -m bert --pool mean -o out",
    "bad-json": "train bad/json.jsonl -m bert --pool mean -o out",
    "option-name": "train pairs.jsonl,wieght=2 -m bert --pool mean -o out",
    "loss-name": "train pairs.jsonl -m bert --pool mean --loss infonse -o out",
    "loss-without-scores": f"train pairs.jsonl -m bert --pool mean --loss kl {FEW} -o out",
    "no-output": "train pairs.jsonl -m bert --pool mean",
    "batch-too-large": f"{PAIRS} --batch-size 100 --steps 1 -o out",
    "symmetric-without-effect": "train scored.jsonl -m bert --pool mean --loss kl --symmetric -o out",
    "dev-every-without-dev": "train pairs.jsonl -m bert --pool mean --dev-every 2 -o out",
    "dims-wrong": "train pairs.jsonl -m bert --pool mean --dims 64,32 --steps 1 -o out",
    "parts-wrong": "train pairs.jsonl -m bert --pool mean --train layers.9 --steps 1 -o out",
    "lr-wrong": "train pairs.jsonl -m bert --pool mean --lr fast -o out",
}

PRETRAIN: Group = {
    "mlm": f"pretrain small -m bert --max-length 32 {FEW} -o out",
    "mlm-json": f"pretrain small,weight=2 other -m bert --max-length 32 --mask 0.2 --no-whole-words {FEW} -o out --json",
    "blocks": f"pretrain tokens -m bert --max-length 32 --blocks {FEW} -o out --json",
    "retromae": f"pretrain small -m bert --objective retromae --pool lmk --gran 4,8 --max-length 32 {FEW} -o out --json",
    "retromae-settings": f"pretrain small -m bert --objective retromae --pool cls --max-length 32 --decoder-mask 0.4"
    f" --mask-pool 8 --query-stream raw {FEW} -o out --json",
    "dupmae": f"pretrain small -m bert --objective dupmae --pool cls --max-length 32 {FEW} -o out --json",
    "tite": f"pretrain small -m tite --objective tite {FEW} -o out --json",
    "new-m2bert": f"pretrain small --architecture m2.json --tokenizer bert --no-pad-to-max {FEW} -o out --json",
    "new-bert": f"pretrain small --architecture new-bert.toml --tokenizer bert --max-length 64 {FEW} -o out",
    "init-from": f"pretrain small --architecture new-bert.toml --tokenizer bert --init-from bert --max-length 64 {FEW}"
    " -o out --json",
    "dry-run": f"pretrain small -m bert --objective retromae --pool lmk --gran 4,8 --max-length 32 {FEW} --dry-run",
    "dry-run-json": f"pretrain small -m bert --max-length 32 {FEW} --dry-run --json",
    "no-model": "pretrain small -o out",
    "objective-name": "pretrain small -m bert --objective mlmm -o out",
    "tite-of-bert": f"pretrain small -m bert --objective tite {FEW} -o out",
    "pool-without-effect": f"pretrain small -m bert --pool cls {FEW} -o out",
    "architecture-empty": Case(
        "pretrain small --architecture none.json --tokenizer bert -o out",
        (write("none.json", "{}"),),
    ),
    "architecture-without-tokenizer": "pretrain small --architecture m2.json -o out",
    "mask-wrong": "pretrain small -m bert --mask 1.5 -o out",
    "empty": "pretrain bad/none.jsonl -m bert --max-length 32 --steps 1 -o out",
}

UPDATE: Group = {
    "nothing-new": "update small v hnsw bm25",
    "changed": Case("update small hnsw v bm25", (shorten,)),
    "changed-json": Case("update small v hnsw bm25 --json", (shorten,)),
    "chunks": Case("update small chunks --json", (shorten,)),
    "twice": Case("update small v hnsw --json", (shorten, "update small v hnsw", append(
        "small/corpus.jsonl", '{"_id": "later", "text": "bakers knead bread"}\n'))),
    "variable-ignored": Case("update small v --json", (shorten,), env={"LMK_ENCODE_POOL": "cls"}),
    "missing": "update small v ./nothing",
    "tokens": "update small tokens",
    "other-collection": "update other v",
    "no-folder": "update small",
    "download": Case("update small v --download --json", (shorten,)),
}  # fmt: skip

COMPACT: Group = {
    "not-updated": "compact v",
    "updated": Case("compact v", (shorten, "update small v")),
    "json": Case("compact v --json", (shorten, "update small v")),
    "now": Case("compact v --keep-hours 0 --json", (shorten, "update small v", "compact v")),
    "index": "compact hnsw",
    "hours-wrong": "compact v --keep-hours -1",
    "missing": "compact ./nothing",
}

EXCHANGE: Group = {
    "export-numpy": "export v --to numpy -o out",
    "export-parquet": "export v --to parquet -o out --json",
    "export-pyserini": "export v --to pyserini -o out --json",
    "export-tevatron": "export v --to tevatron -o out --json",
    "export-chunks": "export chunks --to numpy -o out --json",
    "export-model": 'export --to sentence-transformers -m bert --pool lmk --gran 8 --max-length 40 --doc-prompt "p: "'
    " -o out --json",
    "export-model-cls": "export --to sentence-transformers -m bert --pool cls -o out",
    "export-examples": "export pairs.jsonl --to tevatron-train -o out --json",
    "export-examples-of-collection": "export small:test,negatives=bm25.trec --to tevatron-train -o out --json",
    "export-again": "export v --to numpy -o exported",
    "export-other": "export v --to parquet -o exported",
    "export-overwrite": "export v --to parquet -o exported --if-exists overwrite --json",
    "export-exists": "export v --to numpy -o exported --if-exists fail",
    "export-no-output": "export v --to numpy",
    "export-no-vectors": "export --to numpy -o out",
    "export-target": "export v --to faiss -o out",
    "export-pool": "export v --to numpy --pool cls -o out",
    "export-model-without": "export --to sentence-transformers -o out",
    "export-variable": Case("export v -o out --json", env={"LMK_EXPORT_TO": "parquet"}),
    "export-missing": "export ./nothing --to numpy -o out",
    "import-numpy": "import exported --from numpy -m bert --pool mean -o out",
    "import-json": "import exported --from numpy -m bert --pool mean -o out --json",
    "import-ids": "import exported/vectors.npy --from numpy --ids exported/ids.txt -m bert -o out --json",
    "import-pyserini": "import theirs --from pyserini -m bert --pool mean -o out --json",
    "import-without-model": "import exported --from numpy -o out --json",
    "import-chunks": Case(
        "import theirs-chunks --from numpy --unit chunk --gran 8 --pool lmk -m bert -o out --json",
        ("export chunks --to numpy -o theirs-chunks",),
    ),
    "import-dim": "import exported --from numpy -m bert --dim 16 -o out",
    "import-no-ids": "import exported/vectors.npy --from numpy -o out",
    "import-no-from": "import exported -o out",
    "import-from-name": "import exported --from tevatron -o out",
    "import-gran": "import exported --from numpy --gran 8 -o out",
    "import-missing": "import ./nothing --from numpy -o out",
    "import-onto-input": "import exported --from numpy -o exported --if-exists overwrite",
    "import-damaged": Case(
        "import exported --from numpy -m bert -o out", (cut("exported/vectors.npy"),)
    ),
    "imported-search": Case(
        "search out small -k 3 -o out.trec",
        ("import exported --from numpy -m bert --pool mean -o out",),
    ),
    "imported-search-without-model": Case(
        "search out -q x", ("import exported --from numpy -o out",)
    ),
}

FETCH: Group = {
    "nothing": "fetch",
    "local": "fetch ./small",
    "group-from-mirror": Case("fetch longembed/passkey", env=MIRROR),
    "json": Case("fetch longembed/passkey/256 --json", env=MIRROR),
    "offline": "fetch longembed/qmsum",
    "offline-beir": "fetch nano-beir/scifact",
    "offline-model": "fetch -m nobody/no-such-model",
    "local-model": "fetch -m bert --revision main",
    "revision-without-model": "fetch small --revision main",
    "name": "fetch longembed/paskey",
}

GRID: Group = {
    "dry-run": "grid grid.toml -o out --dry-run",
    "dry-run-json": "grid grid.toml -o out --dry-run --json",
    "dry-run-only": "grid grid.toml -o out --dry-run --only '*other_lmk_16_32'",
    "run": "grid tiny-grid.toml -o out --json",
    "again": Case("grid tiny-grid.toml -o out -f latex", ("grid tiny-grid.toml -o out",)),
    "failing": "grid failing-grid.toml -o out -f csv",
    "no-output": "grid tiny-grid.toml",
    "no-file": "grid no.toml -o out",
    "pool-name": "grid bad/grid.toml -o out",
    "only-name": "grid tiny-grid.toml -o out --only x",
    "baseline-wrong": "grid tiny-grid.toml -o out --baseline k1=7",
    "rows-and-columns": "grid tiny-grid.toml -o out --rows k1 --columns collection --json -f csv",
    "axis-name": Case(
        "grid g.toml -o out", (write("g.toml", '[grid]\ncollections = "small"\npol = "cls"\n'),)
    ),
}

ANALYZE: Group = {
    "attention": "analyze attention small -m bert --pool cls --pool lmk --gran 4 --docs 3 --min-tokens 10 --bins 4"
    " --dtype fp32 -o out.svg",
    "attention-json": "analyze attention small -m bert --pool cls --docs 3 --min-tokens 10 --bins 4 --layers each"
    " --dtype fp32 --json",
    "landmarks": "analyze landmarks small -m bert --gran 4 --docs 3 --min-tokens 20 --dtype fp32 --json",
    "lengths": "analyze lengths small",
    "lengths-json": "analyze lengths small -m bert --json",
    "map": "analyze map chunks --by chunk --docs 5",
    "map-json": "analyze map v --docs 5 --by title --json",
    "map-figure": "analyze map chunks --by doc --docs 5 -o out.png",
    "similarity": "analyze similarity chunks --doc d049",
    "similarity-json": "analyze similarity chunks --doc d049 --json -o out.svg",
    "umap": "analyze map chunks --method umap",
    "name": "analyze atention small",
    "no-model": "analyze attention small",
    "no-gran": "analyze landmarks small -m bert",
    "gran-without-effect": "analyze map chunks --gran 3",
    "by-name": "analyze map chunks --by nothing",
    "document-name": "analyze similarity chunks --doc x",
    "figure-kind": "analyze map chunks -o out.bmp",
    "too-short": "analyze attention small -m bert --pool cls --min-tokens 5000",
}

PLOT: Group = {
    "curve": "plot scores.jsonl --x k -m nDCG@10 -o out.svg",
    "json": "plot scores.jsonl --x k -o out.svg --json",
    "by": "plot scores.jsonl --x k --by pool -o out.png --json",
    "training": "plot model -o out.svg",
    "training-json": "plot model -o out.svg --json",
    "parameter": "plot scores.jsonl --x dim -o out.svg",
    "no-x": "plot scores.jsonl -o out.svg",
    "no-output": "plot scores.jsonl --x k",
    "measure": "plot scores.jsonl --x k -m AP -o out.svg",
    "kind": "plot scores.jsonl --x k -o out.bmp",
    "missing": "plot ./nothing --x k -o out.svg",
    "damaged": "plot bad/log.jsonl --x k -o out.svg",
    "training-x": "plot model --x gran -o out.svg",
}

VERIFY: Group = {
    "vectors": "verify v",
    "json": "verify v --sample 5 --json",
    "chunks": "verify chunks --sample 5 --device cpu --json",
    "index": "verify hnsw --json",
    "bm25": "verify bm25",
    "moved-model": Case(
        "verify v --sample 5 --model elsewhere --json", (move("bert", "elsewhere"),)
    ),
    "flipped-vectors": Case("verify v", (flip("v/parts/0*/vectors.npy"),)),
    "flipped-index": Case("verify hnsw", (flip("hnsw/1/faiss.index"),)),
    "no-text": Case(
        "verify out", (f"encode small -m bert --pool mean --no-store-text {FP32} -o out",)
    ),
    "sample-without-effect": "verify hnsw --sample 5",
    "missing": "verify ./nothing",
    "run": "verify run.trec",
    "damaged-text": Case("verify v", (cut("v/parts/0*/docs.parquet"),)),
}

REPRO: Group = {
    "run": "repro run.trec",
    "json": "repro bm25.trec --json",
    "log": "repro scores.jsonl#2 --json",
    "vectors": "repro chunks --json",
    "index": "repro hnsw --json",
    "keep": "repro run.trec -o again",
    "keep-exists": "repro run.trec -o thesis",
    "changed-document": Case(
        "repro run.trec", (replace("small/corpus.jsonl", "landmark", "landmarc"),)
    ),
    "changed-run": Case("repro run.trec --json", (replace("run.trec", "q0 Q0", "q0 Q1"),)),
    "tolerance": "repro run.trec --tolerance 0.1 --json",
    "log-number": "repro scores.jsonl#9",
    "foreign-run": "repro better.trec",
    "missing": "repro ./nothing",
    "model": "repro model",
}

SHOW: Group = {
    "vectors": "show v",
    "vectors-json": "show v --json",
    "verbose": "-v show v",
    "chunks": "show chunks --json",
    "tokens": "show tokens --json",
    "hnsw": "show hnsw --json",
    "bm25": "show bm25",
    "bm25-json": "show bm25 --json",
    "run": "show run.trec",
    "run-json": "show run.trec --json",
    "foreign-run": "show better.trec --json",
    "log": "show scores.jsonl",
    "log-json": "show scores.jsonl --json",
    "model": "show model --json",
    "trained": "show model",
    "export": "show exported --json",
    "collection": "show ./small --json",
    "collection-file": "show docs.jsonl",
    "folder": "show folder:notes --json",
    "shards": Case("show out", (f"encode small -m bert --pool mean {FP32} --shard 0/3 -o out",)),
    "shards-json": Case(
        "show out --json", (f"encode small -m bert --pool mean {FP32} --shard 0/3 -o out",)
    ),
    "updated": Case("show v --json", (shorten, "update small v")),
    "sources": "show sources",
    "sources-json": "show sources --json",
    "sources-group": "show sources longembed --json",
    "source": "show source longembed/qmsum",
    "group": "show longembed --json",
    "poolers": "show poolers",
    "poolers-json": "show poolers --json",
    "models": "show models --json",
    "indexes": "show indexes --json",
    "objectives": "show objectives --json",
    "pretexts": "show pretexts --json",
    "name": "show poolrs",
    "source-name": "show sources bier",
    "source-without-name": "show source",
    "name-without-effect": "show v nq",
    "missing": "show ./nothing",
    "damaged-manifest": Case("show v", (cut("v/manifest.json"),)),
    "older-format": Case("show v", (replace("v/manifest.json", '"format": 1', '"format": 99'),)),
}

GROUPS: dict[str, Group] = {
    "general": GENERAL,
    "tokenize": TOKENIZE,
    "encode": ENCODE,
    "index": INDEX,
    "search": SEARCH,
    "eval": EVAL,
    "train": TRAIN,
    "pretrain": PRETRAIN,
    "update": UPDATE,
    "compact": COMPACT,
    "exchange": EXCHANGE,
    "fetch": FETCH,
    "grid": GRID,
    "analyze": ANALYZE,
    "plot": PLOT,
    "verify": VERIFY,
    "repro": REPRO,
    "show": SHOW,
    "doctor": {"json": "doctor --json", "table": "doctor"},
    "demo": {"unknown-flag": "demo --fast", "two-folders": "demo one two"},
}
