"""A fit as a page with plots, and as a table for notebooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kullback.report.fits.plots import pictures
from kullback.report.fits.wording import outcome, rows
from kullback.report.shared.page import render_page

if TYPE_CHECKING:
    from kullback.projection.result import Fit

__all__ = ["render", "render_table"]


def render(fit: Fit) -> str:
    """Build one self-contained page: the numbers, the target and the fit, and the history.

    Example:
        >>> from torch.distributions import Gamma, Normal
        >>> from kullback import fit
        >>> page = render(fit(Normal(0.0, 1.0), to=Gamma(4.0, 2.0)))
        >>> page.startswith("<!doctype html>"), "<script" in page
        (True, False)
    """
    return render_page(
        "fits.html.j2", (), fit=fit, outcome=outcome(fit), rows=rows(fit), tone="", pictures=pictures(fit)
    )


def render_table(fit: Fit) -> str:
    """Build the table alone, for notebooks.

    Example:
        >>> from torch.distributions import Gamma, Normal
        >>> from kullback import fit
        >>> "moment matching" in render_table(fit(Normal(0.0, 1.0), to=Gamma(4.0, 2.0)))
        True
    """
    return render_page("fits_table.html.j2", (), fit=fit, outcome=outcome(fit), rows=rows(fit))
