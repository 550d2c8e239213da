"""The pitfalls: each check is a function that looks at a call and yields what it finds."""

from __future__ import annotations

from kullback.diagnosis.case import Case
from kullback.diagnosis.checks import arguments, contents, outcome
from kullback.diagnosis.checks.finding import Finding, Level

__all__ = ["Finding", "Level", "findings_of"]

_CHECKS = (*arguments.CHECKS, *contents.CHECKS, *outcome.CHECKS)


def findings_of(case: Case) -> list[Finding]:
    """Run every check, errors first."""
    found = [finding for check in _CHECKS for finding in check(case)]
    if case.values.error and not any(f.level == "error" for f in found):
        found.append(
            Finding(
                "error", "call-raises", f"torch raises: {case.values.error}", "Mend what the message names."
            )
        )
    return sorted(found, key=lambda f: ("error", "warning", "note").index(f.level))
