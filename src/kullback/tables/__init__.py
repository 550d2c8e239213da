"""Tables compared column by column, from counts that are taken where the data is.

Each table is read into a `Profile`: per column the weight of every bucket of a fixed grid and of every category
(`profile_table`). Profiles add up over parts of a table, and the bins are chosen from them afterwards.
"""

from __future__ import annotations

from kullback.tables.choose_bins import Bins, cell_counts, choose_bins, cross_counts
from kullback.tables.columns.profile import ColumnProfile, Kind
from kullback.tables.compare import compare_profiles, compare_tables
from kullback.tables.findings import FINDINGS
from kullback.tables.profile import Profile, profile_table
from kullback.tables.result import Cell, ColumnComparison, Finding, JointComparison, Quantity, TableComparison

__all__ = [
    "FINDINGS",
    "Bins",
    "Cell",
    "ColumnComparison",
    "ColumnProfile",
    "Finding",
    "JointComparison",
    "Kind",
    "Profile",
    "Quantity",
    "TableComparison",
    "cell_counts",
    "choose_bins",
    "compare_profiles",
    "compare_tables",
    "cross_counts",
    "profile_table",
]
