"""A command line that ends with the names of all modules on stderr. Used by cli/test_startup.py.

It imports nothing of its own, so that a child that runs it has the modules of the command alone.
"""

import atexit
import sys

from lmkcli.cli.main import main as lmk


def main() -> None:
    """Run `lmk` on this process's command line."""
    atexit.register(lambda: print(*sys.modules, file=sys.stderr))
    lmk()


if __name__ == "__main__":
    main()
