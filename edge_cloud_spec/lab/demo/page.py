"""The report's page: plain HTML; the files that it shows are in the same folder."""

from __future__ import annotations

from html import escape
from typing import Any

from ...document import document
from ...observe.console_view import size


def page(numbers: dict[str, Any], film: str) -> str:
    """The page of a run, from what ``figures.json`` holds and the film's file name."""
    title = f"Room {numbers['seed']}: {numbers['instruction']}"
    kind = "end success" if numbers["success"] else "end"
    body = f"""<p class="{kind}">{escape(numbers["ending"])}</p>
<p>preset {escape(numbers["preset"])}, rule {escape(numbers["rule"])}, \
{escape(numbers["order"])}</p>
<div class="cards">{_cards(numbers)}</div>
<div class="pictures">{_film(film)}<img src="path.png" alt="the way over the room's plan"></div>
<h2>Where the time went</h2>
<img src="timeline.png" alt="timeline of the rounds">
<h2>Decisions</h2>
<p>Words that the robot drafted and the cloud accepted are plain, <del>rejected ones</del> are
struck, <ins>the cloud's own</ins> are bold. Branches of a tree are apart by |, and (+9) are nine
words of branches that were left before.</p>
<div class="scroll"><table>
<tr><th></th><th>distance</th><th>words</th><th>action</th><th>tokens</th><th>round trips</th>
<th>tokens/s</th><th>up</th><th>down</th></tr>
{"".join(_row(row) for row in numbers["rows"])}</table></div>
<h2>Files</h2>
<p><a href="figures.json">figures.json</a>, <a href="bag/">bag/</a> (MCAP, every topic of the run;
<code>edge-cloud-spec replay bag</code> plays it back), <a href="logs/">logs/</a></p>
"""
    return document(title, body)


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
        words.append(f"(+{part['other_branches']})" if part["other_branches"] else "")
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
