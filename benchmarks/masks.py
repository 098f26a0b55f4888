"""Coverage, verdicts, compile time, time per token and memory on JSON Schemas, side by side with the peers.

Every schema is compiled by every engine in turn, in one process and one thread, and every instance is walked
token by token (a mask, then a commit). A schema passes if it compiles and every verdict is right.
"""

from __future__ import annotations

import gc
import gzip
import json
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.progress import track

from sortition.benchmarks import heap
from sortition.benchmarks.mask_outcomes import Outcome, engine_json, keywords
from sortition.benchmarks.mask_tables import show
from sortition.benchmarks.peer_environment import entered
from sortition.benchmarks.peers import Engine, Session, installed_engines
from sortition.benchmarks.plots import save
from sortition.benchmarks.timing import clock_cost, machine, pin, versions
from sortition.grammars.vocabulary import Vocabulary
from sortition.integrations.errors import InputError

FORMAT: Final = "sortition-bench-masks/1"
PACKAGES: Final = ("llguidance", "xgrammar", "glrmask", "tiktoken")
"""The peers, and what reads the vocabulary for all of them."""

CASES: Final = Path(__file__).with_name("mask_cases.jsonl")
"""Twenty schemas of the kinds that people write for models, with instances that jsonschema has judged."""

SAMPLE: Final = 200
INTERRUPTED: Final = 130

RUNS: Final = 2
"""How often every text is walked. In one run most of the slowest thousandth is what interrupts the process,
as an empty loop shows, whose p99.9 is 30 to 45 us; that hits the same step twice in one of a million.
"""

PATTERN: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where texts are cut before they become tokens; Llama 3's."""


def read_cases(path: Path, sample: int | None, seed: int = 0) -> list[dict[str, Any]]:
    """Schemas with instances of JSON lines, gzipped if the name says so, or a random sample of them.

    A line is an object with `name`, `schema` and `tests`, a list of `data` with whether it is `valid`.

    Raises:
        InputError: the file is something else.
    """
    try:
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        cases = [json.loads(line) for line in text.splitlines()]
        for case in cases:
            _ = case["name"], case["schema"], [(test["data"], test["valid"]) for test in case["tests"]]
    except (OSError, ValueError, KeyError, TypeError) as problem:
        raise InputError(f"{path} has no JSON lines of schemas with their tests: {problem!r}") from None
    return cases if sample is None else random.Random(seed).sample(cases, min(sample, len(cases)))


def run(
    cases: Iterable[dict[str, Any]], engines: Sequence[Engine], encode: Callable[[str], list[int]]
) -> Iterator[tuple[dict[str, Any], dict[str, Outcome]]]:
    """Each case with the outcome of every engine, which take turns; each case begins with another one."""
    gc.collect()
    # Collecting garbage, which measuring memory needs, then costs what a schema adds and not what is there.
    gc.freeze()
    cost = clock_cost()
    for turn, case in enumerate(cases):
        instances = [
            (encode(json.dumps(test["data"], ensure_ascii=False)), test["valid"]) for test in case["tests"]
        ]
        order = [*engines[turn % len(engines) :], *engines[: turn % len(engines)]]
        yield case, {engine.name: _outcome(engine, case["schema"], instances, cost) for engine in order}
    gc.unfreeze()


def _outcome(
    engine: Engine, schema: Any, instances: Sequence[tuple[list[int], bool]], clock: float
) -> Outcome:
    """What the engine does, with the smaller time of `RUNS` for every step.

    Every run compiles anew, so that what a step does at its first visit is done in each. How long that takes
    is of the first run: engines may know parts of a schema that they have seen.
    """
    outcome = _run(engine, schema, instances, clock)
    if outcome.refused is None:
        for _ in range(RUNS - 1):
            outcome.keep_quieter(_run(engine, schema, instances, clock))
    return outcome


