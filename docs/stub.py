"""Writes lmkcli/__init__.pyi: the public names with the signatures that their constructors accept.

`python docs/stub.py` writes the stub; with `--check` it changes nothing and fails when the stub is stale.
Type checkers and editors read it. The signatures are those of `inspect.signature` (lmkcli/spec/signature.py).
"""

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any, get_args, get_origin

import written

import lmkcli
from lmkcli.spec.operation import Operation

STUB = Path(lmkcli.__file__).with_suffix(".pyi")
HEAD = '"""The public names of lmk. `python docs/stub.py` writes this file."""'


def stub() -> str:
    """The text of the stub."""
    names = {name: getattr(lmkcli, name) for name in public()}
    operations = {name: kind for name, kind in names.items() if is_operation(kind)}
    functions = {name: each for name, each in names.items() if "__signature__" in vars_of(each)}
    shown = [*map(_class, operations.values()), *map(_function, functions.values())]
    body = "\n\n".join(shown)
    return "\n".join([HEAD, "", *sorted({*_imports(names)}), "", "__version__: str", "", body, ""])


def public() -> list[str]:
    """The public names of lmk. Its stub has no list of them."""
    return list(vars(lmkcli)["__all__"])


def vars_of(value: Any) -> dict[str, Any]:
    """The attributes of a function; none for other objects."""
    return vars(value) if inspect.isfunction(value) else {}


def is_operation(value: Any) -> bool:
    """Whether a public name is an operation."""
    return isinstance(value, type) and issubclass(value, Operation)


def result_of(kind: Any) -> Any:
    """The type that `run` returns."""
    (base,) = (each for each in kind.__orig_bases__ if get_origin(each) is Operation)
    return get_args(base)[0]


def _class(kind: Any) -> str:
    name, result = kind.__name__, result_of(kind).__name__.replace("NoneType", "None")
    signature = inspect.signature(kind)
    init = signature.replace(
        parameters=[
            inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD),
            *signature.parameters.values(),
        ]
    )
    return (
        f"class {name}(_{name}):\n{indent(_docstring(kind.__doc__), '    ')}\n"
        f"    def __init__{_written(init, '    ')} -> None: ...\n"
        f"    def run(self, report: Report | None = None) -> {result}:\n"
        f'        """Execute the operation, and return its result."""\n'
    )


def _function(function: Any) -> str:
    signature = inspect.signature(function)
    returns = str(inspect.get_annotations(function)["return"]).strip("'\"")
    returns = getattr(inspect.get_annotations(function)["return"], "__name__", returns)
    doc = indent(_docstring(inspect.cleandoc(function.__doc__)), "    ")
    return f"def {function.__name__}{_written(signature)} -> {returns}:\n{doc}\n"


def _written(signature: inspect.Signature, indentation: str = "") -> str:
    """A signature with one parameter in each line."""
    lines, starred = [], False
    for each in signature.parameters.values():
        if each.kind is inspect.Parameter.VAR_POSITIONAL:
            starred = True
        elif each.kind is inspect.Parameter.KEYWORD_ONLY and not starred:
            lines.append("*,")
            starred = True
        lines.append(f"{str(each).replace('pathlib.Path', 'Path')},")
    parameters = indent("\n".join(lines), indentation + "    ")
    return f"(\n{parameters}\n{indentation})"


def _docstring(text: str) -> str:
    return f'"""{text}\n"""' if "\n" in text else f'"""{text}"""'


def _imports(names: dict[str, Any]) -> Iterator[str]:
    yield "from collections.abc import Sequence"
    yield "from pathlib import Path"
    yield "from typing import Any, Literal"
    yield "from lmkcli.progress import Report"
    yield "from lmkcli.spec.values import Shard"
    module_of = {**vars(lmkcli)["_MODULE_OF"]}
    for name, value in names.items():
        module = module_of.get(name) or value.__module__
        if is_operation(value):
            yield f"from {module} import {name} as _{name}"
            result = result_of(value)
            if result is not type(None) and result.__name__ not in names:
                yield f"from {result.__module__} import {result.__name__}"
        elif "__signature__" not in vars_of(value):
            yield f"from {module} import {name} as {name}"


def main() -> None:
    """Write the stub, or fail if it is stale."""
    text = stub()
    ast.parse(text)
    written.write({STUB: text})


if __name__ == "__main__":
    main()
