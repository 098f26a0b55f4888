"""An engine of vLLM as a target: what ran together, in which pieces, from which cache, is read off it."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

# The scheduler can be watched only where it runs in this process.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")

import vllm
from vllm import LLM, SamplingParams, envs
from vllm.platforms import current_platform

from sortition.benchmarks.probe.layout import Layout, layout
from sortition.benchmarks.probe.target import Condition, Evidence, NotPossible, Outcome, Prompt, Run
from sortition.benchmarks.probe.top_scores import WIDTH, Top, more_scores, ranked, run_of
from sortition.benchmarks.probe.vllm_target import FORCED, FORCING, PROCESSOR
from sortition.integrations.errors import InputError
from sortition.integrations.model_folder import called
from sortition.integrations.request import request

AXES: Final = frozenset(
    {"rerun", "batch_size", "position", "neighbours", "prefix_cache", "chunk", "logprobs", "seed", "prefill"}
)


@dataclass
class Passes:
    """What the scheduler put into forward passes.

    Attributes:
        rows: requests in each pass.
        visits: passes that each request was in.
        widest: most tokens of one request in any pass.
        drafts: draft tokens in all passes.
    """

    rows: list[int] = field(default_factory=list)
    visits: Counter[str] = field(default_factory=Counter)
    widest: int = 0
    drafts: int = 0


class EngineTarget:
    """An engine that runs in this process. See `Target`.

    Args:
        llm: with the processor `FORCING` it can be led, with `PROCESSOR` it draws Sortition's way.
        drafting: it guesses tokens ahead.
        options: that it was started with, for the report.

    Raises:
        InputError: the engine runs in another process.
    """

    def __init__(self, llm: LLM, *, drafting: bool = False, options: Mapping[str, Any] | None = None) -> None:
        self._llm = llm
        self._options = {**(options or {})}
        self._drafting = drafting
        configured = llm.llm_engine.vllm_config.model_config
        processors = configured.logits_processors or []
        self.name = f"{called(configured.model)} in vLLM"
        self.forces = FORCING in processors
        self.axes = AXES | ({"draw"} if PROCESSOR in processors else set())
        if not hasattr(llm.llm_engine.engine_core, "engine_core"):
            raise InputError(
                "the engine runs in another process, where its passes cannot be seen: "
                "set VLLM_ENABLE_V1_MULTIPROCESSING=0 before vLLM is imported"
            )

    def about(self) -> dict[str, Any]:
        """The attributes, for another process."""
        return {"name": self.name, "axes": self.axes, "forces": self.forces}

    def describe(self) -> dict[str, Any]:
        """See `Target.describe`."""
        config = self._llm.llm_engine.vllm_config
        return {
            "vllm": vllm.__version__,
            "model": config.model_config.model,
            "dtype": str(config.model_config.dtype).removeprefix("torch."),
            # Not what makes it a target: scripts that show a difference again do without.
            "options": {name: self._options[name] for name in self._options if name != "logits_processors"},
            "device": current_platform.device_type,
            "enforce_eager": config.model_config.enforce_eager,
            "block_size": config.cache_config.block_size,
            "prefix caching": config.cache_config.enable_prefix_caching,
            "batch invariant": bool(envs.VLLM_BATCH_INVARIANT),
        }

    def prompts(self, texts: Sequence[str]) -> list[Prompt]:
        """Texts as the tokenizer reads them."""
        tokenizer = self._llm.get_tokenizer()
        return [Prompt(text, tuple(tokenizer.encode(text))) for text in texts]

    def text(self, tokens: Sequence[int]) -> str:
        """See `Target.text`."""
        text: str = self._llm.get_tokenizer().decode(list(tokens))
        return text

    def run(
        self,
        prompts: Sequence[Prompt],
        condition: Condition,
        steps: int,
        forced: Sequence[Sequence[int]] | None = None,
    ) -> Outcome:
        """See `Target.run`. Tokens that are drawn or drafted cannot be led: they go on freely."""
        settings = dict(condition.settings)
        missing = settings.keys() - self.axes
        if missing:
            raise NotPossible(f"not with this engine: {', '.join(sorted(missing))}")
        if self._drafting or {"seed", "draw"} & settings.keys():
            forced = None
        if forced is not None and not self.forces:
            raise ValueError(f"only an engine with the processor {FORCING} can be told how to go on")
        begin = time.process_time()
        prompts = self.prompts([prompt.text for prompt in prompts]) if not prompts[0].tokens else prompts
        with self._chunks(int(settings.get("chunk", 0))), self._watched() as passes:
            outputs = [
                self._batch(layout(prompts, number, settings), settings, steps, told)
                for number, told in enumerate(forced or [None] * len(prompts))
            ]
        runs = [_run(output, forced is not None) for output in outputs]
        evidence = _evidence(settings, self._drafting, outputs, passes, steps)
        if settings.get("prefill"):
            runs = [self._prefill(prompt.tokens, run) for prompt, run in zip(prompts, runs, strict=True)]
            evidence = Evidence(True, "the tokens were given with the prompt, and scored in one pass")
        return Outcome(tuple(runs), evidence, time.process_time() - begin)

    def _batch(
        self, place: Layout, settings: Mapping[str, Any], steps: int, forced: Sequence[int] | None
    ) -> Any:
        """What became of one prompt among the rows that the condition puts beside it."""
        free, led = _parameters(settings, steps), _parameters(settings, steps)
        if forced is not None:
            led.extra_args = {**(led.extra_args or {}), FORCED: list(forced)}
        # Copies go on as the prompt does.
        wishes = [led if place.copies or row == place.row else free for row in range(len(place.rows))]
        self._llm.reset_prefix_cache()
        if "prefix_cache" in settings:
            self._generate([place.rows[place.row]], [SamplingParams(max_tokens=1, temperature=0)])
        return self._generate(place.rows, wishes)[place.row]

    def _generate(self, prompts: Sequence[Sequence[int]], wishes: list[SamplingParams]) -> list[Any]:
        try:
            given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
            return self._llm.generate(given, wishes, use_tqdm=False)
        except ValueError as problem:
            raise NotPossible(f"vLLM refuses: {' '.join(str(problem).split())[:300]}") from None

    def _prefill(self, prompt: Sequence[int], run: Run) -> Run:
        """The same tokens, scored as part of the prompt."""
        self._llm.reset_prefix_cache()
        wish = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=WIDTH)
        (output,) = self._generate([[*prompt, *run.tokens]], [wish])
        tops = [_top(step) for step in output.prompt_logprobs[len(prompt) :]]
        return run_of(run.tokens, tops, [ranked(top)[0][0] for top in tops])

    @contextmanager
    def _chunks(self, most: int) -> Iterator[None]:
        """Passes of so many tokens, so that longer prompts are read in pieces; 0 leaves it to the engine.

        Not `long_prefill_token_threshold`: it lets a request that is alone have all it wants.
        """
        scheduler = self._scheduler()
        if most and not scheduler.scheduler_config.enable_chunked_prefill:
            raise NotPossible("this engine reads every prompt in one piece")
        before = scheduler.max_num_scheduled_tokens
        scheduler.max_num_scheduled_tokens = most or before
        try:
            yield
        finally:
            scheduler.max_num_scheduled_tokens = before

    @contextmanager
    def _watched(self) -> Iterator[Passes]:
        """What the scheduler does meanwhile."""
        scheduler, passes = self._scheduler(), Passes()
        plain = scheduler.schedule

        def schedule(*arguments: Any, **named: Any) -> Any:
            output = plain(*arguments, **named)
            counts = output.num_scheduled_tokens
            if counts:
                passes.rows.append(len(counts))
                passes.visits.update(counts.keys())
                passes.widest = max(passes.widest, *counts.values())
            passes.drafts += sum(len(drafts) for drafts in output.scheduled_spec_decode_tokens.values())
            return output

        scheduler.schedule = schedule
        try:
            yield passes
        finally:
            del scheduler.schedule

    def _scheduler(self) -> Any:
        return self._llm.llm_engine.engine_core.engine_core.scheduler


def _parameters(settings: Mapping[str, Any], steps: int) -> SamplingParams:
    seed = settings.get("seed", settings.get("draw"))
    return SamplingParams(
        temperature=0 if seed is None else 1,
        seed=seed,
        max_tokens=steps,
        ignore_eos=True,
        logprobs=more_scores(settings),
        detokenize=False,
        extra_args=request(draw=True) if "draw" in settings else None,
    )


def _run(output: Any, led: bool) -> Run:
    (completion,) = output.outputs
    tops = [_top(step) for step in completion.logprobs]
    choices = [ranked(top)[0][0] for top in tops] if led else None
    return run_of(completion.token_ids, tops, choices)


def _top(step: Mapping[int, Any]) -> Top:
    return [(token, each.logprob) for token, each in step.items()]


def _evidence(
    settings: Mapping[str, Any], drafting: bool, outputs: Sequence[Any], passes: Passes, steps: int
) -> Evidence:
    """Whether every setting is seen in what ran."""
    rows = int(settings.get("batch_size", 1))
    usual, count = Counter(passes.rows).most_common(1)[0]
    seen = [(usual == rows, f"{count} of {len(passes.rows)} forward passes had {usual} rows")]
    if "chunk" in settings:
        pieces = max(passes.visits.values()) - steps + 1
        took = passes.widest <= int(settings["chunk"]) and pieces > 1
        seen.append((took, f"prompts were read in up to {pieces} pieces of {passes.widest} tokens at most"))
    if "prefix_cache" in settings:
        cached = [output.num_cached_tokens or 0 for output in outputs]
        hits = sum(each > 0 for each in cached)
        seen.append(
            (hits > 0, f"{hits} of {len(cached)} prompts had up to {max(cached)} tokens in the cache")
        )
    if drafting:
        # Every pass of a request gives one token and what was guessed right before it.
        right = len(passes.visits) * steps - passes.visits.total()
        seen.append((right > 0, f"{passes.drafts} drafts, of which {right} stood"))
    return Evidence(all(took for took, _ in seen), "; ".join(said for _, said in seen))
