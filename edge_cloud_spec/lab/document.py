"""The style of the reports: a page of plain HTML that needs only the files beside it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_STYLE = """
:root { --ink: #1d2330; --dim: #6b7486; --line: #e3e6ec; --paper: #fff; --back: #f5f6f8;
  --good: #1e8a4c; --bad: #c43d2f; --own: #a86400; }
@media (prefers-color-scheme: dark) { :root { --ink: #e8ebf1; --dim: #98a1b3; --line: #343a47;
  --paper: #20242d; --back: #171a20; --good: #6fd394; --bad: #ff8a7c; --own: #f5c25b; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 15px/1.5 system-ui, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 60px; }
h1 { font-size: 24px; margin: 0 0 4px; } h2 { font-size: 15px; margin: 32px 0 8px; }
p { margin: 0 0 14px; color: var(--dim); }
p.end { font-weight: 600; color: var(--bad); } p.end.success { color: var(--good); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 10px; }
.card { background: var(--paper); border: 1px solid var(--line); border-radius: 8px;
  padding: 10px 14px; }
.card b { display: block; font-size: 20px; font-variant-numeric: tabular-nums; }
.card span { color: var(--dim); font-size: 13px; }
.pictures { display: grid; grid-template-columns: repeat(auto-fit, minmax(320px, 1fr));
  gap: 14px; align-items: start; margin-top: 20px; }
img, video { width: 100%; border: 1px solid var(--line); border-radius: 8px; display: block;
  background: #fff; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; background: var(--paper); font-size: 14px; }
th, td { text-align: left; vertical-align: top; padding: 6px 10px;
  border-bottom: 1px solid var(--line); }
th { color: var(--dim); font-weight: 500; } td.n { text-align: right; white-space: nowrap;
  font-variant-numeric: tabular-nums; }
del { color: var(--bad); } ins { color: var(--own); text-decoration: none; font-weight: 600; }
a { color: inherit; }
"""


def document(title: str, body: str) -> str:
    """A whole page; the title is text, the body HTML."""
    title = escape(title)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{_STYLE}</style>
</head>
<body><main>
<h1>{title}</h1>
{body}</main></body></html>
"""


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """An HTML table that scrolls; floats have three digits, None is a dash."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>\n" for row in rows)
    return f'<div class="scroll"><table>\n<tr>{head}</tr>\n{body}</table></div>'


def number(value: object) -> str:
    """A value in a table or on a card."""
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return "-" if value is None else escape(str(value))


def _cell(value: object) -> str:
    text = number(value)
    return f"<td class=n>{text}</td>" if isinstance(value, int | float) else f"<td>{text}</td>"
