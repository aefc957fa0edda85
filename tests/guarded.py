"""Command lines in a process that cannot reach the network. Used by cli/test_network.py.

Every attempt to look up a name or to connect is written to a file and refused.
"""

import json
import socket
import sys
from typing import Any, NoReturn


def main() -> None:
    """argv: the file of attempts, and command lines as JSON. Prints their exit codes as JSON."""
    log, lines = sys.argv[1], json.loads(sys.argv[2])

    def refuse(*args: Any, **_: Any) -> NoReturn:
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{[arg for arg in args if not isinstance(arg, socket.socket)]}\n")
        raise OSError(101, "Network is unreachable")

    for name in ("connect", "connect_ex"):
        setattr(socket.socket, name, refuse)
    for name in ("getaddrinfo", "gethostbyname", "create_connection"):
        setattr(socket, name, refuse)

    from lmkcli.cli.main import main as lmk

    codes = []
    for words in lines:
        sys.argv = ["lmk", "-q", *words]
        try:
            lmk()
            codes.append(0)
        except SystemExit as left:
            codes.append(left.code or 0)
    print(json.dumps(codes), file=sys.stderr)


if __name__ == "__main__":
    main()
