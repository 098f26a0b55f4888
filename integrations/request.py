"""What a request to an engine says about its grammar and its draws: plain values, for processes and HTTP."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from sortition.grammars.schema_keywords import ignored
from sortition.sampling.parameters import Parameters, Ties
from sortition.sampling.rules import plain

FIELD: Final = "sortition"
"""The key of a request's extra arguments that is ours."""


def request(
    *,
    json_schema: Any = None,
    regex: str | None = None,
    choice: Iterable[str] | None = None,
    whitespace: str | None = None,
    formats: str | None = None,
    any_order: bool = False,
    ignore: Collection[str] = (),
    draw: bool = False,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    typical: float | None = None,
    epsilon: float | None = None,
    eta: float | None = None,
    top_n_sigma: float | None = None,
    repetition_penalty: float | None = None,
    presence_penalty: float | None = None,
    frequency_penalty: float | None = None,
    penalty_window: int | None = None,
    logit_bias: Mapping[int, float] | None = None,
    allowed_tokens: Iterable[int] | None = None,
    bad_words: Iterable[Iterable[int]] | None = None,
    min_tokens: int | None = None,
    order: str | Iterable[str] | None = None,
    ties: Ties | None = None,
    min_keep: int | None = None,
    as_text: bool = False,
) -> dict[str, Any]:
    """The extra arguments of a request that is to follow a grammar, or to be drawn by us.

    They go into ``SamplingParams(extra_args=...)`` of vLLM, or with ``as_text=True`` into the body's
    ``vllm_xargs`` over HTTP, where only flat values pass. The server says whether it likes what they say.

    Args:
        json_schema: a dict, true or false, JSON text, or a class with `model_json_schema` (pydantic).
        regex: a pattern in the syntax of `re`, to match the whole text.
        choice: the texts to choose from.
        whitespace, formats, any_order, ignore: of JSON, as in `json_schema`.
        draw: draw the tokens here, even if none of the following asks for it.
        temperature, top_k, top_p, min_p, typical, epsilon, eta, top_n_sigma, repetition_penalty,
            presence_penalty, frequency_penalty, penalty_window, logit_bias, allowed_tokens, bad_words,
            min_tokens, order, ties, min_keep: of our draw, as in `Parameters`; what is left out comes from
            the request's own parameters.
        as_text: give the fields as one JSON text.

    Raises:
        ValueError: more than one grammar, nothing at all, an option of JSON for another grammar, or a
            parameter out of its bounds.
        TypeError: a schema that is not JSON.
    """
    if isinstance(json_schema, type) and hasattr(json_schema, "model_json_schema"):
        json_schema = json_schema.model_json_schema()
    grammars = {
        "json_schema": json_schema,
        "regex": regex,
        "choice": choice if choice is None or isinstance(choice, str) else list(choice),
    }
    fields = {name: value for name, value in grammars.items() if value is not None}
    if len(fields) > 1:
        raise ValueError(f"a request has one of {', '.join(grammars)}, not {len(fields)} of them")
    options = {
        "whitespace": whitespace,
        "formats": formats,
        "any_order": any_order or None,
        "ignore": list(ignored(ignore)) or None,
    }
    for name, option in options.items():
        if option is not None:
            if json_schema is None:
                raise ValueError(f"{name} is a choice for json_schema alone")
            fields[name] = option
    sampler = {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "typical": typical,
        "epsilon": epsilon,
        "eta": eta,
        "top_n_sigma": top_n_sigma,
        "repetition_penalty": repetition_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "penalty_window": penalty_window,
        "logit_bias": logit_bias,
        "allowed_tokens": allowed_tokens,
        "bad_words": bad_words,
        "min_tokens": min_tokens,
        "order": order,
        "ties": ties,
        "min_keep": min_keep,
    }
    given: dict[str, Any] = {name: plain(value) for name, value in sampler.items() if value is not None}
    Parameters(**given)
    fields |= given
    if draw:
        fields["draw"] = True
    if not fields:
        raise ValueError(f"a request has one of {', '.join(grammars)}, or is drawn here")
    text = json.dumps(fields)
    return {FIELD: text if as_text else fields}
