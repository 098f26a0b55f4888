"""One HTML page with everything in it: no script, nothing to fetch, light or dark, 400 pixels or 1400."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from sortition.benchmarks.charts import STYLE as CHARTS
from sortition.benchmarks.printable import escape

STYLE: Final = CHARTS + Path(__file__).with_name("page.css").read_text(encoding="utf-8")


def page(title: str, cards: Iterable[str], *, style: str = "", footer: str = "") -> str:
    """The whole document; the cards are HTML (`card`), title and footer are text."""
    end = f"<footer>{escape(footer)}</footer>\n" if footer else ""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{STYLE}{style}</style>\n</head>\n<body>\n"
        f"<h1>{escape(title)}</h1>\n<main>\n{''.join(cards)}</main>\n{end}</body>\n</html>\n"
    )


def card(title: str, body: str, *, note: str = "", wide: bool = False) -> str:
    """A part of the page: a heading, a sentence on how to read what follows (both text), and HTML."""
    said = f'<p class="note">{escape(note)}</p>\n' if note else ""
    begin = '<section class="wide">' if wide else "<section>"
    return f"{begin}\n<h2>{escape(title)}</h2>\n{said}{body}\n</section>\n"


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: Iterable[int] = ()) -> str:
    """Texts in rows; the columns in `numbers` stand to the right."""
    right = frozenset(numbers)

    def row(cells: Sequence[str], tag: str) -> str:
        styles = (' class="number"' if column in right else "" for column in range(len(cells)))
        return "".join(
            f"<{tag}{style}>{escape(cell)}</{tag}>" for style, cell in zip(styles, cells, strict=True)
        )

    body = "".join(f"<tr>{row(cells, 'td')}</tr>\n" for cells in rows)
    return (
        f'<div class="scroll"><table>\n<thead><tr>{row(head, "th")}</tr></thead>\n'
        f"<tbody>\n{body}</tbody>\n</table></div>"
    )
