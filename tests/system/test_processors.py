import os

from lmkcli.system import processors


def test_processors_and_the_cores_behind_them() -> None:
    assert 1 <= processors.physical() <= processors.usable() <= (os.cpu_count() or 1)
