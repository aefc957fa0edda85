"""Full disks are recognised in the errors of libraries."""

from pathlib import Path

import numpy as np
import pytest

from lmkcli.system.disk import is_full_disk

FULL = Path("/dev/full")  # every write fails as on a full disk


@pytest.mark.skipif(not FULL.exists(), reason="needs /dev/full")
def test_a_short_write_of_numpy() -> None:
    """NumPy reports how much it wrote, without an error number."""
    with open(FULL, "wb") as file, pytest.raises(OSError, match="written") as failed:
        np.zeros(100_000).tofile(file)
    assert failed.value.errno is None
    assert is_full_disk(failed.value)


def test_other_errors() -> None:
    assert not is_full_disk(OSError("no such file"))
    assert not is_full_disk(ValueError("3 requested and 1 written"))
    assert not is_full_disk(OSError(5, "3 requested and 1 written"))
