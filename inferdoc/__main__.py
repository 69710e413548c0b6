"""The entry point: nothing is imported here that could fail before a failure can be told."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line. What fails to import ends with 70: 1 is the gate's word for a regression."""
    try:
        from inferdoc.cli import main as run
    except Exception as error:
        print(f"internal error: {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(70)
    run()


if __name__ == "__main__":
    main()
