"""Work: what making a grammar costs, in steps, and the budget that all its stages share.

A schema of a hundred bytes can ask for a machine of a million states, and any stage on the way may be the one
that runs away. So each charges what it does, in steps of some half a microsecond, to the one meter of the
grammar that is being made. Steps count what there is to do, never how long it took: what is refused is
refused on every machine, with compiled loops or without. What is kept from one grammar to the next is charged
to each that uses it, as if nobody had made it before.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import update_wrapper
from traceback import clear_frames
from typing import Any, Final, Generic, ParamSpec, TypeVar

from sortition.grammars.cache import Cache
from sortition.grammars.collector import collector_paused
from sortition.grammars.errors import TooLarge

BUDGET: Final = 2_600_000
"""Steps for one grammar, from its text to its machine: a second of a core, without compiled loops."""

SETS_BUDGET: Final = 6_200_000
"""The same where sets of keys are told apart, whose steps are shorter: fourteen keys that must be there in
any order take 4.8 million, and the largest of 146 schemas with instances in another order than theirs 6.1."""

KEPT_STEPS: Final = 1_000_000
"""Steps that the values in one cache have taken, at most: some 30 bytes for each."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class _Made(Generic[T]):
    """A value that is kept.

    Attributes:
        key: what it was made from.
        value: itself.
        steps: how many it took, without those of its parts.
        parts: the kept values that it was made with.
    """

    key: Hashable
    value: T
    steps: int
    parts: tuple[_Made[Any], ...]


class Meter:
    """The steps that one grammar takes.

    Attributes:
        steps: how many so far.
        budget: how many there may be.
    """

    def __init__(self, steps: int = 0, budget: int = BUDGET) -> None:
        self.steps = steps
        self.budget = budget
        self._made: dict[Hashable, _Made[Any]] = {}
        # Of the kept value that is being made: its parts, and what they took.
        self._parts: dict[Hashable, _Made[Any]] = {}
        self._steps_of_parts = 0

    @property
    def left(self) -> int:
        """How many more steps there may be."""
        return self.budget - self.steps

    def allow(self, budget: int) -> None:
        """Let there be so many in all, if that is more than there may be."""
        self.budget = max(self.budget, budget)

    def charge(self, steps: int) -> None:
        """Take note of work, at best before it is done.

        Raises:
            TooLarge: there are more than the budget now.
        """
        self.steps += steps
        if self.steps > self.budget:
            raise self._too_much("the grammar")

    def expect(self, steps: int, what: str) -> None:
        """Refuse at once what is going to take so many steps, which are not charged yet; `what` names it.

        Raises:
            TooLarge: with these there would be more than the budget.
        """
        if self.steps + steps > self.budget:
            raise self._too_much(what)

    def _too_much(self, what: str) -> TooLarge:
        return TooLarge(f"{what} takes more than {self.budget:,} steps to make")

    def find(self, key: Hashable, cache: Cache[_Made[T]], make: Callable[[], T]) -> T:
        """The value of a key, kept from before or made now; it is charged for once, whichever it is."""
        made = self._made.get(key)
        if made is None:
            made = cache.find(key, lambda: self._make(key, make))
            self._take(made)
        self._parts[key] = made
        return made.value

    def _make(self, key: Hashable, make: Callable[[], T]) -> _Made[T]:
        parts, steps_of_parts, before = self._parts, self._steps_of_parts, self.steps
        self._parts, self._steps_of_parts = {}, 0
        try:
            value = make()
        except BaseException:
            # What could not be made is no part, but what it was to be made with is one.
            self._parts, self._steps_of_parts = parts | self._parts, steps_of_parts + self._steps_of_parts
            raise
        steps = self.steps - before - self._steps_of_parts
        made = self._made[key] = _Made(key, value, steps, tuple(self._parts.values()))
        self._parts, self._steps_of_parts = parts, steps_of_parts + self.steps - before
        return made

    def _take(self, made: _Made[Any]) -> None:
        """Charge for what was made before, unless that has been done."""
        if made.key in self._made:
            return
        self._made[made.key] = made
        self._steps_of_parts += made.steps
        self.charge(made.steps)
        for part in made.parts:
            self._take(part)


_CURRENT: Final[ContextVar[Meter | None]] = ContextVar("meter", default=None)


@contextmanager
def metered(steps: int = 0, budget: int = BUDGET) -> Iterator[Meter]:
    """Everything inside is for one grammar, for which so many steps have been taken before."""
    meter = Meter(steps, budget)
    token = _CURRENT.set(meter)
    try:
        with collector_paused():
            try:
                yield meter
            except TooLarge as error:
                _let_go(error)
                raise
    finally:
        _CURRENT.reset(token)


def _let_go(error: TooLarge) -> None:
    """Drop what was half made from the frames that an error goes through, which would keep it all in memory.

    It may be hundreds of MiB, and the first search for garbage would go through it, for a fifth of a second.
    """
    seen: BaseException | None = error
    while seen is not None:
        clear_frames(seen.__traceback__)
        seen = seen.__context__


def meter() -> Meter:
    """That of the grammar that is being made; a new one outside."""
    return _CURRENT.get() or Meter()


def charge(steps: int) -> None:
    """`Meter.charge`, for the grammar that is being made."""
    (_CURRENT.get() or Meter()).charge(steps)


def allow(budget: int) -> None:
    """`Meter.allow`, for the grammar that is being made."""
    meter().allow(budget)


def expect(steps: int, what: str) -> None:
    """`Meter.expect`, for the grammar that is being made."""
    meter().expect(steps, what)


def kept(limit: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Keeps the last results of a function of hashable arguments, as `functools.lru_cache` does.

    So many of them, and fewer where they took many steps, as these are large.
    To find a result costs a grammar the steps that it took to make, the first time.
    """

    def keeping(make: Callable[P, T]) -> Callable[P, T]:
        cache = Cache[_Made[T]](limit, lambda made: max(1, made.steps * limit // KEPT_STEPS))

        def find(*arguments: P.args, **options: P.kwargs) -> T:
            key = (make, arguments, *options.items())
            if (current := _CURRENT.get()) is not None:
                return current.find(key, cache, lambda: make(*arguments, **options))
            with metered():
                return find(*arguments, **options)

        return update_wrapper(find, make)

    return keeping
