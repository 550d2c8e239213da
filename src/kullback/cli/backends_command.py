"""The command ``kullback backends``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from kullback.kernels.backends import Backend


@click.command()
def backends() -> None:
    """Show which implementation runs for which device and dtype, and why others do not.

    \b
    kullback backends
    """
    from rich.table import Table

    from kullback.common.display import open_console
    from kullback.kernels.backends import backends as known_backends

    table = Table("backend", "runs", "devices", "dtypes", "computes", "why")
    for cells in map(_cells, known_backends()):
        table.add_row(*cells)
    open_console().print(table)


def _cells(backend: Backend) -> list[str]:
    lists = (", ".join(names) or "-" for names in (backend.devices, backend.dtypes, backend.operations))
    return [backend.name, "yes" if backend.available else "no", *lists, backend.reason]
