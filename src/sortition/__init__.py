"""Sortition: decide which token a language model emits next.

    import sortition as so

    vocabulary = so.Vocabulary.of(tokenizer)
    table = so.json_schema(schema).compile(vocabulary)
    model.generate(**inputs, logits_processor=[so.hf(table, temperature=0.7, min_p=0.05, seed=7)])

Every name is loaded when it is first used, so that importing this package imports no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sortition.benchmarks.probe.assertion import assert_batch_invariant as assert_batch_invariant
    from sortition.grammars.choice import choice as choice
    from sortition.grammars.errors import GrammarError as GrammarError
    from sortition.grammars.errors import Invalid as Invalid
    from sortition.grammars.errors import TooLarge as TooLarge
    from sortition.grammars.errors import Unsatisfiable as Unsatisfiable
    from sortition.grammars.errors import Unsupported as Unsupported
    from sortition.grammars.grammar import Grammar as Grammar
    from sortition.grammars.json_schema import json_schema as json_schema
    from sortition.grammars.matcher import Matcher as Matcher
    from sortition.grammars.regex import regex as regex
    from sortition.grammars.table import Table as Table
    from sortition.grammars.vocabulary import Vocabulary as Vocabulary
    from sortition.integrations.errors import InputError as InputError
    from sortition.integrations.extract import Extraction as Extraction
    from sortition.integrations.extract import extract as extract
    from sortition.integrations.hf import hf as hf
    from sortition.integrations.hf_generate import generate as generate
    from sortition.integrations.request import request as request
    from sortition.sampling.draw import Draw as Draw
    from sortition.sampling.parameters import Parameters as Parameters
    from sortition.sampling.rules import AllowedTokens as AllowedTokens
    from sortition.sampling.rules import BadWords as BadWords
    from sortition.sampling.rules import Constrain as Constrain
    from sortition.sampling.rules import Epsilon as Epsilon
    from sortition.sampling.rules import Eta as Eta
    from sortition.sampling.rules import FrequencyPenalty as FrequencyPenalty
    from sortition.sampling.rules import LogitBias as LogitBias
    from sortition.sampling.rules import MinP as MinP
    from sortition.sampling.rules import MinTokens as MinTokens
    from sortition.sampling.rules import PresencePenalty as PresencePenalty
    from sortition.sampling.rules import RepetitionPenalty as RepetitionPenalty
    from sortition.sampling.rules import Temperature as Temperature
    from sortition.sampling.rules import TopK as TopK
    from sortition.sampling.rules import TopNSigma as TopNSigma
    from sortition.sampling.rules import TopP as TopP
    from sortition.sampling.rules import Typical as Typical
    from sortition.sampling.sampler import Sampler as Sampler
    from sortition.sampling.state import State as State
    from sortition.sampling.verification import Verified as Verified
    from sortition.sampling.verify import drafting as drafting
    from sortition.sampling.verify import verify as verify

__version__ = "0.1.0"

_HOME = {
    "AllowedTokens": "sampling.rules",
    "BadWords": "sampling.rules",
    "Constrain": "sampling.rules",
    "Draw": "sampling.draw",
    "Epsilon": "sampling.rules",
    "Eta": "sampling.rules",
    "Extraction": "integrations.extract",
    "FrequencyPenalty": "sampling.rules",
    "Grammar": "grammars.grammar",
    "GrammarError": "grammars.errors",
    "InputError": "integrations.errors",
    "Invalid": "grammars.errors",
    "LogitBias": "sampling.rules",
    "Matcher": "grammars.matcher",
    "MinP": "sampling.rules",
    "MinTokens": "sampling.rules",
    "Parameters": "sampling.parameters",
    "PresencePenalty": "sampling.rules",
    "RepetitionPenalty": "sampling.rules",
    "Sampler": "sampling.sampler",
    "State": "sampling.state",
    "Table": "grammars.table",
    "Temperature": "sampling.rules",
    "TooLarge": "grammars.errors",
    "TopK": "sampling.rules",
    "TopNSigma": "sampling.rules",
    "TopP": "sampling.rules",
    "Typical": "sampling.rules",
    "Unsatisfiable": "grammars.errors",
    "Unsupported": "grammars.errors",
    "Verified": "sampling.verification",
    "Vocabulary": "grammars.vocabulary",
    "assert_batch_invariant": "benchmarks.probe.assertion",
    "choice": "grammars.choice",
    "drafting": "sampling.verify",
    "extract": "integrations.extract",
    "generate": "integrations.hf_generate",
    "hf": "integrations.hf",
    "json_schema": "grammars.json_schema",
    "regex": "grammars.regex",
    "request": "integrations.request",
    "verify": "sampling.verify",
}
"""Where each public name lives."""

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'sortition' has no attribute {name!r}")
    value = getattr(import_module(f"sortition.{_HOME[name]}"), name)
    # Kept, so that the next use does not come here.
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
