"""The data of lmk browse: numbers of lmk eval, evidence of the index, and a page of limited size."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lmkcli
from lmkcli.plugins.browse import browse_page, browsing
from tests import tiny

Lmk = Callable[..., Any]
HOSTILE = "</script><script>alert(1)</script><!-- \u202eevil\u2066 \x07 \U0001f468\u200d\U0001f469"


class Page:
    """A page, read back: its overview, and the documents of each query by their ids."""

    def __init__(self, path: Path) -> None:
        self.text = path.read_text("utf-8")
        self.overview = json.loads(self._script("overview"))
        lines = self._script("details").split("\n")
        self.queries = {q[0]: browsing.ShownQuery(*q) for q in self.overview["queries"]}
        self.docs = {
            name: {d[0]: browsing.ShownDocument(*d) for d in json.loads(line)}
            for name, line in zip(self.queries, lines, strict=True)
        }

    def _script(self, name: str) -> str:
        found = re.search(
            rf'<script id="{name}" type="application/json">(.*?)</script>', self.text, re.S
        )
        assert found
        return found[1]


def passage(shown: browsing.ShownDocument, run: int) -> tuple[int, ...] | None:
    found = next((hit[3] for hit in shown.hits if hit[0] == run), None)
    return tuple(found) if found else None


def write_run(path: Path, rankings: dict[str, list[str]]) -> Path:
    lines = [
        f"{query} Q0 {doc} {rank} {100 - rank} {path.stem}\n"
        for query, docs in rankings.items()
        for rank, doc in enumerate(docs, 1)
    ]
    path.write_text("".join(lines))
    return path


@pytest.fixture
def runs(lmk: Lmk, beir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two runs of the collection: `bm25` by lmk, and `other`, of which lmk knows nothing, without q0."""
    monkeypatch.chdir(tmp_path)
    lmk("index", beir, "--kind", "bm25", "-o", "bm25")
    lmk("search", "bm25", beir, "-k", 30, "-o", "bm25.trec")
    rankings = lmkcli.read_run("bm25.trec").rankings
    write_run(Path("other.trec"), {q: r.doc_ids[::-1] for q, r in rankings.items() if q != "q0"})
    return tmp_path


def test_the_numbers_are_those_of_eval(lmk: Lmk, beir: Path, runs: Path) -> None:
    words = ["bm25.trec", "other.trec", "--qrels", beir, "-m", "nDCG@10", "-m", "R(rel=2)@5"]
    done = lmk("browse", *words, "-o", "report.html", "--json").json
    page = Page(Path("report.html"))
    names = page.overview["measures"]
    for row, run in zip(lmk("eval", *words, "--json").json, page.overview["runs"], strict=True):
        assert run["path"] == row["run"]
        assert run["values"] == [row[name] for name in names]
    for row in lmk("eval", *words, "--per-query", "--json").json:
        number = ["bm25.trec", "other.trec"].index(row["run"])
        shown = page.queries[row["query"]].values[number]
        assert shown == [row[name] for name in names]
    for place, by in enumerate(each["name"] for each in page.overview["properties"]):
        rows = lmk("eval", *words, "--by", by, "--json").json
        counts = {row[by]: row["queries"] for row in rows}
        groups = page.overview["properties"][place]["groups"]
        members = [query.groups[place] for query in page.queries.values()]
        assert {name: members.count(number) for number, name in enumerate(groups)} == counts
    assert done["queries"] == len(page.queries) == 12
    assert (page.queries["q0"].hits, page.queries["q0"].first[1]) == ([30, 0], None)


def test_rankings_judgements_and_texts(lmk: Lmk, beir: Path, runs: Path) -> None:
    lmk("browse", "bm25.trec", "other.trec", "-k", 5, "--qrels", beir, "-o", "report.html")
    page = Page(Path("report.html"))
    qrels = {(q, d): grade for q, d, grade in lmkcli.open_collection(str(beir)).qrels()}
    docs = {doc.id: doc for doc in lmkcli.open_collection(str(beir)).docs()}
    rankings = [lmkcli.read_run(name).rankings for name in ("bm25.trec", "other.trec")]
    for query, shown in page.docs.items():
        found = [each[query].doc_ids if query in each else [] for each in rankings]
        first = {name for ranking in found for name in ranking[:5]}
        assert first <= shown.keys()
        assert {d for q, d in qrels if q == query} <= shown.keys()
        for name, doc in shown.items():
            assert doc.grade == qrels.get((query, name))
            places = [(run, r.index(name) + 1) for run, r in enumerate(found) if name in r]
            assert [(hit[0], hit[1]) for hit in doc.hits] == places
            content = docs[name].content
            assert (doc.title, doc.chars) == (docs[name].title, len(content))
            for begin, end, text in doc.excerpts:
                assert text == browsing.clean(content[begin:end])


