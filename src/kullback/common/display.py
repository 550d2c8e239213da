"""The display of results as text, in notebooks, as HTML, as JSON, as data frames and as plots."""

from __future__ import annotations

import inspect
import io
import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kullback.common.extra_arguments import by_name
from kullback.common.optional import is_installed, load
from kullback.common.plain_values import JsonObject

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame
    from rich.console import Console

# These patterns match commands for build servers in a text. GitHub Actions executes a line that begins with two colons
# as a command. Other build servers execute text after `##[` or `##vso[`.
_COMMAND = re.compile(r"^([^\S\n]*):(?=:)", re.MULTILINE)
_MARK = re.compile(r"##(?=\[|vso\[)")
_OF_FIGURES: dict[str, str] = dict.fromkeys(
    ("save", "path", "filename", "dpi"), "figure, axes = result.plot(), and then figure.savefig('result.png')"
)


class Shown:
    """The base class of results, with methods that return the result as text, HTML, JSON, a data frame or a plot.

    The modules of `kullback.report` import the classes of results. To avoid an import cycle, this class imports these
    modules by name when a method is called.
    """

    @by_name("pathlib.Path('result.html').write_text(result.to_html())")
    def to_html(self) -> str:
        """Return a self-contained HTML page with plots.

        Raises:
            OptionalDependencyError: jinja2 or matplotlib is not installed.
        """
        return str(self._report("html").render(self))

    @by_name("pathlib.Path('result.md').write_text(result.to_markdown())")
    def to_markdown(self) -> str:
        """Return a short summary in GitHub's Markdown, as for a pull request or a CI run.

        Example:
            >>> from torch.distributions import Normal
            >>> from kullback import kl_estimate
            >>> print(kl_estimate(Normal(0.0, 1.0), Normal(1.0, 1.0)).to_markdown())
            **KL = 0.5 nats (off by 6e-08 at most), closed form**
            ...
        """
        return str(self._report("markdown").render(self))

    @by_name(
        "pathlib.Path('result.json').write_text(result.to_json())",
        {"indent": "json.dumps(result.to_dict(), indent=2)"},
    )
    def to_json(self) -> str:
        """Return strict JSON with a versioned schema, described in `kullback.report`."""
        return str(self._report("json").dumps(self))

    @by_name("result.to_dict(flat=True)")
    def to_dict(self, *, flat: bool = False) -> JsonObject:
        """Return the fields of `to_json` as dicts, lists, strings and finite numbers.

        Arguments:
            flat: if True, return only the numbers, in one dict. Each key is a path, such as
                ``"divergences/kl_pq/mean"`` or ``"columns/age/psi/interval/upper"``. True and False become 1 and 0.
                Infinities and NaN stay floats. None, strings (such as ``"unit"``) and lists of rows without names are
                left out. Weights & Biases, MLflow and TensorBoard accept such a dict.

        Example:
            >>> from torch.distributions import Normal
            >>> from kullback import kl_estimate
            >>> estimate = kl_estimate(Normal(0.0, 1.0), Normal(1.0, 1.0))
            >>> estimate.to_dict(flat=True)["numbers/value"]
            0.5
        """
        return self._report("json").to_dict(self, flat=flat)

    @by_name("result.to_pandas()", {"index": "result.to_pandas().to_csv('result.csv', index=False)"})
    def to_pandas(self) -> DataFrame:
        """Return the main numbers as a pandas DataFrame, with columns for their unit and their confidence.

        The units of all kinds are also in ``attrs["units"]``.

        Raises:
            OptionalDependencyError: pandas is not installed.
        """
        load("pandas", "to_pandas")
        return self._report("frame").to_pandas(self)

    @by_name("result.plot(axes)", _OF_FIGURES)
    def plot(self, ax: Axes | None = None, *, name: str | None = None) -> tuple[Figure, Axes]:
        """Plot the main numbers with their intervals, or another drawing of the HTML page, with matplotlib.

        The label of the axis has the kind, the unit, and the confidence of the intervals. An arrow marks an interval
        without a limit. An infinite value is written as text at the edge of the plot.

        Arguments:
            ax: the axes to draw on; by default new axes.
            name: the name of another drawing. Predictions have ``"distribution"``, ``"quantiles"``, ``"segments"``,
                ``"confidence"`` and ``"ladder"``. Models have ``"sizes"`` and ``"ladder"``. A fit has ``"fit"`` and
                ``"history"``. A comparison of tables has the name of each column.

        Returns:
            the figure and the axes.

        Raises:
            OptionalDependencyError: matplotlib is not installed.
            ArgumentValueError: there is no drawing of this name.

        Example:
            >>> import torch
            >>> from kullback import Logits, kl_estimate
            >>> figure, axes = kl_estimate(Logits(torch.eye(3)), Logits(torch.zeros(3))).plot()
            >>> axes.get_ylabel()
            'KL, nats (± bound on the error)'
        """
        figure, axes = self._report("figure").draw(self, ax, name)
        return figure, axes

    def __str__(self) -> str:
        """Return the text report, or one line for a single number; with rich, the report is as wide as the terminal."""
        page, terminal = self._report("subjects").document(self), self._report("terminal")
        if page.in_one_line:
            return page.line
        if not is_installed("rich"):
            return without_commands(terminal.render_plain(page))
        text = io.StringIO()
        terminal.render(page, open_console(file=text, no_color=True, highlight=False))
        lines = "\n".join(line.rstrip() for line in text.getvalue().rstrip("\n").split("\n"))
        return without_commands(lines)

    def _repr_html_(self) -> str | None:
        """Return the main blocks of the HTML page; without jinja2, return None, and a notebook shows the repr."""
        return str(self._report("html").render_table(self)) if is_installed("jinja2") else None

    def _report(self, medium: str) -> Any:
        """Return the module of `kullback.report` for a medium, such as "html"."""
        return import_module(f"kullback.report.{medium}")


