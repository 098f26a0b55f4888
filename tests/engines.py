"""Engines for tests of extraction that need no model."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from sortition.integrations.generation import Completion, Job


class Echo:
    """Writes its prompt; a prompt that ends in ``...`` is cut off there, one of ``!`` cannot be answered."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def generate(self, prompts: Iterable[str]) -> Iterator[Completion]:
        for prompt in prompts:
            if prompt == "!":
                yield Completion(error="too long", prompt_tokens=1)
                continue
            text = prompt.removesuffix("...")
            yield Completion(
                text=text,
                ended=text == prompt,
                prompt_tokens=len(prompt),
                completion_tokens=len(text),
                seconds=0.5,
            )


class Slow(Echo):
    """Takes its time, so that a test can kill it."""

    def generate(self, prompts: Iterable[str]) -> Iterator[Completion]:
        for completion in super().generate(prompts):
            time.sleep(0.02)
            yield completion
