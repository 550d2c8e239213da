"""A comparison of tables as Markdown, for the summary of a CI run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kullback.report.shared.formats import counted
from kullback.report.shared.markdown import escaped, table
from kullback.report.shared.verdicts import in_markdown
from kullback.report.tables.wording import (
    in_order,
    interval,
    meaning,
    name_of,
    p_value_text,
    size,
    summary,
    value_text,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kullback.report.shared.verdicts import Verdict
    from kullback.tables.result import TableComparison

__all__ = ["render"]

MOST_COLUMNS = 40
MOST_FINDINGS = 25


def render(comparison: TableComparison, verdicts: Sequence[Verdict] = ()) -> str:
    """Return the verdict of the gates, the outcome, the columns of largest PSI, and the findings.

    Arguments:
        comparison: the result of `compare_tables`.
        verdicts: the limits that were asked for.

    Example:
        >>> import pyarrow as pa
        >>> from kullback.tables import compare_tables
        >>> rows = pa.table({"x": [1, 2] * 50})
        >>> print(render(compare_tables(rows, rows)))
        **No difference is seen in 1 column.**
        <BLANKLINE>
        P: a pyarrow Table, Q: a pyarrow Table. 1 column of 100 rows of P and 100 of Q; numbers in at most 20 bins.
        <BLANKLINE>
        | column | found | PSI | 95% CI | p |
        ...
    """
    compared = [*comparison.columns, *comparison.joint]
    rows = [
        [
            name_of(each),
            meaning(each, verdicts).words,
            value_text(each.psi),
            interval(each.psi),
            p_value_text(each.p_adjusted),
        ]
        for each in compared[:MOST_COLUMNS]
    ]
    names = f"P: {comparison.p_name}, Q: {comparison.q_name}. {size(comparison)}"
    lines = [*in_markdown(summary(comparison), verdicts), escaped(names), ""]
    if rows:
        lines += table(["column", "found", "PSI", f"{100 * comparison.confidence:g}% CI", "p"], rows)
    if len(compared) > MOST_COLUMNS:
        lines += ["", f"{counted(len(compared) - MOST_COLUMNS, 'column')} of smaller PSI not shown."]
    findings = in_order(comparison)
    if findings:
        lines += ["", *(f"- {level}: {escaped(text)}" for level, text in findings[:MOST_FINDINGS])]
    if len(findings) > MOST_FINDINGS:
        lines.append(
            f"- {counted(len(findings) - MOST_FINDINGS, 'finding')} more in the JSON and on the page"
        )
    return "\n".join([*lines, ""])
