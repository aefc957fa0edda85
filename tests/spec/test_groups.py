"""Groups of settings of several packages in one class."""

from __future__ import annotations  # annotations are texts, as in many modules of other packages

from dataclasses import dataclass
from typing import Annotated, ClassVar

import pytest

from lmkcli.errors import UsageError
from lmkcli.spec.settings import Flag, Settings, composed


@dataclass(frozen=True, kw_only=True)
class Soft(Settings):
    panel: ClassVar[str] = "Soft"
    sharpness: Annotated[int, Flag("Sharpness.")] = 3


@dataclass(frozen=True, kw_only=True)
class Hard(Settings):
    panel: ClassVar[str] = "Hard"
    hardness: Annotated[int, Flag("Hardness.")] = 5


@dataclass(frozen=True, kw_only=True)
class Other(Settings):
    hardness: Annotated[int, Flag("Another hardness.")] = 7


def test_groups_may_have_the_same_constants() -> None:
    made = composed("Both", Soft, Hard)()
    assert (made.sharpness, made.hardness) == (3, 5)  # type: ignore[attr-defined]


def test_groups_with_the_same_setting_are_refused() -> None:
    with pytest.raises(UsageError, match="both declare the setting hardness"):
        composed("Both", Hard, Other)