def _run(engine: Engine, schema: Any, instances: Sequence[tuple[list[int], bool]], clock: float) -> Outcome:
    outcome = Outcome()
    engine.forget()
    before = heap.held()
    start = time.process_time()
    try:
        compiled = engine.compile(schema)
        engine.session(compiled).mask()
    except Exception as error:  # each engine has errors of its own
        outcome.refused = str(getattr(error, "keyword", None) or type(error).__name__)
        return outcome
    outcome.first_mask = time.process_time() - start
    for tokens, valid in instances:
        accepted = _walk(engine.session(compiled), tokens, outcome, clock)
        outcome.wrongly_accepted += accepted and not valid
        outcome.wrongly_refused += valid and not accepted
    after = heap.held()
    if engine.on_heap and before is not None and after is not None:
        outcome.heap = max(0, after - before)
    outcome.table = engine.size(compiled)
    return outcome


def _walk(session: Session, tokens: list[int], outcome: Outcome, clock: float) -> bool:
    for token in tokens:
        begin = time.process_time()
        session.mask()
        between = time.process_time()
        alive = session.advance(token)
        end = time.process_time()
        outcome.masks.append(between - begin - clock)
        outcome.steps.append(end - begin - 2 * clock)
        if not alive:
            return False
    return session.can_end()


def summary(
    cases: Sequence[dict[str, Any]], outcomes: Sequence[dict[str, Outcome]], wanted: int
) -> dict[str, Any]:
    """All engines on all cases, and on those with each keyword, as plain JSON values."""
    names = list(outcomes[0]) if outcomes else []
    by_keyword: dict[str, list[int]] = {}
    for at, case in enumerate(cases):
        for keyword in sorted(keywords(case["schema"])):
            by_keyword.setdefault(keyword, []).append(at)
    return {
        "format": FORMAT,
        "machine": machine(),
        "versions": versions("sortition", "numpy", "numba", *PACKAGES),
        "clock": f"of the processor, what reading it costs taken off; of a step, the smaller of {RUNS} runs",
        "schemas": len(cases),
        "schemas wanted": wanted,
        "engines": {
            name: {
                **engine_json(found),
                "wrongly accepted": _names(cases, [each.wrongly_accepted for each in found]),
                "wrongly refused": _names(cases, [each.wrongly_refused for each in found]),
            }
            for name, found in ((name, [each[name] for each in outcomes]) for name in names)
        },
        "keywords": {
            keyword: {
                "schemas": len(places),
                "engines": {name: engine_json([outcomes[at][name] for at in places]) for name in names},
            }
            for keyword, places in sorted(by_keyword.items(), key=lambda each: -len(each[1]))
        },
    }


def _names(cases: Sequence[dict[str, Any]], wrong: Sequence[int]) -> list[str]:
    return sorted(case["name"] for case, count in zip(cases, wrong, strict=True) if count)


def llama_vocabulary() -> Path | None:
    """The file of Llama 3's vocabulary, from the package that carries it; None where it is not installed."""
    found = find_spec("llama_models")
    folders = [] if found is None else found.submodule_search_locations or []
    return next((path for each in folders for path in Path(each).rglob("llama3/tokenizer.model")), None)


def main(
    cases: str, tokenizer: str, *, sample: int = SAMPLE, output: str | None = None, plots: str | None = None
) -> int:
    """Run the benchmark with a tiktoken-format tokenizer file, print the tables, and draw them into a folder.

    Interrupted, it shows what has been measured.
    """
    core = pin()
    import tiktoken
    from tiktoken.load import load_tiktoken_bpe

    ranks = load_tiktoken_bpe(tokenizer)
    end = len(ranks)
    encoding = tiktoken.Encoding(
        "benchmark", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={"<|end_of_text|>": end}
    )
    tokens = [b""] * (end + 1)
    for token, number in ranks.items():
        tokens[number] = token
    engines = installed_engines(Vocabulary.of(tokens, end_tokens=[end]), encoding)
    chosen = read_cases(Path(cases), sample)
    done: list[tuple[dict[str, Any], dict[str, Outcome]]] = []
    code = 0
    try:
        shown = track(chosen, "schemas", console=Console(stderr=True))
        for found in run(shown, engines, encoding.encode_ordinary):
            done.append(found)
    except KeyboardInterrupt:
        code = INTERRUPTED
    report = summary([case for case, _ in done], [each for _, each in done], len(chosen))
    report |= {"vocabulary": end + 1, "core": core}
    if done:
        show(report, Console())
        if output is not None:
            Path(output).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
        if plots is not None:
            save(report, Path(plots))
    return code


if __name__ == "__main__":
    entered(main)
