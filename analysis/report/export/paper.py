"""The page's figures as SVG and PNG for a paper: the same traces, drawn by matplotlib at a column's width.

The data of plotly are read back from the figure (scatter and bar traces, their axes, their legend), so that page and
paper show one set of numbers. Same inputs, same bytes: no date, fixed ids, matplotlib's own font.
"""

from __future__ import annotations

import html
import io
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import EngFormatter, LogLocator, NullLocator, StrMethodFormatter

from analysis.formatting import one_line
from analysis.report.figures.style import Figure

# One and two columns of a two-column paper, as of IEEE's and ACM's templates.
COLUMN_IN, PAGE_IN = 3.4, 7.0
PIXELS_PER_IN = 140
"""Pixels of the page per inch of paper: its 13 pixel text becomes roughly 8 pt."""
POINTS_PER_PIXEL = 0.5
DPI = 300
DASHES = {"solid": "-", "dash": "--", "dot": ":", "dashdot": "-."}
MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "cross": "P",
    "x": "X",
    "star": "*",
    "triangle-down": "v",
}
PLACES = {"left": "right", "center": "center", "right": "left", "top": "bottom", "middle": "center", "bottom": "top"}
STYLE: Any = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#9ca3af",
    "axes.grid": False,
    "axes.labelsize": 8,
    "axes.linewidth": 0.6,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.family": "DejaVu Sans",  # matplotlib brings it
    "font.size": 8,
    "grid.color": "#e5e7eb",
    "grid.linewidth": 0.6,
    "hatch.linewidth": 0.5,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "legend.handlelength": 1.8,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "slurmscale",
    "text.parse_math": False,  # a name may contain a dollar
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
}
LAYOUT = ConstrainedLayoutEngine(w_pad=0.02, h_pad=0.02)
# Characters that XML does not allow.
NO_XML = re.compile("[^\t\n\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
DRAWN = {"scatter", "bar"}
ON_THE_PAGE_ONLY = "On the page only."


def drawn(figures: Iterable[Figure], kinds: Sequence[str]) -> dict[str, bytes]:
    """Return each figure with a plot in these kinds (svg, png), by file name, and captions.txt."""
    files: dict[str, bytes] = {}
    captions = []
    for figure in figures:
        plot = figure.plot.to_plotly_json() if figure.plot else None
        here = plot is not None and all(trace["type"] in DRAWN for trace in plot["data"])
        caption = one_line(as_text(figure.caption))
        captions.append(f"{figure.name}: {caption}{'' if here or plot is None else ' ' + ON_THE_PAGE_ONLY}\n")
        if plot is None or not here:
            continue
        with mpl.rc_context(STYLE), warnings.catch_warnings():
            # Other scripts have no glyph in the font; an SVG contains their text nevertheless.
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            canvas = draw(plot, PAGE_IN if figure.wide else COLUMN_IN, hardware=caption.partition(":")[0])
            for kind in kinds:
                files[f"figures/{figure.name}.{kind}"] = saved(canvas, kind, as_text(figure.heading), caption)
    return files | {"figures/captions.txt": "\n".join(captions).encode("utf-8", "replace")}


def saved(canvas: Canvas, kind: str, heading: str, caption: str) -> bytes:
    """Return the bytes of a drawn figure; its caption is in the metadata."""
    about = {"Title": heading, "Description": caption} | ({"Date": None} if kind == "svg" else {"Software": None})
    file = io.BytesIO()
    canvas.savefig(file, format=kind, dpi=DPI, metadata=about)
    return file.getvalue()


def draw(plot: Mapping[str, Any], width_in: float, hardware: str) -> Canvas:
    """Draw a figure from plotly's `data` and `layout`; the hardware stands above it."""
    layout = plot["layout"]
    canvas = Canvas(figsize=(width_in, layout["height"] / PIXELS_PER_IN), layout=LAYOUT)
    names = sorted({trace.get("xaxis", "x") for trace in plot["data"]})
    panels = canvas.subplots(1, len(names), sharey=True, squeeze=False)[0]
    by_name: dict[str, Axes] = dict(zip(names, panels, strict=True))
    ends: dict[tuple[str, Any], float] = defaultdict(float)
    for trace in plot["data"]:
        name = trace.get("xaxis", "x")
        if trace["type"] == "bar":
            draw_bars(by_name[name], trace, layout, ends)
        else:
            draw_scatter(by_name[name], trace)
    for name, axes in by_name.items():
        set_axis(axes, "x", layout[name.replace("x", "xaxis")])
        set_axis(axes, "y", layout["yaxis"])
        axes.label_outer()
    for note in layout.get("annotations", ()):
        annotate(panels[0], note)
    panels[-1].set_title(hardware, loc="right", fontsize=7, color="#6b7280")
    if layout.get("showlegend", True):
        add_legend(canvas, panels, width_in)
    return canvas


# --- traces ----------------------------------------------------------------------------------------------------


def draw_scatter(axes: Axes, trace: Mapping[str, Any]) -> None:
    """Draw lines, markers with error bars, or text, by the mode of the trace."""
    x, y, mode = list(trace["x"]), list(trace["y"]), trace.get("mode", "lines+markers")
    line, marker = trace.get("line", {}), trace.get("marker", {})
    colour = line.get("color") or marker.get("color")
    stroke = {"color": colour, "linewidth": POINTS_PER_PIXEL * line.get("width", 2)}
    stroke["linestyle"] = DASHES[line.get("dash", "solid")] if "lines" in mode else ""
    symbols = each_point(marker.get("symbol", "circle") if "markers" in mode else "", len(x))
    sizes = each_point(marker.get("size", 8), len(x))
    looks = [marked(symbol, size) for symbol, size in zip(symbols, sizes, strict=True)]
    axes.plot(x, y, **stroke)
    for i, look in enumerate(looks):
        if look not in looks[:i]:
            alike = [j for j, each in enumerate(looks) if each == look]
            axes.plot([x[j] for j in alike], [y[j] for j in alike], **stroke | {"linestyle": ""}, **look)
    if x and label(trace) and "text" not in mode:
        axes.plot([], [], **stroke, **marked(symbols[0].removesuffix("-open"), sizes[0]), label=label(trace))
    spreads = {axis: spread_of(trace.get(f"error_{axis}", {})) for axis in ("x", "y")}
    if any(spreads.values()):
        axes.errorbar(x, y, spreads["y"], spreads["x"], fmt="none", ecolor=colour, elinewidth=0.8, capsize=2)
    if "text" in mode:
        vertical, horizontal = trace.get("textposition", "middle center").split()
        for at_x, at_y, text in zip(x, y, trace["text"], strict=True):
            axes.text(at_x, at_y, as_text(text), fontsize=7, ha=PLACES[horizontal], va=PLACES[vertical])


def spread_of(bars: Mapping[str, Any]) -> list[list[float]] | None:
    """Return the lengths of error bars below and above each point; None if there are none or they are hidden."""
    return [list(bars["arrayminus"]), list(bars["array"])] if bars.get("visible", bool(bars)) else None


def each_point(setting: Any, points: int) -> list[Any]:
    """Return a marker setting for each point of a trace: plotly accepts one for all, or one each."""
    return [setting] * points if isinstance(setting, str | int | float) else list(setting)


def marked(symbol: str, size_pixels: float) -> dict[str, Any]:
    """Return matplotlib's options for a plotly symbol; empty if the symbol or its size is."""
    if not symbol or not size_pixels:
        return {}
    hollow = {"markerfacecolor": "#ffffff"} if symbol.endswith("-open") else {}
    return {"marker": MARKERS[symbol.removesuffix("-open")], "markersize": POINTS_PER_PIXEL * size_pixels, **hollow}


def draw_bars(axes: Axes, trace: Mapping[str, Any], layout: Mapping[str, Any], ends: dict[Any, float]) -> None:
    """Draw bars from their base, else on top of the earlier ones."""
    flat = trace.get("orientation") == "h"
    places, sizes = (trace["y"], trace["x"]) if flat else (trace["x"], trace["y"])
    starts = trace.get("base") or [ends[trace.get("xaxis", "x"), place] for place in places]
    for place, size in zip(places, sizes, strict=True):
        ends[trace.get("xaxis", "x"), place] += size
    marker = trace.get("marker", {})
    hatches = marker.get("pattern", {}).get("shape", "")
    look = {
        "color": marker.get("color"),
        "hatch": [each * 3 for each in hatches] if isinstance(hatches, list | tuple) else hatches * 3,
        "label": label(trace),
    }
    thickness = 1 - layout.get("bargap", 0.2)
    if flat:
        axes.barh(list(places), list(sizes), thickness, left=starts, **look)
    else:
        axes.bar(list(places), list(sizes), thickness, bottom=starts, **look)


def label(trace: Mapping[str, Any]) -> str:
    """Return a trace's name for the legend; empty if the legend omits it."""
    return as_text(trace.get("name", "")) if trace.get("showlegend", True) else ""


# --- axes and words --------------------------------------------------------------------------------------------


def set_axis(axes: Axes, which: str, settings: Mapping[str, Any]) -> None:
    """Set title, scale, range, ticks and grid of one axis."""
    axis = axes.xaxis if which == "x" else axes.yaxis
    axis.set_label_text(as_text((settings.get("title") or {}).get("text", "")))
    logarithmic = settings.get("type") == "log"
    if logarithmic:
        axes.set(**{f"{which}scale": "log"})
        axis.set_minor_locator(NullLocator())
    if settings.get("tickvals") is not None:
        texts = [as_text(text) for text in settings.get("ticktext") or map(str, settings["tickvals"])]
        axis.set_ticks(list(settings["tickvals"]), texts)
    elif logarithmic:
        axis.set_major_locator(LogLocator(subs=range(1, 10) if settings.get("dtick") == "D1" else (1, 2, 5)))
        prefixed = settings.get("tickformat") == "~s"
        axis.set_major_formatter(EngFormatter(sep="") if prefixed else StrMethodFormatter("{x:,.10g}"))
    if settings.get("range") is not None:
        axes.set(**{f"{which}lim": tuple(settings["range"])})
    elif settings.get("rangemode") == "tozero":
        axes.set(**{f"{which}lim": (0, None)})
    if not logarithmic and settings.get("tickvals") is None and axis.get_view_interval()[1] >= 1000:
        axis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    if settings.get("showgrid", True):
        axes.grid(visible=True, axis="x" if which == "x" else "y")
    if settings.get("side") == "top":
        axes.xaxis.set_label_position("top")
        axes.xaxis.tick_top()
    if settings.get("ticks") == "":
        axis.set_tick_params(length=0)


def annotate(axes: Axes, note: Mapping[str, Any]) -> None:
    """Draw a note of the layout: at the left edge of the figure, or at a point of it."""
    outside = note.get("xref") == "paper"
    axes.annotate(
        as_text(note["text"]),
        (note["x"], note["y"]),
        xycoords=axes.get_yaxis_transform() if outside else "data",
        xytext=(POINTS_PER_PIXEL * note.get("xshift", 0), 0),
        textcoords="offset points",
        ha=note.get("xanchor", "center"),
        va="center",
        fontsize=7,
        fontweight="bold" if (note.get("font") or {}).get("weight", 400) > 500 else "normal",
        annotation_clip=False,
    )


def add_legend(canvas: Canvas, panels: Iterable[Axes], width_in: float) -> None:
    """Draw the legend of the named traces, each once, above the axes."""
    named = {text: handle for axes in panels for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    if len(named) < 2:
        return
    # A letter of 7 pt is about 4 pt wide; the handle and the gaps take 30.
    columns = max(1, int(72 * width_in // (4 * max(map(len, named)) + 30)))
    canvas.legend(named.values(), named.keys(), loc="outside upper left", ncols=columns)


def as_text(text: str) -> str:
    """Return text as plotly shows it: entities are letters, `<br>` is a line break."""
    return NO_XML.sub("?", html.unescape(re.sub("<br>", "\n", text)))
