# The commands that a developer types; `just` alone lists them.

list:
    @just --list

# An environment with everything that the tests need.
setup:
    python3 -m venv .venv
    .venv/bin/pip install -c constraints.txt -e ".[test]"

# The default tests; other arguments are those of pytest: `just test -m slow`, `just test FILE`.
test *arguments:
    .venv/bin/python -m pytest {{ arguments }}

# The 40 slowest tests, or those of the named files.
slowest *arguments:
    .venv/bin/python -m pytest --durations=40 --durations-min=1 {{ arguments }}

# Lint, format and types.
check:
    .venv/bin/ruff check
    .venv/bin/ruff format
    .venv/bin/mypy --strict lmkcli

# The tables and pictures of the documentation that are generated.
docs:
    .venv/bin/python docs/reference.py
    .venv/bin/python docs/packages.py
    .venv/bin/python docs/stub.py
    .venv/bin/python docs/pictures.py

# The documentation as a site, in site/.
site:
    python3 -m venv .venv
    .venv/bin/pip install -c constraints.txt -e ".[docs]"
    .venv/bin/mkdocs build --strict

# Everything a change must pass, in a fresh environment.
ci:
    .ci/run

# An environment with the oldest dependencies that pyproject.toml allows.
oldest:
    python3 -m venv .venv
    .venv/bin/pip install uv
    .venv/bin/uv pip install --python .venv/bin/python --resolution lowest-direct -e ".[test]"

# An environment with the newest dependencies.
newest:
    python3 -m venv .venv
    .venv/bin/pip install --upgrade -e ".[test]"
