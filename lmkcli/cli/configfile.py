"""Config files: the flags of a command from a TOML file, one table for each command.

[encode]
model = "minilm"
max-length = 512
store-text = false

The command line wins over a variable LMK_…, a variable over the file, the file over the default.
"""

import difflib
import tomllib
from pathlib import Path
from typing import Any

import typer

from lmkcli.errors import DataError, UnknownName, UsageError
from lmkcli.reading import LINE, whole_file


def read(context: typer.Context, path: Path | None) -> Path | None:
    """Make the command's table in the file at `path` the defaults of its flags.

    UsageError for a key that is no flag of the command, and for a file without its table.
    """
    if path is not None:
        context.default_map = _defaults(_table(path, context), path, context.command.params)
    return path


def _table(path: Path, context: typer.Context) -> dict[str, Any]:
    tables = _load(path)
    commands: Any = getattr(context.find_root().command, "commands", {})
    for name, table in tables.items():
        if name not in commands:
            raise UnknownName("command", name, commands, f"(a table of {path})")
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {name} is no table; write [{name}] with its flags below")
    verb = str(context.info_name)
    if verb not in tables:
        raise UsageError(f"{path} has no effect here: it has no table [{verb}]")
    return dict(tables[verb])


def _load(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(whole_file(path, LINE).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not TOML: {error}") from None


def _defaults(table: dict[str, Any], path: Path, params: list[Any]) -> dict[str, Any]:
    """Values by parameter; every key must be the name of a flag."""
    flags = {flag[2:]: param for param in params for flag in param.opts if flag.startswith("--")}
    del flags["config"]
    unknown = [_unknown(key, flags) for key in table if key not in flags]
    if unknown:
        raise UsageError(f"{path}: {'; '.join(unknown)}")
    return {flags[key].name: _value(f"{path}: {key}", flags[key], table[key]) for key in table}


def _unknown(key: str, flags: dict[str, Any]) -> str:
    near = difflib.get_close_matches(key, flags, n=1, cutoff=0.5)
    return f"there is no flag --{key}" + (f" (did you mean {near[0]}?)" if near else "")


def _value(where: str, param: Any, value: Any) -> Any:
    """What the flag takes, as it would stand on the command line; typer checks the rest."""
    if param.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"{where} is a switch: write true or false")
        return value
    if param.multiple:
        return [_text(where, item) for item in (value if isinstance(value, list) else [value])]
    return _text(where, value)


def _text(where: str, value: Any) -> str:
    if isinstance(value, bool | list | dict):
        raise UsageError(f"{where} takes one value, not {value!r}")
    return str(value)
