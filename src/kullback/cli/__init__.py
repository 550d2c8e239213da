"""The command `kullback`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command with the arguments of this process, or say what to install for it."""
    try:
        from kullback.cli.commands import kullback
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("click", "rich"):
            raise
        sys.stderr.write(f"kullback: {error.name} is not installed. Run: pip install 'kullback[cli]'\n")
        sys.exit(2)
    kullback(prog_name="kullback")
