"""How objects look in a notebook: a small table, every text escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape


def table(title: str, rows: Sequence[Sequence[str]], header: Sequence[str] = (), note: str = "") -> str:
    """HTML of a table; without a header, the first column names the rows."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    lines = []
    for first, *others in rows:
        cells = "".join(f'<td style="text-align:left">{escape(cell)}</td>' for cell in others)
        lines.append(f'<tr><th scope="row" style="text-align:left">{escape(first)}</th>{cells}</tr>')
    caption = f'<caption style="text-align:left"><strong>{escape(title)}</strong></caption>'
    top = f"<thead><tr>{head}</tr></thead>" if head else ""
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<table>{caption}{top}<tbody>{''.join(lines)}</tbody></table>{below}"
