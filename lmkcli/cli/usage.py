"""Usage errors in one line: what is wrong, and what to do.

Suggestions match the meaning first and the spelling second. Words of other tools are declared on the fields
(`Flag.suggest_for`) and in `verbs.meant`.
"""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from lmkcli.catalog import VERBS
from lmkcli.cli.verbs import meant
from lmkcli.spec.operation import Operation
from lmkcli.spec.option import Option, options

Kind = type[Operation[Any]]
_NEAR = 0.7  # similarity of a misspelled name, from 0 to 1


def explain(error: Any) -> str:
    """Return the message for a usage error that typer raised while parsing the command line."""
    context, name = error.ctx, type(error).__name__
    kind: Kind | None = getattr(context.command.callback, "kind", None) if context else None
    path = f"lmk {kind.verb}" if kind else "lmk"
    if name == "NoSuchOption":
        return f"{path} has no flag {error.option_name}; {advice(kind, error.option_name)}"
    if kind and name == "BadOptionUsage":
        found = [o for o in options(kind) if error.option_name in (o.flag.short, *_spellings(o))]
        if found and found[0].takes_value:
            return f"{error.option_name} has no value; write {found[0].expected} after it"
        if found:
            return f"{error.option_name} is a switch; write it without a value"
    param = getattr(error, "param", None)
    if kind and param and (option := _option(kind, param.name)):
        if name == "MissingParameter":
            models = f"{_models()}; " if option.flag.role == "model" else ""
            return f"{spelled(option)} is missing; {models}{_example(kind, option)}"
        source = context.get_parameter_source(param.name)
        where = param.envvar if source and source.name == "ENVIRONMENT" else option.spelling
        # pydantic, which typer uses, reports the invalid value
        invalid: list[Any] = getattr(error.__cause__, "errors", list)()
        value = f" {invalid[0]['input']!r}" if invalid else ""
        return f"{where}{value}: write {option.expected}"
    message = error.format_message()
    return f"{message[:1].lower()}{message[1:].rstrip('.')}; '{path} -h' explains the command"


def unknown_command(name: str) -> str:
    """Return the message for an unknown command."""
    lines = meant()
    if name in lines:
        return f"lmk has no command '{name}'; use {lines[name]}"
    near = get_close_matches(name, [*VERBS, *lines], n=1)
    if near:
        return f"lmk has no command '{name}'; did you mean {lines.get(near[0], f'lmk {near[0]}')}?"
    return f"lmk has no command '{name}'; 'lmk --help' lists the commands"


def advice(kind: Kind | None, flag: str) -> str:
    """Return advice for a flag that the command does not have. `kind` is None for `lmk` itself."""
    if kind is None:
        own_flags = ("--quiet", "--verbose", "--version", "--help")
        if near := get_close_matches(flag, own_flags, n=1, cutoff=_NEAR):
            return f"did you mean {near[0]}?"
        return f"flags of a command follow it: lmk COMMAND {flag}"
    if flag in ("--quiet", "-q", "--verbose", "-v"):
        return f"write it before the command: lmk {flag} {kind.verb} …"
    word = flag.replace("_", "-")
    own = options(kind)
    for option in own:
        if word in option.flag.suggest_for.split() or word == f"-{option.flag.short}":  # --k for -k
            return f"use {_written(option)}"
    spellings = {each: option for option in own for each in _spellings(option)}
    if near := get_close_matches(word, spellings, n=1, cutoff=_NEAR):
        return f"did you mean {_written(spellings[near[0]])}?"
    elsewhere = [f"lmk {verb}" for verb in VERBS if verb != kind.verb and _has(verb, word)]
    if elsewhere:
        return f"it is a flag of {', '.join(elsewhere)}"
    return f"'lmk {kind.verb} --help-all' lists its flags"


def spelled(option: Option) -> str:
    """Return an option as messages name it: '-m/--model', or the word of an argument."""
    if option.flag.argument:
        return option.spelling.strip("[]")
    return f"{option.flag.short}/{option.spelling}" if option.flag.short else option.spelling


def _written(option: Option) -> str:
    """Return an option with its possible values, as a suggestion writes it."""
    if option.flag.argument:
        return f"the argument {option.spelling.strip('[]')}, without a flag"
    choices = f" ({option.expected})" if option.choices else ""
    return spelled(option) + choices


def _spellings(option: Option) -> Iterator[str]:
    if not option.flag.argument:
        yield from (option.spelling, *option.flag.aliases.split())


def _has(verb: str, word: str) -> bool:
    """Return whether a command has a flag of this spelling."""
    kind = VERBS.load(verb)
    return any(word in _spellings(option) for option in options(kind))


def _option(kind: Kind, name: str) -> Option | None:
    return next((option for option in options(kind) if option.name == name), None)


def _models() -> str:
    """Name two models that work on this machine."""
    from lmkcli.models.lookup import usable_models

    return f"name a model such as {' or '.join(usable_models())}"


def _example(kind: Kind, option: Option) -> str:
    """Show how to write a required option: its values, or an example command line that uses it."""
    if option.choices:
        return f"write {option.spelling} {option.expected}"
    examples = VERBS[kind.verb].examples
    words = {option.spelling, option.flag.short}
    fitting = [line for line in examples if words & {*line.split()}]
    return f"for instance: {(fitting or examples)[0]}"
