"""The Java virtual machine, with Anserini's Lucene on its class path.

Importing this module starts the machine, since importing pyjnius does; only `lucene.py` imports it.
pyserini is where the jar lies. Its own classes are passed by: they load torch and transformers, and
ask Java for a module (jdk.incubator.vector) that small runtimes lack and BM25 does not need.
"""

import os
from pathlib import Path
from typing import Any

import jnius_config
import pyserini

from lmkcli.errors import DataError, LmkError
from lmkcli.system.java import java_home, java_version

UNSAFE = 23  # from here on Java warns of what Lucene 9 does to close memory maps


def _configure(home: Path) -> None:
    """Class path and options; -Xrs leaves the signals to Python."""
    jars = sorted(Path(pyserini.__path__[0], "resources", "jars").glob("anserini-*-fatjar.jar"))
    if not jars:
        raise DataError(
            f'pyserini in {pyserini.__path__[0]} holds no Anserini jar: pip install "lmkcli[lucene]"'
        )
    jnius_config.add_classpath(str(jars[-1]))
    jnius_config.add_options("-Xrs")
    if java_version(home) >= UNSAFE:
        jnius_config.add_options("--sun-misc-unsafe-memory-access=allow")


HOME = java_home()
if not jnius_config.vm_running:
    _configure(HOME)
    os.environ["JAVA_HOME"] = str(HOME)  # where pyjnius looks, in this process and its children

from jnius import JavaException, autoclass, cast  # noqa: E402 (starts the machine)


def java_class(name: str) -> Any:
    """A Java class by its full name; LmkError when the running machine does not have it."""
    try:
        return autoclass(name)
    except JavaException:
        raise LmkError(
            f"the Java machine of this process was started by another library, without {name}; "
            "search Lucene indexes in a process of their own"
        ) from None


def silence() -> None:
    """Nothing of what Java logs is shown; what matters is raised."""
    levels = java_class("org.apache.logging.log4j.Level")
    java_class("org.apache.logging.log4j.core.config.Configurator").setAllLevels("", levels.OFF)
    off = java_class("java.util.logging.Level").OFF
    java_class("java.util.logging.Logger").getLogger("").setLevel(off)


__all__ = ["HOME", "JavaException", "cast", "java_class", "silence"]
