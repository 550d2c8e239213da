"""The comparison of tables, column by column.

`profile_table` reads a table into a `Profile`, which holds the weight of every grid bucket and of every category of
each column. Profiles of parts of a table add up, and bins are chosen from profiles.
"""

from __future__ import annotations

from kullback.results.finding import Finding
from kullback.tables.choose_bins import bin_counts, choose_bins
from kullback.tables.columns.bins import Bins
from kullback.tables.columns.column_profile import ColumnProfile
from kullback.tables.columns.types import ColumnType
from kullback.tables.compare_two_tables import compare_profiles, compare_tables
from kullback.tables.contingency import contingency_tables
from kullback.tables.table_findings import FINDINGS
from kullback.tables.table_profile import Profile, profile_table
from kullback.tables.table_results import (
    Bin,
    ColumnComparison,
    HistogramBin,
    JointComparison,
    TableComparison,
)

__all__ = [
    "FINDINGS",
    "Bin",
    "Bins",
    "ColumnComparison",
    "ColumnProfile",
    "ColumnType",
    "Finding",
    "HistogramBin",
    "JointComparison",
    "Profile",
    "TableComparison",
    "bin_counts",
    "choose_bins",
    "compare_profiles",
    "compare_tables",
    "contingency_tables",
    "profile_table",
]
