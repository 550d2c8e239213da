"""The goal of a run that reads until it is sure: a limit is decided, an order is clear, or an interval is narrow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from kullback.common.row_statistics import BUILT_IN
from kullback.errors import invalid_value, safe_repr

# The names of means in gates, and the statistics that the names stand for.
LIMITED = {"mean": "kl_pq", "kl_qp.mean": "kl_qp", "js.mean": "js", "tv.mean": "tv", "top1": "top1_agreement"}
_HIGHEST = {each.name: each.high for each in BUILT_IN}
WANTED = f"a limit such as 'mean=0.01' (of {', '.join(LIMITED)}), 'order', or a width such as 'width=10%'"


@dataclass(frozen=True)
class Goal:
    """A question that a run answers with as few windows as possible.

    Attributes:
        text: the goal as the user wrote it.
        kind: ``"limit"``: a mean is above or below a limit. ``"order"``: each candidate is farther from the base than
            another one, or nearer. ``"width"``: the interval of the mean KL(P || Q) is narrow.
        statistic: the name of the statistic whose mean the goal is about.
        number: the limit or the width; 0 for an order.
        is_share: whether the width is a share of the mean.
    """

    text: str
    kind: Literal["limit", "order", "width"]
    statistic: str = "kl_pq"
    number: float = 0.0
    is_share: bool = False

    @classmethod
    def read(cls, text: object) -> Goal:
        """Return the goal that a text describes.

        Raises:
            ArgumentValueError: the text is no goal.

        Example:
            >>> Goal.read("width=10%").number, Goal.read("top1=0.99").statistic, Goal.read("order").kind
            (0.1, 'top1_agreement', 'order')
        """
        if isinstance(text, Goal):
            return text
        if text == "order":
            return cls("order", "order")
        name, _, amount = text.partition("=") if isinstance(text, str) else ("", "", "")
        is_share = name == "width" and amount.endswith("%")
        try:
            number = float(amount.removesuffix("%") if is_share else amount) / (100 if is_share else 1)
        except ValueError:
            number = math.nan
        if name == "width" and not is_share and number >= 1:
            wanted = "a width in nats below 1, or a share of the mean with %"
            instead = {"until_sure": f"width={amount}%"}
            raise invalid_value("Run", "until_sure", wanted=wanted, got=safe_repr(text), instead=instead)
        statistic = LIMITED.get(name, "kl_pq")
        highest = _HIGHEST[statistic]
        if (name != "width" and name not in LIMITED) or not 0 < number < highest:
            wanted, instead = WANTED, {"until_sure": "mean=0.01"}
            if name in LIMITED and not math.isnan(number):
                wanted = f"a limit of {name} above 0" + f" and below {highest:.6g}" * (highest < math.inf)
            raise invalid_value("Run", "until_sure", wanted=wanted, got=safe_repr(text), instead=instead)
        return cls(str(text), "width" if name == "width" else "limit", statistic, number, is_share)
