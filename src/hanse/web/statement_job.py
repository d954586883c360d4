"""Makes one statement in a process of its own: ``hanse.web.statement_job FOLDER CLIENT html|json LEDGER_URL``.

A statement reads the whole run. In a process of its own it neither holds up the live page nor leaves its memory behind.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from hanse.base.errors import UserError
from hanse.base.looking import looking

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Print a statement; 2 and a line on standard error if there is none."""
    from hanse.reports.statement import statement
    from hanse.reports.statement_page import render

    folder, client, form, ledger_url = arguments
    try:
        with looking():
            made = statement(Path(folder), int(client), ledger_url=ledger_url or None)
        text = render(made) if form == "html" else json.dumps(made.as_json(), indent=1, allow_nan=False)
    except UserError as wrong:
        print(*wrong.lines, sep="\n", file=sys.stderr)
        return 2
    sys.stdout.buffer.write(text.encode())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
