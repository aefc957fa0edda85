"""Config files: a TOML file with the flags of commands, one table per command.

[encode]
model = "minilm"
max-length = 512
store-text = false

Priority: the command line, a variable LMK_…, the file, the default.
"""

from pathlib import Path
from typing import Any

import typer

from lmkcli.cli import usage
from lmkcli.errors import UnknownName, UsageError
from lmkcli.system.input_files import read_toml

_SHOWN = 10  # unknown keys in a message


def read(context: typer.Context, path: Path | None) -> Path | None:
    """Use the command's table in the file at `path` as the defaults of its flags.

    Raises UsageError for a file without a table of this command, for tables of unknown commands, and for keys
    that are not flags of the command. Raises DataError if the file is not TOML.
    """
    if path is None:
        return None
    tables = read_toml(path)
    commands: Any = getattr(context.find_root().command, "commands", {})
    for name, table in tables.items():
        if name not in commands:
            raise UnknownName("command", name, commands, f"(a table of {path})")
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {name} is not a table; write [{name}] with its flags below")
    verb = str(context.info_name)
    command: Any = context.command
    if verb not in tables:
        raise UsageError(f"{path} has no table [{verb}]; add it with the flags of lmk {verb}")
    flags = {
        spelling.removeprefix("--"): param
        for param in command.params
        for spelling in param.opts
        if spelling.startswith("--") and spelling != "--config"
    }
    unknown = [
        f"lmk {verb} has no flag --{key} ({usage.advice(command.callback.kind, f'--{key}')})"
        for key in [key for key in tables[verb] if key not in flags][:_SHOWN]
    ]
    if unknown:
        raise UsageError(f"{path}: {'; '.join(unknown)}")
    context.default_map = {
        flags[key].name: _value(f"{path}: {key}", flags[key], value)
        for key, value in tables[verb].items()
    }
    return path


def _value(where: str, param: Any, value: Any) -> Any:
    """Return the value in the form in which typer receives it from a command line. typer checks the rest."""
    if param.is_flag:
        if not isinstance(value, bool):
            raise UsageError(f"{where} is a switch; write true or false")
        return value
    if param.multiple:
        return [_text(where, item) for item in (value if isinstance(value, list) else [value])]
    return _text(where, value)


def _text(where: str, value: Any) -> str:
    if isinstance(value, bool | list | dict):
        raise UsageError(f"{where} takes one value, not {value!r}")
    return str(value)
