"""The command ``kullback backends``."""

from __future__ import annotations

from kullback.cli.option_command import command
from kullback.cli.settings import Settings


@command()
def backends(_: Settings) -> None:
    """Show which implementation runs for which device and dtype, and why others do not.

    \b
    kullback backends
    """
    from rich.table import Table

    from kullback.common.display import open_console
    from kullback.kernels.backends import backends as known_backends

    table = Table("backend", "runs", "devices", "dtypes", "computes", "why")
    for each in known_backends():
        lists = (", ".join(names) or "-" for names in (each.devices, each.dtypes, each.operations))
        table.add_row(each.name, "yes" if each.available else "no", *lists, each.reason)
    open_console().print(table)
