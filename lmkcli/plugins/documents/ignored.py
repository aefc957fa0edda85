"""What a search of a folder ignores: folders of dependencies, and what .gitignore files name."""

from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

GITIGNORE = ".gitignore"
# Folders that package managers fill.
_DEPENDENCIES = frozenset(
    "node_modules bower_components jspm_packages site-packages __pycache__ __pypackages__".split()
)
_ENVIRONMENT = "pyvenv.cfg"  # marks a virtual environment of Python


@dataclass(frozen=True)
class IgnoreRules:
    """The rules of one .gitignore, for paths below its folder."""

    folder: str
    """The path of the folder in the tree; empty for its root."""
    spec: GitIgnoreSpec

    @classmethod
    def read(cls, root: Path, folder: str) -> "IgnoreRules":
        """Read the file in a folder; lines that are no patterns are left out."""
        try:
            text = (root / folder / GITIGNORE).read_text("utf-8", "replace")
        except OSError:
            text = ""
        lines = []
        for line in text.splitlines():
            try:
                GitIgnoreSpec.from_lines([line])
            except ValueError:
                continue
            lines.append(line)
        return cls(folder, GitIgnoreSpec.from_lines(lines))

    def decision(self, path: str) -> bool | None:
        """Return whether the rules ignore a path (a folder ends with '/'); None if no rule applies."""
        inside = path.removeprefix(f"{self.folder}/") if self.folder else path
        return self.spec.check_file(inside).include


def is_ignored(path: str, is_folder: bool, rules: tuple[IgnoreRules, ...]) -> bool:
    """Return whether the rules ignore a path. As in git, those of the nearest folder decide."""
    name = f"{path}/" if is_folder else path
    decisions = (each.decision(name) for each in reversed(rules))
    return next((each for each in decisions if each is not None), False)


def is_dependencies(folder: Path) -> bool:
    """Return whether a folder contains the dependencies of a program: a folder of a package manager."""
    return folder.name in _DEPENDENCIES or (folder / _ENVIRONMENT).is_file()