class ShownNumber(Shown, ABC):
    """The base class of results that `float` converts to their main number."""

    @abstractmethod
    def __float__(self) -> float:
        """Return the main number."""

    def __format__(self, spec: str) -> str:
        """Return the main number in the format `spec`; with an empty `spec`, return `str(self)`."""
        return format(float(self), spec) if spec else str(self)


def without_commands(text: str) -> str:
    r"""Return a text with escaped commands to build servers; names of columns and files are untrusted.

    Example:
        >>> print(without_commands("::error::boom, ##[group]x, a::b"))
        \x3a:error::boom, #\u0023[group]x, a::b
    """
    return _MARK.sub(r"#\\u0023", _COMMAND.sub(r"\1\\x3a", text))


def open_console(**options: Any) -> Console:
    """Return a rich console with the width in the environment variable ``COLUMNS``.

    If ``COLUMNS`` is not a positive number, the console is as wide as the terminal. With a width of 0, rich would print
    nothing.
    """
    from rich.console import Console

    class PlainConsole(Console):
        def on_broken_pipe(self) -> None:
            raise  # noqa: PLE0704 - rich calls this method in an error handler; rich's own method exits the process

    sizes = {name: os.environ.get(name, "") for name in ("COLUMNS", "LINES")}
    useless = [name for name, text in sizes.items() if not (text.isdecimal() and int(text) > 0)]
    return PlainConsole(
        _environ={name: text for name, text in os.environ.items() if name not in useless}, **options
    )


def shown_options(
    made: object, owner: type, others: Mapping[str, object] | None = None, always: Collection[str] = ()
) -> str:
    """Return the constructor options of an object as source text, without options that equal their defaults.

    `owner` is the class whose constructor takes the options. The values are attributes of the object, or in `others`.
    The options in `always` are shown even if they equal their defaults.
    """
    options = inspect.signature(owner).parameters
    others = others or {}
    values = {name: others[name] if name in others else getattr(made, name) for name in options}
    return ", ".join(
        f"{name}={value!r}"
        for name, value in values.items()
        if name in always or value != options[name].default
    )
