"""Colors, sizes and axes that all figures share."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colors, for all kinds of vision; neighbors differ in lightness too.
COLORS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#7A5C00", "#000000")
INK, FAINT, BAND = "#222222", "#777777", "#DDDDDD"
# Dark enough for text on white.
VERDICT_COLORS = {"trusted": "#00704F", "doubtful": "#8A5A00", "wrong": "#B04000", "unknown": "#666666"}
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
# As many as colors, so that a line differs from every other in more than its color.
LINE_STYLES: tuple[Any, ...] = (
    "-",
    "--",
    "-.",
    ":",
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (1, 3)),
    (0, (10, 2, 2, 2)),
)


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> "tuple[Figure, Any]":
    """Make a figure whose axes are always an array `[rows, columns]`."""
    from matplotlib import pyplot

    return pyplot.subplots(rows, columns, figsize=(width, height), layout="constrained", squeeze=False, **options)


def polish(axes: "Axes", *, title: str = "", x: str = "", y: str = "") -> None:
    """Name the axes and take away what carries no information."""
    axes.set_title(title, fontsize=10, loc="left", color=INK)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def line_style(number: int) -> Any:
    """Give the line style of the n-th thing of a kind, which differs where colors cannot be told apart."""
    return LINE_STYLES[number % len(LINE_STYLES)]


def color(number: int) -> str:
    """Give the color of the n-th thing of a kind."""
    return COLORS[number % len(COLORS)]
