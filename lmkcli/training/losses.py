"""The notation of `--loss`: an objective, with settings and as a weighted sum of several.

    kl                          an objective of the catalog
    kl:temperature=0.1          with a setting of its own; further ones follow after ','
    margin-mse+0.5*kl           a sum; a number before '*' is the weight of a term

Nothing here imports torch before an objective is created.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from math import inf, isfinite
from typing import Any, NamedTuple, get_type_hints

import msgspec

from lmkcli import catalog
from lmkcli.errors import UsageError
from lmkcli.spec.option import expected


class Term(NamedTuple):
    """One objective of a loss: its name, its weight, and its settings as texts."""

    name: str
    weight: float = 1.0
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def row(self) -> catalog.LossRow:
        """The row of the objective."""
        return catalog.LOSSES[self.name]

    def create(self, shared: Mapping[str, Any]) -> Any:
        """Create the objective. `shared` are the values of flags; those that it lacks are left out.

        Raises UsageError for a setting that the objective does not have, or for a wrong value.
        """
        kind = catalog.LOSSES.load(self.name)
        chosen = {name: shared[name] for name in self.row.settings if name in shared}
        types = get_type_hints(kind)
        known = [each.name for each in fields(kind)]
        for name, text in self.settings:
            if name not in known:
                names = f"its settings are {', '.join(known)}" if known else "it has none"
                raise UsageError(f"--loss {self.name}: unknown setting '{name}'; {names}")
            try:
                chosen[name] = value = msgspec.convert(text, types[name], strict=False)
            except msgspec.ValidationError:
                value = inf
            if isinstance(value, float) and not isfinite(value):
                wanted = expected(types[name])
                raise UsageError(f"--loss {self.name}:{name}={text}: write {wanted}")
        return kind(**chosen)


@dataclass(frozen=True)
class LossNotation:
    """A parsed loss: the terms of the sum."""

    text: str
    terms: tuple[Term, ...]

    @classmethod
    def parse(cls, text: str) -> "LossNotation":
        """Parse the notation. Raises UsageError, also UnknownName for an unknown objective."""
        return cls(text, tuple(_term(part, text) for part in text.split("+")))

    @property
    def needs(self) -> frozenset[str]:
        """The requirements of all terms on the data."""
        needed = {need for term in self.terms for need in term.row.needs}
        scored = any(name in term.row.scored for term in self.terms for name, _ in term.settings)
        return frozenset(needed | ({"teacher"} if scored else set()))

    @property
    def flags(self) -> frozenset[str]:
        """The flags of `lmk train` that become settings of at least one term."""
        return frozenset(flag for term in self.terms for flag in term.row.settings)

    @property
    def providers(self) -> list[str]:
        """The packages that provide the objectives; nothing for those of lmk."""
        return sorted({term.row.provider for term in self.terms} - {""})


def _term(part: str, whole: str) -> Term:
    weight, star, rest = part.rpartition("*")
    name, colon, settings = rest.partition(":")
    if not name.strip() or (colon and not settings):
        raise UsageError(
            f"--loss {whole!r}: write objectives joined by '+', such as kl or margin-mse+0.5*kl, with "
            "settings after ':', such as kl:temperature=0.1"
        )
    catalog.LOSSES.check(name)
    pairs = [pair.partition("=") for pair in settings.split(",")] if settings else []
    for key, equals, value in pairs:
        if not (key and equals and value):
            raise UsageError(f"--loss {whole!r}: write settings of {name} as NAME=VALUE,NAME=VALUE")
    keys = [key for key, _, _ in pairs]
    if twice := next((key for key in keys if keys.count(key) > 1), ""):
        raise UsageError(f"--loss {whole!r}: the setting {twice} is given twice")
    return Term(name, _weight(weight, whole) if star else 1.0, tuple((k, v) for k, _, v in pairs))


def _weight(text: str, whole: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if not (isfinite(weight) and weight > 0):
        raise UsageError(f"--loss {whole!r}: the weight '{text}' must be a number above 0")
    return weight
