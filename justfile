# The commands that a developer types; `just` alone lists them.

list:
    @just --list

# An environment with everything that the tests need.
setup:
    python3 -m venv .venv
    .venv/bin/pip install -c constraints.txt -e ".[test]"

# The tests of ordinary length, or those that are named.
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
    .venv/bin/python docs/rooms.py
    .venv/bin/python docs/pictures.py

# The documentation as a site, in site/.
site:
    .venv/bin/pip install -c constraints.txt -e ".[docs]"
    .venv/bin/mkdocs build --strict

# Everything, slow tests too, in a fresh environment.
ci:
    .ci/run
