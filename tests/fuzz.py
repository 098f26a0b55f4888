"""A coverage-guided fuzzer of the front ends, each judged by a program that is not ours.

    python tests/fuzz.py python|ecma|schema|drawn [--seconds 3600] [--found DIR]

    python  any text as a pattern of Python's `re`, judged by `re`
    ecma    any text as a pattern of ECMA-262, judged by QuickJS
    schema  any text as a JSON Schema: what is written under it is judged by `jsonschema`
    drawn   schemas drawn from bytes (`test_drawn_schemas`), judged by `jsonschema` both ways

Needs atheris and quickjs (requirements/fuzz.txt). Findings (a crash, a wrong verdict, more than ten seconds)
are written to DIR and printed, and the search goes on; the exit code is 1 if there are any.
"""

from __future__ import annotations

import argparse
import decimal
import itertools
import json
import os
import random
import re
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import atheris
import quickjs

# Only what is imported in here steers the search.
with atheris.instrument_imports(include=["sortition.grammars"]):
    from sortition.grammars.automaton import Automaton
    from sortition.grammars.errors import GrammarError, Invalid
    from sortition.grammars.json_schema import json_schema
    from sortition.grammars.regex import parse

import jsonschema
import test_json_schema
import test_regex
from referencing.exceptions import Unresolvable

LONGEST: Final = 24
"""Characters of a pattern: what two features do together fits, and no judge backtracks for minutes."""

SLOW: Final = 10.0
"""CPU seconds for one input."""

JAVASCRIPT: Final = quickjs.Context()
JAVASCRIPT.eval(
    "function found(data) { let [pattern, texts] = JSON.parse(data), p = new RegExp(pattern, 'u');"
    " return JSON.stringify(texts.map(text => p.test(text))) }"
)


def python(data: bytes) -> None:
    """`re` and we agree on what is a pattern, and on which texts it matches."""
    pattern = data.decode("utf-8", "ignore")[:LONGEST]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            judge: re.Pattern[str] | None = re.compile(pattern)
    except (FutureWarning, DeprecationWarning, RecursionError, OverflowError):
        return
    except re.error:
        judge = None
    try:
        automaton = Automaton.of(parse(pattern, "python"))
    except Invalid:
        # The flag t did nothing, and is gone in later versions.
        assert judge is None or re.search(r"\(\?[a-zL]*t", pattern), "a pattern of `re`"
        return
    except GrammarError:
        return
    # Read although this `re` does not: (?<name>...), and the \\z of later versions.
    assert judge is not None or "(?<" in pattern or r"\z" in pattern, "no pattern of `re`"
    for text in texts(pattern) if judge else ():
        if text or r"\B" not in pattern:
            assert test_regex.matches(automaton, text) == (judge.fullmatch(text) is not None), text


def ecma(data: bytes) -> None:
    """QuickJS and we agree on the texts in which a pattern is found."""
    pattern = data.decode("utf-8", "ignore")[:LONGEST]
    try:
        automaton = Automaton.of(parse(pattern, "ecma"))
    except GrammarError:
        return
    tried = list(texts(pattern))
    try:
        verdicts = json.loads(JAVASCRIPT.get("found")(json.dumps([pattern, tried])))
    except quickjs.JSException:
        return
    for text, verdict in zip(tried, verdicts, strict=True):
        assert test_regex.matches(automaton, text) == verdict, text


def texts(pattern: str) -> list[str]:
    """Short texts of the pattern's own characters and a few others."""
    draw = random.Random(pattern)
    letters = sorted({*pattern, *"aB1 \n_é"})
    return ["", *letters, *("".join(draw.choices(letters, k=draw.randint(2, 5))) for _ in range(40))]


def schema(data: bytes) -> None:
    """Any text compiles or is refused by name; what a machine writes is valid."""
    text = data.decode("utf-8", "ignore")
    try:
        grammar = json_schema(text, formats="annotate")
        grammar.machine  # noqa: B018
    except GrammarError:
        return
    value = json.loads(text)
    default = None if isinstance(value, dict) and "$schema" in value else jsonschema.Draft202012Validator
    kind = jsonschema.validators.validator_for(value, default=default)
    if kind is None:
        # A draft that only we recognize by such a name.
        return
    try:
        kind.check_schema(value)
    except (jsonschema.SchemaError, RecursionError):
        return
    judge = kind(json.loads(text, parse_float=Decimal))
    for word in itertools.islice(test_json_schema.words(grammar, random.Random(text), tries=4), 3):
        # Remainders need as many digits as the exponent says; and of letters beyond ASCII, `jsonschema` has
        # `re`'s opinion, not that of ECMA-262.
        far = re.search("[eE][+-]?[0-9]{4}", word)
        foreign = re.search(r"\\\\[wdsb]", text, re.IGNORECASE) and not str(json.loads(word)).isascii()
        if not far and not foreign:
            with suppress(RecursionError, Unresolvable), decimal.localcontext(prec=2_000):
                assert judge.is_valid(json.loads(word, parse_float=Decimal)), word


drawn: Final[Callable[[bytes], Any]] = test_json_schema.test_drawn_schemas.hypothesis.fuzz_one_input

TARGETS: Final[dict[str, Callable[[bytes], Any]]] = {
    "python": python,
    "ecma": ecma,
    "schema": schema,
    "drawn": drawn,
}


def seeds(target: str) -> list[bytes]:
    """Where the search begins: the cases of the tests, or bytes to draw from."""
    if target == "drawn":
        return [random.Random(seed).randbytes(1_000) for seed in range(30)]
    if target == "schema":
        return [json.dumps(case["schema"]).encode() for case in test_json_schema.CASES["languages"]]
    return [case["pattern"].encode() for case in test_regex.CASES["languages"] if case["dialect"] == target]


def guarded(target: Callable[[bytes], Any], found: Path) -> Callable[[bytes], None]:
    """The target, with its failures written down."""
    numbers = itertools.count(1)

    def one(data: bytes) -> None:
        start = time.process_time()
        try:
            target(data)
        except Exception:
            reason = traceback.format_exc()
        else:
            if time.process_time() - start < SLOW:
                return
            reason = f"{time.process_time() - start:.1f} s"
        name = f"{next(numbers):03}"
        (found / f"{name}.input").write_bytes(data)
        (found / f"{name}.txt").write_text(reason)
        print(f"FOUND {data!r}\n{reason}", flush=True)

    return one


def main() -> None:
    """Fuzz one front end for a while."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--found", type=Path)
    options = parser.parse_args()
    found = options.found or Path(tempfile.mkdtemp(prefix=f"fuzz-{options.target}-"))
    corpus = found / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(seeds(options.target)):
        (corpus / f"seed-{number}").write_bytes(seed)
    arguments = [f"-max_total_time={options.seconds}", "-max_len=1000", "-timeout=60", "-rss_limit_mb=4000"]
    arguments += ["-verbosity=0", f"-artifact_prefix={found}/", str(corpus)]
    # The fuzzer ends its process without a word to Python: it gets one of its own.
    child = os.fork()
    if not child:
        atheris.Setup([sys.argv[0], *arguments], guarded(TARGETS[options.target], found))
        atheris.Fuzz()
    _, status = os.waitpid(child, 0)
    sys.exit(status != 0 or any(found.glob("*.txt")))


if __name__ == "__main__":
    main()
