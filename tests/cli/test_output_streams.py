"""Outputs that are streams: standard output, descriptors and pipes are written, never replaced or locked."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from lmkcli.system.output_streams import descriptor_of, is_standard_output, is_stream
from tests.conftest import Lmk

RUN = "1 Q0 d1 1"
# A program of its own, which inherits all descriptors of the shell.
REAL = f"{sys.executable} -c 'from lmkcli.cli.main import main; main()'"


@pytest.fixture
def words(lmk: Lmk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A search of one query, in a folder with a BM25 index, as the start of a shell line."""
    monkeypatch.chdir(tmp_path)
    docs = '{"id":"d1","text":"green tea"}\n{"id":"d2","text":"black tea"}\n'
    (tmp_path / "d.jsonl").write_text(docs)
    (tmp_path / "q.tsv").write_text("1\tgreen tea\n")
    lmk("index", "d.jsonl", "--kind", "bm25", "-o", "b")
    return "search b q.tsv --all-queries"


def shell(line: str, code: int = 0, program: Path | str = "lmk") -> str:
    """Run a shell line, in which `lmk` is the program; returns standard error."""
    done = subprocess.run(
        ["bash", "-c", f'lmk() {{ "{program}" "$@"; }}; {line}'], capture_output=True, text=True
    )
    assert done.returncode == code, done.stderr
    return done.stderr


@pytest.mark.parametrize("output", ["-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "link"])
@pytest.mark.parametrize("times", [1, 2])
def test_a_redirected_run_is_appended_to_a_file(
    words: str, lmk_program: Path, output: str, times: int
) -> None:
    """Opening /dev/stdout anew would truncate the file that the shell has opened."""
    Path("link").symlink_to("/dev/stdout")
    Path("all.trec").write_text("0 Q0 d9 1 1.0 kept\n")
    before = sorted(os.listdir()), sorted(os.listdir("/dev"))
    for _ in range(times):
        shell(f"lmk {words} -o {output} >> all.trec", program=lmk_program)
    lines = Path("all.trec").read_text().splitlines()
    assert lines[0] == "0 Q0 d9 1 1.0 kept"
    assert [line.startswith(RUN) for line in lines[1:]] == [True, False] * times
    assert (sorted(os.listdir()), sorted(os.listdir("/dev"))) == before


def test_a_redirection_replaces_and_a_group_of_commands_continues(
    words: str, lmk_program: Path
) -> None:
    line = f"lmk {words} -o - -k 1"
    shell(f"{{ echo start; {line}; {line} ; echo end; }} > all", program=lmk_program)
    first, *middle, last = Path("all").read_text().splitlines()
    assert (first, last, len(middle)) == ("start", "end", 2)
    shell(f"{line} > all", program=lmk_program)
    assert len(Path("all").read_text().splitlines()) == 1
    shell(f"{REAL} {words} -o /dev/fd/5 5>> all")
    assert len(Path("all").read_text().splitlines()) == 3
    shell(f"mkfifo p.gz; cat p.gz > got.gz & lmk {words} -o p.gz; wait", program=lmk_program)
    shell("gunzip got.gz", program=lmk_program)
    assert Path("got").read_text().startswith(RUN)
    shell(f"{line} > /dev/null; lmk {words} -o /dev/null", program=lmk_program)
    assert not Path("/dev/null.json").exists()


def test_an_output_that_is_closed_or_read_is_refused(words: str, lmk_program: Path) -> None:
    assert "closed" in shell(f"lmk {words} -o /dev/fd/77", 3, lmk_program)
    assert "reading only" in shell(f"{REAL} {words} -o /dev/fd/5 5< q.tsv", 3)
    assert "both write" in shell(f"lmk {words} -o /dev/stdout --json > x", 2, lmk_program)


def test_a_closed_standard_output_is_refused(words: str) -> None:
    """Python gives the number of a closed stream to the next file that it opens."""
    assert "closed" in shell(f"{REAL} {words} -o - >&-", 3)


def test_a_folder_or_a_figure_is_not_written_to_a_stream(lmk: Lmk, words: str) -> None:
    for output in ("-", "/dev/stdout", "/dev/fd/1"):
        assert "a folder" in lmk("encode", "d.jsonl", "-m", "x", "-o", output, code=2).err
        assert "a folder" in lmk("search", "b", "beir", "-o", output, code=2).err
    Path("r.trec").write_text("1 Q0 d1 1 1 x\n2 Q0 d1 1 1 x\n")
    Path("j").write_text("1 0 d1 1\n2 0 d1 1\n")
    for log in ("-", "/dev/stdout"):
        assert "regular file" in lmk("eval", "r.trec", "--qrels", "j", "--log", log, code=3).err
    Path("f.svg").symlink_to("/dev/stdout")
    plot = ("eval", "r.trec", "--qrels", "j", "-m", "P@1", "--plot", "f.svg")
    assert "cannot be replaced" in lmk(*plot, code=3).err
    assert Path("f.svg").is_symlink()


def test_names_of_streams(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a").symlink_to("b")
    Path("b").symlink_to("/proc/self/fd/2")
    Path("loop").symlink_to("loop")
    Path("file").write_text("")
    os.mkfifo("pipe")
    assert [descriptor_of(Path(name)) for name in ("-", "a", "/dev/stderr", "/dev/fd/07")][:3] == [
        *(1, 2, 2)
    ]
    assert not any(is_stream(Path(name)) for name in ("file", "new", ".", "loop", "/proc/self/fd"))
    assert all(is_stream(Path(name)) for name in ("pipe", "/dev/null", "a"))
    assert is_standard_output(Path("-"))
    assert not is_standard_output(Path("pipe"))


def test_a_link_to_a_missing_folder(lmk: Lmk, words: str) -> None:
    Path("out").symlink_to("target")
    lmk("index", "d.jsonl", "--kind", "bm25", "-o", "out")
    assert Path("target/manifest.json").is_file()
    assert Path("out").is_symlink()
    Path("far").symlink_to("/nonexistent/place")
    err = lmk("index", "d.jsonl", "--kind", "bm25", "-o", "far", code=3).err
    assert "far is a link to /nonexistent/place" in err
    err = lmk("index", "d.jsonl", "--kind", "bm25", "-o", "far/below", code=3).err
    assert "far is a link to /nonexistent/place" in err
    err = lmk(*words.split(), "-o", "far/x.trec", code=3).err
    assert "far is a link to /nonexistent/place" in err
    Path("run").symlink_to("/nonexistent/run.trec")
    assert "link to /nonexistent" in lmk(*words.split(), "-o", "run", code=3).err
