"""Draws a PNG from a JSON description: plot.py in.json out.png

    {"title": "Spawning", "subtitle": "two cores", "columns": 2,
     "panels": [
       {"title": "time to start", "note": "flat",
        "x": {"label": "workers", "log": true},
        "y": {"label": "ms", "log": false, "from_zero": true},
        "series": [{"label": "Snakepit", "points": [[1, 0.4], [10, 0.5]], "style": "line"}]}]}

`style` is "line" (the default), "points", "both" or "dashed". `note` stands above the right corner
of its panel, red if `alarm` is true. Only `panels` and `points` have to be there. A point whose y is
null makes a gap.
"""

import json
import math
import sys

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt  # noqa: E402  (the backend has to be chosen first)
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator, NullFormatter  # noqa: E402

# Told apart by readers with any kind of colour vision, and in this order also in grey.
COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#444444"]
INK = "#222222"
FAINT = "#666666"
ALARM = "#b00020"

STYLES = {
    "line": {"linestyle": "-", "linewidth": 1.6},
    "dashed": {"linestyle": "--", "linewidth": 1.4},
    "points": {"linestyle": "none", "marker": "o", "markersize": 4},
    "both": {"linestyle": "-", "linewidth": 1.6, "marker": "o", "markersize": 4},
}

plt.rcParams.update({
    "font.size": 10, "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": "#aaaaaa",
    "xtick.color": FAINT, "ytick.color": FAINT, "axes.titlesize": 11, "axes.titleweight": "bold",
    "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
})


def number(value, _position=None):
    """1000 as 1,000 and 0.25 as 0.25: no exponent where a person would write none."""
    if value == 0:
        return "0"
    if abs(value) >= 1_000_000:
        return EngFormatter(sep="")(value)
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.6g}"


def points(series):
    pairs = [(x, math.nan if y is None else y) for x, y in series["points"]]
    return [x for x, _ in pairs], [y for _, y in pairs]


def seen(series):
    return [y for y in points(series)[1] if not math.isnan(y)]


def dress_y(axes, y, panel):
    axes.set_ylabel(y.get("label", ""))
    every = [value for series in panel["series"] for value in seen(series)]
    if y.get("log"):
        axes.set_yscale("log")
        axes.yaxis.set_minor_formatter(NullFormatter())
    elif y.get("from_zero") and every and min(every) >= 0:
        axes.set_ylim(0, max(every) * 1.15 or 1)
    elif every and max(every) == min(every):
        # A constant: matplotlib would show it as if it were a trillionth of itself high.
        axes.set_ylim(min(every) - 1, max(every) + 1)
    if not y.get("log") and all(value == int(value) for value in every):
        # Nobody has two and a half processes.
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(number))


def dress_x(axes, x, panel):
    axes.set_xlabel(x.get("label", ""))
    if x.get("log"):
        axes.set_xscale("log")
        axes.xaxis.set_minor_formatter(NullFormatter())
        places = sorted({place for series in panel["series"] for place in points(series)[0]})
        # Where only a few places were measured, they are what the reader looks for.
        if 1 < len(places) <= 8:
            axes.set_xticks(places)
            axes.minorticks_off()
    axes.xaxis.set_major_formatter(FuncFormatter(number))


def draw(axes, panel):
    for index, series in enumerate(panel["series"]):
        style = dict(STYLES[series.get("style", "line")])
        style["color"] = series.get("color", COLOURS[index % len(COLOURS)])
        axes.plot(*points(series), label=series.get("label"), **style)
    axes.set_title(panel.get("title", ""), loc="left")
    dress_x(axes, panel.get("x", {}), panel)
    dress_y(axes, panel.get("y", {}), panel)
    axes.grid(True, color="#e4e4e4", linewidth=0.8)
    axes.tick_params(length=0)
    if panel.get("note"):
        axes.set_title(panel["note"], loc="right", fontsize=9, fontweight="normal",
                       color=ALARM if panel.get("alarm") else FAINT)
    if any(series.get("label") for series in panel["series"]):
        axes.legend(frameon=True, framealpha=0.85, edgecolor="none", fontsize=9)


def picture(description):
    panels = description["panels"]
    columns = description.get("columns") or (1 if len(panels) == 1 else 2 if len(panels) <= 6 else 3)
    rows = math.ceil(len(panels) / columns)
    width, height = (8.0, 4.6) if columns == 1 else (5.2 * columns, 3.1 * rows)
    if columns == 1:
        height *= rows
    figure, grid = plt.subplots(rows, columns, figsize=(width, height), squeeze=False, layout="constrained")
    figure.patch.set_facecolor("white")
    places = list(grid.flat)
    for axes, panel in zip(places, panels):
        draw(axes, panel)
    for axes in places[len(panels):]:
        axes.set_visible(False)
    title = description.get("title", "")
    if description.get("subtitle"):
        title += "\n" + description["subtitle"]
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=13)
    return figure


def main(arguments):
    if len(arguments) != 2:
        print("usage: plot.py in.json out.png", file=sys.stderr)
        return 2
    source, target = arguments
    with open(source) as file:
        description = json.load(file)
    picture(description).savefig(target, dpi=120, format="png")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
