"""Every rule of verification that claims to be lossless, proved on small vocabularies in fractions.

What is enumerated is the code that ships: all drafts, all ways their coins can fall, all tokens drawn after.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import product
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import pytest

from sortition.sampling.numerics import MASS_BITS
from sortition.sampling.verify_rules import (
    FLOATS,
    ROOT,
    SUM_BITS,
    Arithmetic,
    Weights,
    accepts,
    block,
    carried,
    excess,
    first_accepted,
    first_equal,
    residual,
    walk,
)

Case = dict[str, Any]
CASES: Final = {
    case["id"].removeprefix("spec_exact/"): case
    for case in json.loads((Path(__file__).parent / "cases" / "sampler.json").read_text())["cases"]
    if case["id"].startswith("spec_exact/")
}

Text = tuple[int, ...]
Model = Callable[[Text], Weights]
Law = dict[Text, Fraction]
Result = TypeVar("Result")

EXACT: Final = Arithmetic(masses=lambda parts: parts, sum=lambda parts: parts.sum())


# Coins: a program is run once for each way they can fall.


class Coins:
    """One way for coins to fall: as the script says, and after it towards acceptance."""

    def __init__(self, script: Sequence[bool]) -> None:
        self.fell: list[bool] = []
        self.chance = Fraction(1)
        self.others: list[list[bool]] = []
        self._script = script
        self._thrown: set[object] = set()

    def __call__(self, *name: object) -> Coin:
        assert name not in self._thrown, "a coin is thrown once"
        self._thrown.add(name)
        return Coin(self)

    def falls(self, chance: Fraction) -> bool:
        """Whether something happens that has this chance."""
        if chance in (0, 1):
            return bool(chance)
        at = len(self.fell)
        if at >= len(self._script):
            self.others.append([*self.fell, False])
        happens = self._script[at] if at < len(self._script) else True
        self.fell.append(happens)
        self.chance *= chance if happens else 1 - chance
        return happens


class Coin:
    """A number from (0, 1), of which nothing is known but what `Coins` decides when it is compared."""

    def __init__(self, coins: Coins) -> None:
        self._coins = coins

    def __mul__(self, q: Any) -> Bound:
        return Bound(self._coins, q)


class Bound:
    def __init__(self, coins: Coins, q: Any) -> None:
        self._coins, self._q = coins, q

    def __lt__(self, p: Any) -> bool:
        return self._coins.falls(min(Fraction(1), Fraction(p) / self._q))


def every(program: Callable[[Coins], Result]) -> Iterator[tuple[Fraction, Result]]:
    """All outcomes of a program, and the chance of each way to get there."""
    scripts: list[list[bool]] = [[]]
    while scripts:
        coins = Coins(scripts.pop())
        result = program(coins)
        yield coins.chance, result
        scripts.extend(coins.others)


# Models: the law after a text.


def weights(masses: Sequence[Any]) -> Weights:
    return Weights.of(np.array([Fraction(mass) for mass in masses], object))


def random_model(size: int, seed: int, zeros: bool = False) -> Model:
    laws: dict[Text, Weights] = {}

    def model(text: Text) -> Weights:
        if text not in laws:
            source = random.Random(f"{seed} {text}")
            masses = [source.randint(0 if zeros else 1, 9) for _ in range(size)]
            masses[source.randrange(size)] += 1
            laws[text] = weights(masses)
        return laws[text]

    return model


def masked(model: Model, allows: Callable[[Text, int], bool]) -> Model:
    """A model under a grammar."""

    def law(text: Text) -> Weights:
        whole = model(text)
        return weights([mass * allows(text, token) for token, mass in enumerate(whole.mass)])

    return law


def no_double(text: Text, token: int) -> bool:
    """A grammar: no token twice in a row, and 0 only at the beginning or after 1."""
    return text[-1:] != (token,) and (token != 0 or text[-1:] in ((), (1,)))


def given_model(laws: dict[str, list[str]]) -> Model:
    return lambda text: weights(laws["".join(map(str, text))])


def chances(law: Weights) -> list[Fraction]:
    return [mass / law.total for mass in law.mass]


def continued(law: Law, model: Model, length: int) -> Law:
    """All texts of a length that begin as these do, as the model goes on with them."""
    found: Counter[Text] = Counter()
    rest = list(law.items())
    while rest:
        text, chance = rest.pop()
        if len(text) >= length:
            found[text[:length]] += chance
        else:
            rest += [
                ((*text, token), chance * part) for token, part in enumerate(chances(model(text))) if part
            ]
    return {text: Fraction(chance) for text, chance in found.items() if chance}


# Verification: a method, as a program of its coins.

Tree = Sequence[int]
Method = Callable[[Model, Model, Tree, Sequence[int], Coins], tuple[Text, Weights]]


def text_of(node: int, parents: Tree, tokens: Sequence[int]) -> Text:
    return () if node == ROOT else (*text_of(parents[node], parents, tokens), tokens[node])


def candidates(distinct: bool) -> Method:
    def verified(
        target: Model, draft: Model, parents: Tree, tokens: Sequence[int], coins: Coins
    ) -> tuple[Text, Weights]:
        def rule(node: int, below: Sequence[int]) -> tuple[int | None, Weights]:
            text = text_of(node, parents, tokens)
            laws = [draft(text) for _ in below]
            return first_accepted(
                target(text),
                [tokens[child] for child in below],
                laws,
                distinct,
                lambda n: coins(node, n),
                EXACT,
            )

        path, left = walk(lambda node: children(node, parents, tokens), rule)
        return tuple(tokens[node] for node in path), left

    return verified


def children(node: int, parents: Tree, tokens: Sequence[int]) -> list[int]:
    return [child for child, parent in enumerate(parents) if parent == node and tokens[child] >= 0]


def blocks(
    target: Model, draft: Model, parents: Tree, tokens: Sequence[int], coins: Coins
) -> tuple[Text, Weights]:
    chain = [token for token in tokens if token >= 0]
    texts = [tuple(chain[:length]) for length in range(len(chain) + 1)]
    targets, drafts = [target(text) for text in texts], [draft(text) for text in texts[:-1]]
    accepted, left = block(targets, drafts, chain, coins, EXACT)
    return texts[accepted], left


def coupled(
    target: Model, draft: Model, parents: Tree, tokens: Sequence[int], coins: Coins
) -> tuple[Text, Weights]:
    """The target's own draw at every node, found by throwing a coin for one token after the other."""

    def rule(node: int, below: Sequence[int]) -> tuple[int | None, Weights]:
        law = target(text_of(node, parents, tokens))
        left = law.total
        for token, mass in enumerate(law.mass):
            if coins.falls(Fraction(mass) / left):
                one = weights([each == token for each in range(len(law.mass))])
                return first_equal(token, [tokens[child] for child in below]), one
            left -= mass
        raise AssertionError

    path, left = walk(lambda node: children(node, parents, tokens), rule)
    return tuple(tokens[node] for node in path), left


