"""What objects and arrays share: graphs under construction, and commas that are counted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sortition.grammars.expr import NOTHING, Expr, Graph, concat, counted, literal
from sortition.grammars.json_whitespace import Whitespace
from sortition.grammars.work import meter

EDGE_STEPS: Final = 5
"""Steps that each edge of the graph of a container takes."""

UNROLLED: Final = 8
"""Items or members beyond those that are listed up to which states tell how many there are. More are counted:
each comma is one, and is refused where too many would follow."""


class Edges:
    """A graph under construction, its nodes named by anything hashable."""

    def __init__(self) -> None:
        self._charge = meter().charge
        self.numbers: dict[object, int] = {}
        self.edges: list[tuple[int, Expr, int]] = []

    def add(self, source: object, expr: Expr, target: object) -> None:
        if expr is NOTHING:
            return
        self._charge(EDGE_STEPS)
        numbers = self.numbers
        start = numbers.setdefault(source, len(numbers))
        self.edges.append((start, expr, numbers.setdefault(target, len(numbers))))

    def add_all(self, source: object, onward: Iterable[tuple[Expr, object]]) -> None:
        """Add edges from a node, none of which is `NOTHING`: there may be a hundred thousand in an object."""
        number = self._number(source)
        numbers = self.numbers
        more = [(number, expr, numbers.setdefault(target, len(numbers))) for expr, target in onward]
        self._charge(EDGE_STEPS * len(more))
        self.edges += more

    def _number(self, name: object) -> int:
        return self.numbers.setdefault(name, len(self.numbers))

    def graph(self, start: object, end: object) -> Graph:
        return Graph(tuple(self.edges), self._number(start), frozenset({self._number(end)}))


def counting_comma(most: int | None, whitespace: Whitespace) -> Expr:
    """A comma that is counted, and is at most the one of this number."""
    return concat(whitespace.before_comma, counted(literal(b","), 1, 0, most), whitespace.after_comma)
