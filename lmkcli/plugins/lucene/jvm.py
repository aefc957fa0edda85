"""The Java virtual machine, with Anserini's Lucene on its class path.

Importing this module starts the machine, because importing pyjnius does. Only the Lucene engine imports it.
The package pyserini contains the jar. Its Python classes are not used: they load torch and transformers, and
require a Java module (jdk.incubator.vector) that small runtimes lack and BM25 does not need.
"""

import os
from pathlib import Path
from typing import Any

import jnius_config
import pyserini

from lmkcli.errors import DataError, LmkError
from lmkcli.plugins.lucene.java import java_home, java_version

UNSAFE = 23  # from this version on, Java prints a warning when Lucene 9 closes memory maps


def _configure(home: Path) -> None:
    """Set the class path and options. -Xrs leaves signals to Python."""
    jars = sorted(Path(pyserini.__path__[0], "resources", "jars").glob("anserini-*-fatjar.jar"))
    if not jars:
        raise DataError(
            f'pyserini in {pyserini.__path__[0]} contains no Anserini jar: pip install "lmkcli[lucene]"'
        )
    jnius_config.add_classpath(str(jars[-1]))
    jnius_config.add_options("-Xrs")
    if java_version(home) >= UNSAFE:
        jnius_config.add_options("--sun-misc-unsafe-memory-access=allow")


HOME = java_home()
if not jnius_config.vm_running:
    _configure(HOME)
    os.environ["JAVA_HOME"] = str(HOME)  # read by pyjnius, in this process and its children

from jnius import JavaException, autoclass, cast  # noqa: E402 (starts the machine)


def java_class(name: str) -> Any:
    """Return a Java class by its full name. Raises LmkError if the running machine does not have it."""
    try:
        return autoclass(name)
    except JavaException:
        raise LmkError(
            f"the Java machine of this process was started by another library, without {name}; "
            "search Lucene indexes in another process"
        ) from None


def silence() -> None:
    """Turn off the logs of Java. Errors are raised as exceptions."""
    levels = java_class("org.apache.logging.log4j.Level")
    java_class("org.apache.logging.log4j.core.config.Configurator").setAllLevels("", levels.OFF)
    off = java_class("java.util.logging.Level").OFF
    java_class("java.util.logging.Logger").getLogger("").setLevel(off)


__all__ = ["HOME", "JavaException", "cast", "java_class", "silence"]
