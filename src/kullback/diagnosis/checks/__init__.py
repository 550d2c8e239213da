"""The checks of a call, each a function that yields findings."""

from __future__ import annotations

from kullback.diagnosis.case import Case
from kullback.diagnosis.checks import arguments, contents, outcome
from kullback.findings import Finding

__all__ = ["findings_of"]

_CHECKS = (*arguments.CHECKS, *contents.CHECKS, *outcome.CHECKS)


def findings_of(case: Case) -> list[Finding]:
    """Return the findings of all checks, errors first."""
    found = [finding for check in _CHECKS for finding in check(case)]
    if case.values.error and not any(f.level == "error" for f in found):
        found.append(
            Finding(
                "call-raises", f"torch raises: {case.values.error}", "error", "Fix what the message names."
            )
        )
    return sorted(found, key=lambda f: ("error", "warning", "note").index(f.level))
