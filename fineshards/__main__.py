"""The command `fineshards`, also as `python -m fineshards`."""

import sys

from fineshards.worker import own_process


def main() -> int:
    """Runs the command line in a process of its own; returns the exit code."""
    # Before anything else is imported, which takes time.
    own_process.end_at_once()
    own_process.alone = True
    try:
        from fineshards.cli import cli, terminal  # noqa: F401
    except (ImportError, MemoryError, OSError) as error:
        print(f"fineshards: it cannot start: {error}. Install it again.", file=sys.stderr)
        return 1
    code = cli.main()
    own_process.end(code)
    return code


if __name__ == "__main__":
    sys.exit(main())