@pytest.mark.parametrize("level", [[], ["--level", "chunk"]], ids=["documents", "chunks"])
def test_passages_are_those_of_the_index(
    lmk: Lmk,
    tiny_model: Callable[[str], Path],
    tmp_path: Path,
    level: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    collection = tiny.collection(tmp_path / "small", 20, 3)
    words = ["-m", tiny_model("bert"), "--pool", "mean", "--unit", "chunk", "--gran", 8]
    lmk("encode", collection, *words, "-o", "vectors")
    lmk(
        "index", collection, "--kind", "bm25", "--unit", "chunk", "--gran", "sentence", "-o", "bm25"
    )
    for index in ("vectors", "bm25"):
        lmk("search", index, collection, "-k", 6, *level, "-o", f"{index}.trec")
    monkeypatch.chdir(tmp_path.parent)  # recorded paths are those of the search
    page_path = tmp_path / "report.html"
    lmk("browse", tmp_path / "vectors.trec", tmp_path / "bm25.trec", "-o", page_path)
    page = Page(page_path)
    settings = {"level": "chunk"} if level else {}
    queries = list(lmkcli.open_collection(str(collection)).queries())
    for run, index in enumerate(("vectors", "bm25")):
        opened = lmkcli.open_index(tmp_path / index, **settings)
        rankings = lmkcli.read_run(tmp_path / f"{index}.trec").rankings
        for query in [each for each in queries if each.id in page.docs]:
            ids = rankings[query.id].doc_ids
            expected = opened.passages(query, ids)
            shown = page.docs[query.id]
            assert {name: passage(shown[name], run) for name in ids} == {
                name: expected[name][:4] for name in ids
            }
            for name in ids:
                texts = [e[2] for e in shown[name].excerpts]
                assert level or expected[name].text in "".join(texts)
    lmk("browse", tmp_path / "vectors.trec", "--no-passages", "-o", page_path)
    found = [doc for docs in Page(page_path).docs.values() for doc in docs.values()]
    assert not any(passage(doc, 0) for doc in found)


def test_texts_cannot_leave_the_data(
    lmk: Lmk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tiny.collection(tmp_path / "small", 8, 2)
    long = HOSTILE * 3000
    records = [{"_id": "</script>", "title": HOSTILE, "text": long}]
    tiny.write_jsonl(tmp_path / "small" / "corpus.jsonl", records)
    tiny.write_jsonl(tmp_path / "small" / "queries.jsonl", [{"_id": "q0", "text": long}])
    write_run(Path("run.trec"), {"q0": ["</script>", "elsewhere"]})
    lmk("browse", "run.trec", "--qrels", "small", "--name", "<b>&amp;", "-o", "report.html")
    page = Page(Path("report.html"))
    assert page.text.count("<script") == page.text.count("</script") == 3
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00-\x08]", page.text)
    assert "<b>" not in page.text.split("</title>")[0]
    query = page.queries["q0"]
    assert query.chars == len(long)
    assert query.text == browsing.clean(long)[: len(query.text)]
    assert sum(len(e[2]) for e in page.docs["q0"]["</script>"].excerpts) <= 2000
    assert page.docs["q0"]["elsewhere"].chars is None


def test_many_queries_are_sampled_and_texts_are_cut(
    lmk: Lmk, beir: Path, runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ["browse", "bm25.trec", "other.trec", "--qrels", beir, "-o", "report.html"]
    assert "5 queries of 12" in lmk(*words, "--sample", 5).out
    page = Page(Path("report.html"))
    assert (len(page.docs), page.overview["judged"]) == (5, 12)
    assert (
        page.overview["runs"][0]["values"][0]
        == lmk("eval", *words[1:-2], "--json").json[0]["nDCG@10"]
    )
    monkeypatch.setattr(browsing, "HITS", 240)  # six queries of two runs with 20 hits
    assert lmk(*words, "--json").json["queries"] == 6
    whole = Path("report.html").stat().st_size
    monkeypatch.setattr(browsing, "PAGE_BYTES", browsing._REST + 12_000)
    done = lmk(*words, "--json").json
    assert done["excerpt"] < 2000
    assert done["bytes"] == Path("report.html").stat().st_size < whole
    assert done["bytes"] < browsing.PAGE_BYTES


def test_only_a_page_is_replaced(lmk: Lmk, beir: Path, runs: Path) -> None:
    words = ["browse", "bm25.trec"]
    lmk(*words, "-o", "new/report.html")
    first = Path("new/report.html").read_bytes()
    lmk(*words, "-o", "new/report.html")
    assert Path("new/report.html").read_bytes() == first
    Path("mine.html").write_text("<p>mine</p>")
    assert "not made by lmk browse" in lmk(*words, "-o", "mine.html", code=3).err
    assert Path("mine.html").read_text() == "<p>mine</p>"
    assert ".html" in lmk(*words, "-o", "bm25.trec", code=2).err
    assert "-o/--output" in lmk(*words, code=2).err
    lmk(*words, "other.trec", "-o", "two.html", code=2)  # `other` names no judgements
    lmk(*words, "--qrels", beir, "--name", "a", "--name", "b", "-o", "two.html", code=2)
    assert not Path("two.html").exists()


def test_a_run_without_texts(lmk: Lmk, runs: Path) -> None:
    Path("qrels.txt").write_text("q1 0 d001 1\nq1 0 d002 0\n")
    done = lmk("browse", "other.trec", "--qrels", "qrels.txt", "-o", "report.html")
    assert "--collection" in done.err
    page = Page(Path("report.html"))
    assert page.queries["q1"].text == ""
    assert all(doc.chars is None for doc in page.docs["q1"].values())
    assert "--collection" in page.overview["notes"][0]


def test_a_run_of_another_tool_has_the_judgements_and_texts_of_the_collection(
    lmk: Lmk, beir: Path, runs: Path
) -> None:
    """Anserini writes such files, and PyTerrier with ranks from 0."""
    lmk("browse", "other.trec", "--collection", beir, "-o", "given.html")
    lmk("browse", "other.trec", "--qrels", beir, "-o", "report.html")
    lines = [line.split() for line in Path("other.trec").read_text().splitlines()]
    lines = [
        [q, "Q0", doc, str(int(rank) - 1), score, "pyterrier"]
        for q, _, doc, rank, score, _ in lines
    ]
    Path("pt.res").write_text("".join("\t".join(line) + "\n" for line in lines))
    lmk("browse", "pt.res", "--collection", beir, "-o", "pyterrier.html")
    page, given, other = (Page(Path(f"{name}.html")) for name in ("report", "given", "pyterrier"))
    hits = [doc for docs in page.docs.values() for doc in docs.values() if doc.hits]
    assert page.docs == given.docs == other.docs
    assert hits
    assert all(doc.chars and doc.excerpts for doc in hits)
    assert any(doc.title for doc in hits)
    assert all(each.text for each in page.queries.values())
    assert page.overview["notes"] == []


def test_hits_without_a_text_in_the_collection_are_noted(lmk: Lmk, beir: Path, runs: Path) -> None:
    Path("passages.txt").write_text("q1 Q0 d001#0 1 2 maxp\nq1 Q0 d002 2 1 maxp\n")
    done = lmk("browse", "passages.txt", "--collection", beir, "-o", "report.html")
    assert "no text of 1 of the 2 documents" in done.err
    assert "'d001#0'" in Page(Path("report.html")).overview["notes"][0]


def test_the_policy_of_the_page_allows_its_own_parts_only(lmk: Lmk, runs: Path) -> None:
    lmk("browse", "bm25.trec", "-o", "report.html")
    text = Path("report.html").read_bytes()
    found = re.search(rb'Content-Security-Policy" content="([^"]+)"', text)
    assert found
    assert found[1].startswith(b"default-src 'none'; ")
    for part, name in (
        (rb"<style>(.*?)</style>", b"style"),
        (rb"<script>(.*?)</script>", b"script"),
    ):
        (inside,) = re.findall(part, text, re.S)
        assert b"%s-src '%s'" % (name, browse_page._hash(inside).encode()) in found[1]
    assert not re.search(rb"https?://(?!www\.w3\.org)", text.split(b'<script id="overview"')[0])


def test_two_runs_are_compared_with_an_interval_and_a_test(
    lmk: Lmk, beir: Path, runs: Path
) -> None:
    done = lmk(
        "browse", "bm25.trec", "other.trec", "--qrels", beir, "-o", "report.html", "--json"
    ).json
    page = Page(Path("report.html"))
    assert done["documents"] == len({name for docs in page.docs.values() for name in docs})
    assert page.overview["collection"] == beir.name
    assert page.text.count(f"<title>{beir.name} ") == 1
    names = page.overview["measures"]
    assert len(page.overview["comparisons"]) == len(names)
    for first, second, measure, difference, (low, high), p in page.overview["comparisons"]:
        assert (first, second) == (0, 1)
        values = [run["values"][measure] for run in page.overview["runs"]]
        assert difference == pytest.approx(values[1] - values[0], abs=1e-9)
        assert low <= difference <= high
        assert 0 <= p <= 1
