"""The entry point: nothing is imported here that could fail before a failure can be told."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line. A fault of ours ends with 70, whatever else fails: 1 means a regression."""
    try:
        from inferdoc.cli import main as run

        run()
    except Exception as error:
        try:
            print(f"internal error: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(70)


if __name__ == "__main__":
    main()
