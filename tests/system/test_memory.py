import os

from lmkcli.system.memory import free_memory


def test_some_of_the_machines_memory_is_free() -> None:
    assert 0 < free_memory() <= os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