TOKEN, DISTINCT = candidates(False), candidates(True)


def drafted(
    draft: Model, parents: Tree, distinct: bool, ends: Callable[[Text], bool], repeats: bool = False
) -> Iterator[tuple[list[int], Fraction]]:
    """All drafts for the nodes of a tree; none where the drafter ends.

    Distinct ones are drawn without replacement; or each for itself, and a repeated one is left out.
    """
    found: list[tuple[list[int], Fraction]] = [([], Fraction(1))]
    for node, parent in enumerate(parents):
        longer: list[tuple[list[int], Fraction]] = []
        for tokens, chance in found:
            if (parent != ROOT and tokens[parent] < 0) or ends(text := text_of(parent, parents, tokens)):
                longer.append(([*tokens, -1], chance))
                continue
            siblings = [tokens[other] for other in range(node) if parents[other] == parent]
            law = draft(text).without(siblings) if distinct and not repeats else draft(text)
            if law.total == 0:
                longer.append(([*tokens, -1], chance))
                continue
            for token, part in enumerate(chances(law)):
                if part:
                    again = distinct and token in siblings
                    longer.append(([*tokens, -1 if again else token], chance * part))
        found = longer
    yield from found


def never(text: Text) -> bool:
    return False


def verified_law(
    method: Method,
    target: Model,
    draft: Model,
    parents: Tree,
    ends: Callable[[Text], bool] = never,
    claimed: Model | None = None,
    repeats: bool = False,
) -> tuple[Law, Fraction]:
    """What comes out of a verification, and how many drafts stand on average."""
    found: Counter[Text] = Counter()
    accepted = Fraction(0)
    for tokens, chance in drafted(draft, parents, method is DISTINCT, ends, repeats):
        for part, (text, left) in every(
            lambda coins, tokens=tokens: method(target, claimed or draft, parents, tokens, coins)
        ):
            accepted += chance * part * len(text)
            for token, share in enumerate(chances(left)):
                found[(*text, token)] += chance * part * share
    return {text: Fraction(chance) for text, chance in found.items() if chance}, accepted


