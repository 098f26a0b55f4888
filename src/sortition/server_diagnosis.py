"""`sortition overhead --base-url`: what holds a running server back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console

from sortition.given import check_choices
from sortition.integrations.errors import InputError
from sortition.usage import notes


def diagnosed(
    base_url: str,
    *,
    model: str | None,
    prompts: Path | None,
    requests: int,
    words: int,
    concurrency: int,
    tokens: int,
    extra: str | None,
    samplings: list[str],
    structures: list[str],
    schema: Path | None,
    rounds: int,
    quiet: bool,
) -> dict[str, Any]:
    """The report, and its tables on the terminal.

    Args:
        base_url: of the server.
        model: its name there.
        prompts: documents to ask with; by default `requests` made-up ones of so many `words`.
        requests: how many.
        words: of a made-up prompt.
        concurrency: requests open at once.
        tokens: of an answer, at most.
        extra: further fields of each request, as JSON: one more feature that is measured.
        samplings, structures: features that are measured, all combinations of them.
        schema: of structured output; by default a small one.
        rounds: with and without each feature.
        quiet: no tables.

    Raises:
        InputError: the server does not answer or has no figures, or the input is no good.
    """
    from sortition.benchmarks.diagnosis.diagnose import diagnose
    from sortition.benchmarks.diagnosis.load import made_up
    from sortition.benchmarks.diagnosis.pairs import STRUCTURES, Feature, features
    from sortition.benchmarks.diagnosis.tables import show
    from sortition.benchmarks.overhead.intervals import LEAST
    from sortition.benchmarks.overhead.load import SAMPLINGS
    from sortition.integrations.schemas import read_schema

    check_choices("--sampling", samplings, SAMPLINGS)
    check_choices("--structure", structures, STRUCTURES)
    if rounds < LEAST:
        raise InputError(f"--rounds is {LEAST} or more, not {rounds}")
    wanted = features(
        [SAMPLINGS[name] for name in samplings], structures, None if schema is None else read_schema(schema)
    )
    fields = _fields(extra)
    if fields:
        wanted.append(Feature("the further fields", fields))
    report = diagnose(
        base_url,
        made_up(requests, words) if prompts is None else _read(prompts)[:requests],
        model=model,
        concurrency=concurrency,
        max_tokens=tokens,
        features=wanted,
        rounds=rounds,
        progress=notes(quiet),
    )
    if not quiet:
        show(report, Console())
    return report


def _read(source: Path) -> list[str]:
    from sortition.integrations.documents import read_documents

    return [document.text for document in read_documents(source)]


def _fields(extra: str | None) -> dict[str, Any] | None:
    if extra is None:
        return None
    try:
        fields = json.loads(extra)
    except ValueError as error:
        raise InputError(f"--extra is not JSON: {error}") from None
    if not isinstance(fields, dict):
        raise InputError(f"--extra is an object of further fields, not {extra}")
    return fields
