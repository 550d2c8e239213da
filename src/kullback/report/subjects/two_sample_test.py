"""A `TwoSampleTest` as a document."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kullback.estimators.two_sample_test import TwoSampleTest
from kullback.report.document import Document, Findings, Frame, Headline, Table
from kullback.report.subjects.estimate import table
from kullback.results.verdict import Verdict


def document(test: TwoSampleTest, verdicts: Sequence[Verdict] = ()) -> Document:
    """Return the document of a two-sample test, and of the estimate of how much the two differ.

    Arguments:
        test: the result of `two_sample_test`.
        verdicts: the limits that you asked for.
    """
    row = [
        f"{test.p_value:.3g}",
        test.method.replace("_", " "),
        f"{test.statistic:.6g}",
        f"{test.permutations}",
    ]
    effect = [] if test.effect is None else [table(test.effect)]
    notes = dict.fromkeys((*test.notes, *(test.effect.notes if test.effect else ())))
    return Document(
        str(test),
        Headline(str(test)),
        (
            Table("The test", ["p-value", "statistic", "value", "permutations"], [row], is_main=True),
            *effect,
            *Findings.of_notes(notes),
        ),
        tuple(verdicts),
        frame=partial(_frame, test),
        maker="kullback.two_sample_test",
    )


def _frame(test: TwoSampleTest) -> Frame:
    names = ("p_value", "statistic", "method", "permutations")
    return Frame({name: [getattr(test, name)] for name in names})
