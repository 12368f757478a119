"""A report as one page that needs no other file."""

import base64
import io
import os
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hsbi.diagnostics.levels import COVERAGE_LEVELS
from hsbi.diagnostics.verdict import FALSE_ALARM_RATE, MAX_BIAS, MAX_RATIO

if TYPE_CHECKING:
    from hsbi.diagnostics.report import Report

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; max-width: 1100px; margin: 2em auto; padding: 0 1em; }
h1 { font-size: 1.5em; } h2 { font-size: 1.15em; margin-top: 2em; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; font-weight: 600; color: #555; }
td, th { padding: 6px 10px; border-bottom: 1px solid #ddd; vertical-align: top; }
td.number, th.number { text-align: right; }
td.number { font-variant-numeric: tabular-nums; }
.verdict { font-weight: 700; white-space: nowrap; } .trusted { color: #00704f; } .doubtful { color: #8a5a00; }
.wrong { color: #b04000; } .unknown { color: #666; } .advice { color: #555; } img { max-width: 100%; }
"""
_MARKS = {"trusted": "●", "doubtful": "▲", "wrong": "✖", "unknown": "·"}
_DPI = 110


def write_page(report: "Report", path: str | os.PathLike[str]) -> None:
    """Write the page."""
    from hsbi import plots

    figures = {
        "Overview": ("All checks in one figure. Gray bands hold exact posteriors in 95 of 100 checks.", plots.report),
        "Recovery": ("Posterior means against true values of the simulated data sets.", plots.recovery),
    }
    parts = [f"<h1>hsbi.check: <span class='{report.verdict}'>{report.verdict}</span></h1>"]
    parts.append(f"<p>{escape(report.header())}. {_explain()}</p>")
    parts += ["<h2>Verdicts</h2>", _verdicts(report), "<h2>Intervals</h2>", _coverage(report)]
    for title, (caption, draw) in figures.items():
        parts.append(f"<h2>{title}</h2><p>{caption}</p><img alt='{title}' src='{_embed(draw(report))}'>")
    page = (
        "<!doctype html><html lang='en'><head><meta charset='utf-8'><title>hsbi.check</title>"
        f"<link rel='icon' href='data:,'><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>"
    )
    Path(path).write_text(page, encoding="utf-8")


def _explain() -> str:
    return (
        f"A report on an exact posterior and surrogate is trusted on all lines in {1 - FALSE_ALARM_RATE:.0%} of "
        f"checks. Errors are called wrong where they are for certain larger than {MAX_BIAS} standard deviations, or "
        f"intervals more than {MAX_RATIO - 1:.0%} too wide or narrow."
    )


def _verdicts(report: "Report") -> str:
    rows = [
        f"<tr><td class='verdict {line.verdict}'>{_MARKS[line.verdict]} {line.verdict}</td><td>{escape(line.name)}</td>"
        f"<td>{escape(line.finding)}<div class='advice'>{escape(line.advice)}</div></td></tr>"
        for line in report.lines
    ]
    return f"<table><tr><th>verdict</th><th>what</th><th>finding, and what to do</th></tr>{''.join(rows)}</table>"


def _coverage(report: "Report") -> str:
    """Tabulate coverage, contraction and recovery of each quantity."""
    head = "".join(f"<th class='number'>holds, of {level:.0%}</th>" for level in COVERAGE_LEVELS)
    rows = []
    for name in ("globals", "locals"):
        if name not in report.levels:
            continue
        level = report.levels[name]
        contraction = np.median(level.contraction[level.mask], axis=0)
        for column, label in enumerate(level.columns):
            cells = [f"{share:.0%}" for share in level.coverage[:, column]]
            cells += [f"{contraction[column]:.2f}", f"{level.recovery[column]:.2f}"]
            numbers = "".join(f"<td class='number'>{cell}</td>" for cell in cells)
            rows.append(f"<tr><td>{escape(label)}</td><td>{name}</td>{numbers}</tr>")
    return (
        f"<table><tr><th>quantity</th><th>level</th>{head}<th class='number'>contraction</th>"
        "<th class='number'>recovery</th></tr>"
        f"{''.join(rows)}</table>"
    )


def _embed(figure: Any) -> str:
    """Give a figure as a data address, and close it."""
    from matplotlib import pyplot

    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=_DPI)
    pyplot.close(figure)
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode('ascii')}"
