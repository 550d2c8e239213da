"""A fit in the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kullback.report.fits.wording import outcome, rows
from kullback.report.shared.console import Printer

if TYPE_CHECKING:
    from rich.console import Console

    from kullback.projection.result import Fit

__all__ = ["render"]


def render(fit: Fit, console: Console) -> None:
    """Print what a fit found: the value, how it was obtained, and the parameters.

    Arguments:
        fit: what `kullback.fit` returned.
        console: the rich console to print on.

    Example:
        >>> from rich.console import Console
        >>> from torch.distributions import Gamma, Normal
        >>> from kullback import fit
        >>> render(fit(Normal(0.0, 1.0), to=Gamma(4.0, 2.0)), Console(width=80))
        Normal: KL(to || q) = 0.08868 nats
        ...
    """
    say = Printer(console)
    say.line(outcome(fit), style="bold")
    say.table("The fit", ("", ""), rows(fit))
    for note in fit.notes:
        say.line(note)
