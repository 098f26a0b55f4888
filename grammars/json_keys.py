"""The rules for keys of objects: declared ones, those that may stand anywhere, and those that come later."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial

from sortition.grammars.automaton import Automaton
from sortition.grammars.json_rules import Rules
from sortition.grammars.json_strings import any_string, finite, of_language, other_words, word
from sortition.grammars.schema_facts import Terms
from sortition.grammars.schema_keys import Cases, keys_of
from sortition.grammars.schema_origin import Origin, placed


class KeyRules:
    """Makes the rules for keys of one schema; the same set of keys has the same rule in all objects."""

    def __init__(self, rules: Rules, cases: Cases) -> None:
        self._rules = rules
        self._cases = cases
        self._other: dict[frozenset[str], str] = {}
        self._later: dict[frozenset[str], str] = {}

    def declared(self, key: str, origin: Origin) -> str:
        """The rule for one key."""
        rule = f"key {json.dumps(key)}"
        self._rules.origins.setdefault(rule, origin)
        self._rules.put_off(rule, (), partial(word, key))
        return rule

    def anywhere(
        self,
        names: frozenset[str],
        later: Sequence[frozenset[str]],
        keys: Automaton | None,
        name_terms: Terms,
        origin: Origin,
    ) -> str:
        """The rule for keys that may stand anywhere: of an automaton, or all that are not among `names`.

        Those that are in a group of `later` ones are not among them; all fulfil the terms for names.
        """
        known = names.union(*later)
        if keys is None and not name_terms:
            rule = self._other.get(known)
            if rule is None:
                rule = self._other[known] = self._rules.fresh("any key" if not known else "another key")
                self._rules.put_off(rule, (), partial(other_words, known))
                self._rules.origins.setdefault(rule, origin)
            return rule
        if keys is None:
            keys = any_string().difference(finite(known))
        elif later:
            keys = keys.difference(finite(frozenset().union(*later)))
        return self._of(keys, name_terms, origin)

    def later(self, group: frozenset[str], keys: Automaton | None, name_terms: Terms, origin: Origin) -> str:
        """The rule for the keys of a group, or those that are in an automaton, too."""
        if keys is not None or name_terms:
            among = finite(group) if keys is None else keys.intersect(finite(group))
            return self._of(among, name_terms, origin)
        rule = self._later.get(group)
        if rule is None:
            rule = self._later[group] = self._rules.fresh("a later key")
            self._rules.put_off(rule, (), partial(of_language, finite(group), True))
            self._rules.origins.setdefault(rule, origin)
        return rule

    def _of(self, keys: Automaton, name_terms: Terms, origin: Origin) -> str:
        """The rule for keys of an automaton that fulfil the terms for names."""
        if name_terms:
            with placed(name_terms):
                keys = keys.intersect(keys_of(name_terms, self._cases))
        rule = self._rules.fresh("a key of a pattern")
        self._rules.origins[rule] = Origin.of(name_terms, "string") if name_terms else origin
        self._rules.put_off(rule, name_terms, partial(of_language, keys, True))
        return rule
