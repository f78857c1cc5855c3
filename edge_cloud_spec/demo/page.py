"""The report's page: plain HTML, everything it shows lies beside it."""

from __future__ import annotations

from html import escape
from typing import Any

from .screen import size

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


def page(numbers: dict[str, Any], film: str) -> str:
    """The page of a run, from what ``figures.json`` holds and the film's file name."""
    title = escape(f"Room {numbers['seed']}: {numbers['instruction']}")
    kind = "end success" if numbers["success"] else "end"
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
<p class="{kind}">{escape(numbers["ending"])}</p>
<p>preset {escape(numbers["preset"])}, rule {escape(numbers["rule"])}, \
{escape(numbers["order"])}</p>
<div class="cards">{_cards(numbers)}</div>
<div class="pictures">{_film(film)}<img src="path.png" alt="the way over the room's plan"></div>
<h2>Where the time went</h2>
<img src="timeline.png" alt="timeline of the rounds">
<h2>Decisions</h2>
<p>Words that the robot drafted and the cloud accepted are plain, <del>rejected ones</del> are
struck, <ins>the cloud's own</ins> are bold.</p>
<div class="scroll"><table>
<tr><th></th><th>distance</th><th>words</th><th>action</th><th>tokens</th><th>round trips</th>
<th>tokens/s</th><th>up</th><th>down</th></tr>
{"".join(_row(row) for row in numbers["rows"])}</table></div>
<h2>Files</h2>
<p><a href="figures.json">figures.json</a>, <a href="bag/">bag/</a> (MCAP, every topic of the run;
<code>edge-cloud-spec replay bag</code> plays it back), <a href="logs/">logs/</a></p>
</main></body></html>
"""


def _cards(numbers: dict[str, Any]) -> str:
    share = numbers["acceptance"]
    cards = [
        (f"{numbers['outcome'].get('distance', float('nan')):.2f} m", "from the thing in the end"),
        (f"{numbers['drive_ms'] / 1e3:.1f} s", f"and {numbers['path_m']:.1f} m of way"),
        (str(numbers["decisions"]), "decisions"),
        (f"{numbers['tokens_per_s']:.0f}", "tokens per second"),
        ("-" if share is None else f"{100 * share:.0f} %", "of the drafted tokens accepted"),
        (f"{numbers['tokens_per_round']:.1f}", "tokens per round trip"),
        (size(numbers["up_bytes"]), "to the cloud"),
        (size(numbers["down_bytes"]), "from the cloud"),
    ]
    return "".join(f'<div class="card"><b>{a}</b><span>{b}</span></div>' for a, b in cards)


def _film(name: str) -> str:
    if name.endswith(".gif"):
        return f'<img src="{name}" alt="what the camera saw">'
    return f'<video src="{name}" controls muted loop playsinline></video>'


def _row(row: dict[str, Any]) -> str:
    words = []
    for part in row["words"]:
        words.append(escape(part["accepted"]))
        words.append(f"<del>{escape(part['rejected'])}</del>" if part["rejected"] else "")
        words.append(f"<ins>{escape(part['own'])}</ins>" if part["own"] else "")
    distance = "" if row["distance"] is None else f"{row['distance']:.2f} m"
    cells = [
        f"{row.get('tokens', '')}",
        f"{row.get('rounds', '')}",
        f"{row['tokens_per_second']:.0f}" if "tokens_per_second" in row else "",
        size(row["up_bytes"]) if "up_bytes" in row else "",
        size(row["down_bytes"]) if "down_bytes" in row else "",
    ]
    return (
        f"<tr><td class=n>{row['decision']}</td><td class=n>{distance}</td>"
        f"<td>{' '.join(word for word in words if word)}</td><td>{escape(row['action'])}</td>"
        + "".join(f"<td class=n>{cell}</td>" for cell in cells)
        + "</tr>\n"
    )