def check_lossless(method: Method, target: Model, draft: Model, parents: Tree, **options: Any) -> Fraction:
    depth = max(len(text_of(node, parents, [0] * len(parents))) for node in (ROOT, *range(len(parents))))
    law, accepted = verified_law(method, target, draft, parents, **options)
    assert continued(law, target, depth + 1) == continued({(): Fraction(1)}, target, depth + 1)
    return accepted


def chain(length: int) -> Tree:
    return range(ROOT, length + ROOT)


CHAINS: Final = {"token": TOKEN, "distinct": DISTINCT, "block": blocks, "coupled": coupled}
SIZES: Final = [(2, 1), (2, 3), (3, 2), (3, 3), (4, 2), (4, 3)]


@pytest.mark.parametrize("method", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize(("size", "length"), SIZES)
def test_chains_are_lossless(method: Method, size: int, length: int) -> None:
    check_lossless(method, random_model(size, 1), random_model(size, 2), chain(length))


@pytest.mark.parametrize("method", CHAINS.values(), ids=CHAINS)
@pytest.mark.parametrize("seed", range(4))
def test_chains_are_lossless_where_laws_have_zeros(method: Method, seed: int) -> None:
    check_lossless(method, random_model(4, seed, True), random_model(4, 10 + seed, True), chain(2))


@pytest.mark.parametrize("method", CHAINS.values(), ids=CHAINS)
def test_chains_are_lossless_under_a_grammar_that_the_drafter_does_not_know(method: Method) -> None:
    target = masked(random_model(3, 5), no_double)
    accepted = check_lossless(method, target, random_model(3, 6), chain(3))
    assert 0 < accepted < 3


@pytest.mark.parametrize("method", CHAINS.values(), ids=CHAINS)
def test_chains_may_end_wherever_their_tokens_lead(method: Method) -> None:
    check_lossless(method, random_model(3, 7), random_model(3, 8), chain(3), ends=lambda text: 1 in text)
    check_lossless(method, random_model(3, 7), random_model(3, 8), chain(3), ends=lambda text: text == (2,))
    assert (
        check_lossless(method, random_model(3, 7), random_model(3, 8), chain(2), ends=lambda text: True) == 0
    )


@pytest.mark.parametrize("method", CHAINS.values(), ids=CHAINS)
def test_certain_drafts_are_lossless(method: Method) -> None:
    """Prompt lookup: the drafter always says the same, and nobody draws."""

    def certain(text: Text) -> Weights:
        return weights([token == (len(text) + 1) % 3 for token in range(3)])

    target = random_model(3, 9, True)
    accepted = check_lossless(method, target, certain, chain(3))
    first, second, third = (target((1, 2, 0)[:length]) for length in range(3))
    a, b, c = chances(first)[1], chances(second)[2], chances(third)[0]
    assert accepted == a + a * b + a * b * c, "each draft stands as often as the target says the same"


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("method", [TOKEN, DISTINCT, coupled], ids=["token", "distinct", "coupled"])
@pytest.mark.parametrize("zeros", [False, True])
def test_candidates_for_one_position_are_lossless(method: Method, count: int, zeros: bool) -> None:
    for seed in range(3):
        check_lossless(
            method, random_model(4, seed, zeros), random_model(4, 20 + seed, zeros), [ROOT] * count
        )


@pytest.mark.parametrize("parents", [[ROOT] * 3, [-1, -1, 0, 0, 1, 1]], ids=["one position", "two of two"])
def test_distinct_candidates_may_be_those_of_independent_ones(parents: Tree) -> None:
    check_lossless(DISTINCT, random_model(3, 34, True), random_model(3, 35), parents, repeats=True)


TREES: Final = {
    "two of two": (3, [-1, -1, 0, 0, 1, 1]),
    "two, then one": (3, [-1, -1, 0, 1]),
    "of unequal depth": (3, [-1, 0, -1, 0, 3]),
    "three levels": (2, [-1, -1, 0, 0, 1, 1, 2, 2, 4]),
}


@pytest.mark.parametrize("method", [TOKEN, DISTINCT, coupled], ids=["token", "distinct", "coupled"])
@pytest.mark.parametrize(("size", "parents"), TREES.values(), ids=TREES)
def test_trees_are_lossless(method: Method, size: int, parents: Tree) -> None:
    check_lossless(method, random_model(size, 30, True), random_model(size, 31), parents)
    check_lossless(
        method,
        masked(random_model(size, 32), no_double if size > 2 else every_token),
        random_model(size, 33),
        parents,
    )


def every_token(text: Text, token: int) -> bool:
    return True


@pytest.mark.parametrize("method", [TOKEN, DISTINCT], ids=["token", "distinct"])
def test_more_candidates_stand_more_often(method: Method) -> None:
    target, draft = random_model(4, 40), random_model(4, 41)
    accepted = [verified_law(method, target, draft, [ROOT] * count)[1] for count in (1, 2, 3)]
    assert accepted == sorted(set(accepted))
    assert accepted[0] == sum(map(min, chances(target(())), chances(draft(()))))


@pytest.mark.parametrize(
    "case", [case for case in CASES.values() if "V" in case["params"]], ids=lambda case: case["id"]
)
def test_given_laws(case: Case) -> None:
    target, draft = (given_model(case["input"][name]) for name in ("target", "draft"))
    for method, name in ((TOKEN, "token"), (blocks, "block")):
        accepted = check_lossless(method, target, draft, chain(case["params"]["K"]))
        assert accepted == Fraction(case["expected"][f"expected_accept_{name}"])


def test_no_fewer_drafts_stand_in_blocks() -> None:
    """And a block has no fewer than any rule can have: for one draft, 1 - TV."""
    better = 0
    for seed in range(12):
        target, draft = random_model(3, seed, True), random_model(3, 50 + seed)
        by_token, by_block = (verified_law(method, target, draft, chain(3))[1] for method in (TOKEN, blocks))
        better += by_block > by_token
        assert by_block >= by_token
    assert better > 6


def test_laws_must_be_those_that_drafts_were_drawn_from() -> None:
    """huggingface/transformers#47932: the drafter cut its law, and the verification did not know."""
    case = CASES["mismatched_q"]
    target, drawn, claimed = (
        (lambda text, name=name: weights(case["input"][name]))
        for name in ("target", "draft_sampled_from", "draft_claimed")
    )
    for method in (TOKEN, DISTINCT):
        for said, expected in ((claimed, "output_if_claimed_used"), (drawn, "output_if_matched")):
            law, _ = verified_law(method, target, drawn, chain(1), claimed=said)
            first = continued(law, target, 1)
            assert [first.get((token,), 0) for token in range(3)] == list(
                map(Fraction, case["expected"][expected])
            )


def test_a_wrong_rule_is_found() -> None:
    """Drawing from the target's own law after a refusal, as if the drafts had not been seen."""

    def wrong(
        target: Model, draft: Model, parents: Tree, tokens: Sequence[int], coins: Coins
    ) -> tuple[Text, Weights]:
        text, _ = TOKEN(target, draft, parents, tokens, coins)
        return text, target(text)

    with pytest.raises(AssertionError):
        check_lossless(wrong, random_model(3, 1), random_model(3, 2), chain(2))


# The parts.


def test_a_coin_that_is_nothing_accepts_nothing_without_a_chance() -> None:
    """sgl-project/sglang#35771, and a draft that its own law rules out."""
    for number in (float, Fraction):
        least = number(Fraction(1, 2**53))
        assert not accepts(least, number(0), number(1))
        assert not accepts(least, number(1), number(0))
        assert accepts(least, number(1), number(1)) and accepts(1 - least, number(1), number(1))
        assert accepts(number(Fraction(1, 4)), number(1), number(2))
        assert not accepts(number(Fraction(1, 2)), number(1), number(2))
    assert carried(1, 1, 0) == 0


def test_nothing_left_is_the_law_itself() -> None:
    law, same = weights([1, 2, 3]), weights([2, 4, 6])
    assert residual(law, same, EXACT) is law
    assert residual(law, weights([0, 0, 0]), EXACT) is law
    floats = [
        Weights.of(np.array(masses, np.float64))
        for masses in ([1, 2, 3], [2**34 / 4, 2**34 / 2, 3 * 2**34 / 4])
    ]
    assert residual(floats[0], floats[1], FLOATS) is floats[0]
    # 1/3 of one law and 1/3 of another are equal although neither is a float.
    thirds = [Weights.of(np.array(masses, np.float64)) for masses in ([1, 2], [7_777_777, 15_555_554])]
    assert not excess(*thirds).any()


def test_floats_round_as_little_as_they_say() -> None:
    """Masses by half a unit of the greatest's 2^34, sums by half a unit of 2^50 for each token."""
    source = np.random.default_rng(0)
    for size in (2, 16, 1000):
        for scale in (1, 10, 24):
            pair = [np.rint(2.0**MASS_BITS * np.exp(-scale * source.random(size))) for _ in range(2)]
            floats, exact = [Weights.of(mass) for mass in pair], [weights(map(int, mass)) for mass in pair]
            left, right = residual(*floats, FLOATS), residual(*exact, EXACT)
            assert left.mass.max() == 2**MASS_BITS and (left.mass == np.rint(left.mass)).all()
            wrong = [abs(Fraction(a) - b * 2**MASS_BITS) for a, b in zip(left.mass, right.mass, strict=True)]
            assert max(wrong) <= Fraction(1, 2) + Fraction(1, 2**10)
            share = Fraction(3, 4)
            sums = [
                arithmetic.sum(excess(*laws, part) / (laws[0].total * laws[1].total))
                for arithmetic, laws, part in ((FLOATS, floats, 0.75), (EXACT, exact, share))
            ]
            assert abs(Fraction(sums[0]) - sums[1]) <= Fraction(size + 1, 2 ** (SUM_BITS + 1))


def test_sums_and_masses_do_not_depend_on_the_order_of_tokens() -> None:
    source = np.random.default_rng(1)
    pair = [np.rint(2.0**MASS_BITS * source.random(5000) ** 9) for _ in range(2)]
    order = source.permutation(5000)
    plain = [Weights.of(mass) for mass in pair]
    mixed = [Weights.of(mass[order]) for mass in pair]
    whole = plain[0].total * plain[1].total
    assert FLOATS.sum(excess(*plain) / whole) == FLOATS.sum(excess(*mixed) / whole)
    assert (residual(*plain, FLOATS).mass[order] == residual(*mixed, FLOATS).mass).all()


def test_every_way_for_coins_to_fall_is_tried() -> None:
    found = sorted(every(lambda coins: [coins.falls(Fraction(1, n)) for n in (1, 2, 3)]))
    assert sum(chance for chance, _ in found) == 1
    assert sorted(fell for _, fell in found) == [[True, *rest] for rest in product([False, True], repeat=2)]
