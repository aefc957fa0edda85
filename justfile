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

# The README's demo with the oldest dependencies of a user. Extras of the tests, such as triton, need newer ones.
lowest:
    #!/usr/bin/env bash
    set -euo pipefail
    fresh=$(mktemp -d)
    python3 -m venv "$fresh"
    "$fresh/bin/pip" install uv
    "$fresh/bin/uv" pip install --python "$fresh/bin/python" --resolution lowest-direct \
        "lmkcli[faiss-cpu,demo,files,plot,serve,train] @ ."
    cd "$fresh"
    bin/lmk doctor
    bin/lmk demo

# An environment with the newest dependencies.
newest:
    python3 -m venv .venv
    .venv/bin/pip install --upgrade -e ".[test]"

# The wheel and the source archive, in dist/.
dist:
    python3 -m venv .venv
    .venv/bin/pip install build twine
    rm -rf dist
    .venv/bin/python -m build
    .venv/bin/twine check --strict dist/*

# The first command of the README from the wheel in dist/, in an empty environment and outside of the repository.
installed:
    #!/usr/bin/env bash
    set -euo pipefail
    wheel=$(realpath dist/*.whl)
    cd "$(mktemp -d)"
    python3 -m venv fresh
    fresh/bin/pip install "$wheel[faiss-cpu,demo]"
    fresh/bin/lmk doctor
    fresh/bin/lmk demo

# Fails unless the tag of a release (GITHUB_REF_NAME) is this version, and the changelog describes it.
tagged:
    #!/usr/bin/env bash
    set -euo pipefail
    version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' lmkcli/__init__.py)
    test "$GITHUB_REF_NAME" = "v$version"
    grep -F "## [$version] - " CHANGELOG.md
