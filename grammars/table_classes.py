"""Classes of tokens: those whose maps are equal, and those of what remains of them in other frames."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sortition.grammars.compose import SELF, Composition, spread

Ints = NDArray[np.int32]
Wide = NDArray[np.int64]


def classes_of(composition: Composition) -> tuple[Wide, Wide, int, Ints]:
    """Maps that are classes, each map's class (0: none), how many classes are of tokens, and each token's.

    Class n + 1 is the nth of those maps. Classes are numbered in the order in which tokens, and then what
    remains of them, come upon them, so it does not matter how the maps are numbered.
    """
    maps = len(composition.start) - 1
    tokens = composition.map_of_token
    found = _in_order(tokens[tokens >= 0], maps)
    token_classes = len(found) + 1
    class_of_map = np.zeros(maps, np.int64)
    classes = [found]
    count = 1
    while found.size:
        class_of_map[found] = np.arange(count, count + len(found))
        count += len(found)
        begin = composition.start[found]
        _, at = spread(begin, composition.start[found + 1] - begin)
        target, effect = composition.outcomes[:, at]
        remainder = target[(effect < 0) & (target != SELF)]
        found = _in_order(remainder[class_of_map[remainder] == 0], maps)
        classes.append(found)
    # Tokens that are accepted nowhere, whose map is -1, find class 0 in one more place at the end.
    class_of_token_map = np.append(class_of_map, 0).astype(np.int32)
    return np.concatenate(classes), class_of_map, token_classes, class_of_token_map.take(tokens, mode="wrap")


def _in_order(numbers: Ints, bound: int) -> Wide:
    """Distinct numbers below a bound, in the order in which they come first."""
    first = np.full(bound, len(numbers))
    # Of several values for one place, the last one stays.
    first[numbers[::-1]] = np.arange(len(numbers))[::-1]
    found = np.flatnonzero(first < len(numbers))
    return found[np.argsort(first[found])]
