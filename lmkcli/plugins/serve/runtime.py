"""Address files: how `lmk search -q` finds a server of the same user on the same machine.

A server writes its address, its version and its indexes to a file that only its user can read. A client
trusts a file only if the user owns it and nobody else can read it. The file contains a secret, with which the
server proves that it wrote the file. So another program at the same port is not mistaken for the server.
"""

import json
import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lmkcli.errors import DataError
from lmkcli.system.atomic import atomic_file
from lmkcli.system.input_files import read_json

_PRIVATE = 0o077  # permissions of others


@dataclass(frozen=True)
class RunningServer:
    """A server of this user on this machine.

    settings: the settings of its indexes that are not the defaults. indexes: name -> real path and stamp.
    """

    url: str
    version: str
    pid: int
    secret: str
    settings: dict[str, str]
    indexes: dict[str, tuple[str, list[list[int]]]]

    def name_of(self, path: Path) -> str | None:
        """Return the name of an index by its path; None if the server does not have it."""
        real = os.path.realpath(path)
        return next((name for name, (each, _) in self.indexes.items() if each == real), None)


def runtime_folder() -> Path:
    """Return the folder for address files: in XDG_RUNTIME_DIR, or in the folder for temporary files."""
    given = os.environ.get("XDG_RUNTIME_DIR", "")
    if os.path.isabs(given) and os.path.isdir(given):
        return Path(given) / "lmk"
    return Path(tempfile.gettempdir()) / f"lmk-{os.getuid()}"


def publish(server: RunningServer) -> Path:
    """Write the address file of this process, and return its path. Raises OSError if that is impossible."""
    folder = runtime_folder()
    folder.mkdir(mode=0o700, exist_ok=True)
    if not _is_private(folder.lstat()):
        raise PermissionError(f"{folder} can be used by other users")
    path = folder / f"serve-{server.pid}.json"
    with atomic_file(path) as temporary:
        temporary.touch(0o600)
        temporary.chmod(0o600)
        temporary.write_text(json.dumps(asdict(server)), "utf-8", "surrogateescape")
    return path


def running_servers() -> Iterator[RunningServer]:
    """Yield the servers of this user, newest first. Files of processes that have ended are removed."""
    folder = runtime_folder()
    try:
        if not _is_private(folder.lstat()):
            return
        paths = sorted(folder.glob("serve-*.json"), key=lambda p: p.lstat().st_mtime, reverse=True)
    except OSError:
        return
    for path in paths:
        try:
            if not _is_private(path.lstat()) or path.is_symlink():
                continue
            values: Any = read_json(path, RunningServer, "start the server again")
            server = RunningServer(**values)
        except (OSError, DataError, TypeError):
            continue
        if _is_running(server.pid):
            yield server
        else:
            path.unlink(missing_ok=True)


def _is_private(found: os.stat_result) -> bool:
    """Return whether only this user can use a file or folder."""
    link = stat.S_ISLNK(found.st_mode)
    return found.st_uid == os.getuid() and not found.st_mode & _PRIVATE and not link


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError):
        return False
    return pid > 0


def plain_settings(settings: object, defaults: object) -> dict[str, str]:
    """Return the settings that differ from the defaults, as texts that two processes can compare."""
    values: Mapping[str, object] = vars(settings)
    return {
        name: str(value)
        for name, value in sorted(values.items())
        if value != getattr(defaults, name) and name != "offline"
    }
