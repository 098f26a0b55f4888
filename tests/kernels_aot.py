"""Compiles kernels for GPUs that need not be there, and prints what is in their PTX; see `test_kernels.py`.

Not for a process in which kernels are interpreted. The arguments are those of real launches, caught on their
way: so what is compiled is what would run.

    python tests/kernels_aot.py scan,select bfloat16,float32 90,100
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile
from triton.runtime.jit import JITFunction

from sortition.grammars.regex import regex
from sortition.grammars.vocabulary import Vocabulary
from sortition.integrations import vllm_device
from sortition.integrations.vllm_draw import Wish
from sortition.integrations.vllm_slots import Admission
from sortition.sampling import device, device_constraint, verify_device
from sortition.sampling.columns import Columns
from sortition.sampling.constraint import Constraint
from sortition.sampling.draw import Request
from sortition.sampling.parameters import Parameters
from sortition.sampling.verification import BLOCK, METHODS, TOKEN

WIDTH = 131_072
POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float64: "*fp64",
    torch.int64: "*i64",
    torch.int32: "*i32",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}
INEXACT = re.compile(r"fma|approx|\.ftz|\.full|ex2|lg2|rcp|rsqrt|sin|cos|tanh|^(add|sub|mul|div|sqrt)\.f")
"""Instructions that round in ways of their own, or do not say how, so that the assembler may fuse them."""


class Caught:
    """Stands for a kernel, and keeps what it is launched with."""

    def __init__(self, kernel: JITFunction[Any]) -> None:
        self.kernel = kernel
        self.arguments: tuple[Any, ...] = ()
        self.options: dict[str, Any] = {}

    def __getitem__(self, grid: Any) -> Any:
        return self._launch

    def _launch(self, *arguments: Any, **options: Any) -> None:
        self.arguments, self.options = arguments, options


def draw(dtype: torch.dtype) -> None:
    """A draw that asks for everything that kernels have; of float32, for as little as can be."""
    everything = dtype != torch.float32
    parameters = [Parameters(top_p=0.9, logit_bias={3: 1.0}, bad_words=((1, 2),), allowed_tokens=(1, 2, 3))]
    request = Request(
        columns=Columns.of(parameters),
        seeds=np.zeros(1, np.int64),
        positions=np.zeros(1, np.int64),
        prompt=np.zeros((1, 16), np.int64),
        output=np.zeros((1, 16), np.int64),
        end_tokens=np.zeros((1, 2), np.int64),
        grammar=np.ones((1, WIDTH), np.bool_) if everything else None,
        entropy=everything,
    )
    logits = torch.zeros(1, WIDTH, dtype=dtype)
    if not everything:
        device.draw_rows(logits, request)
        return
    settings = device.Settings.of(request.columns, WIDTH, logits.device)
    inputs = device.Inputs.of(request, logits.device)
    room = device.Workspace(1, WIDTH, device.needed(settings, inputs, WIDTH), logits.device)
    device.launch(logits, settings, inputs, room, True, torch.zeros(1, dtype=torch.int32))
    device.Laws.of(logits, settings, inputs, room)


def walk(dtype: torch.dtype) -> None:
    """A step of a grammar, and a mask of it."""
    vocabulary = Vocabulary.of([b"[", b"]", b"1", b""], end_tokens=[3])
    constraint = Constraint([regex(r"\[1*\]").compile(vocabulary)], slots=1)
    numbers = torch.zeros(2, dtype=torch.int32)
    batch = device_constraint.Batch(
        slots=torch.zeros(2, dtype=torch.int64),
        local=numbers,
        tokens=torch.zeros((1, 16), dtype=torch.int32),
        totals=numbers,
        drafts=numbers,
        end_tokens=torch.zeros((1, 2), dtype=torch.int64),
    )
    steps = device_constraint.Walk(constraint, WIDTH)
    steps.apply(torch.zeros(2, WIDTH, dtype=dtype), steps.advance(batch))


def leave(dtype: torch.dtype) -> None:
    """A step of vLLM's second runner, with one request."""
    numbers, flags = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.bool)
    states = SimpleNamespace(
        max_num_reqs=1,
        all_token_ids=SimpleNamespace(gpu=torch.zeros((1, 16), dtype=torch.int32)),
        prompt_len=SimpleNamespace(gpu=numbers),
        total_len=SimpleNamespace(gpu=numbers),
    )
    context = SimpleNamespace(
        expanded_idx_mapping=numbers,
        expanded_local_pos=numbers,
        input_ids=numbers,
        pos=numbers,
        idx_mapping_np=np.zeros(1, np.int32),
        seq_lens_upper_bound_np=np.ones(1, np.int32),
    )
    slots: Any = SimpleNamespace(device=flags.device)
    wish = Wish(Parameters(), 0), Admission(None, (1, 2))
    vllm_device.Device(slots, states).draw(torch.zeros(1, WIDTH, dtype=dtype), context, {0: wish})


def judge_drafts(dtype: torch.dtype) -> None:
    """A verification of drafts with laws by every method; of float32, of certain ones by some."""
    everything = dtype != torch.float32
    kinds = range(len(METHODS)) if everything else (TOKEN, BLOCK)

    def side(places: int) -> verify_device.Side:
        request = Request(
            columns=Columns.of([Parameters(top_p=0.9)] * places),
            seeds=np.zeros(places, np.int64),
            positions=np.zeros(places, np.int64),
            prompt=np.zeros((places, 0), np.int64),
            output=np.zeros((places, 0), np.int64),
            end_tokens=np.zeros((places, 2), np.int64),
        )
        logits = torch.zeros(places, WIDTH, dtype=dtype)
        settings = device.Settings.of(request.columns, WIDTH, logits.device)
        return verify_device.Side.of(logits, settings, device.Inputs.of(request, logits.device))

    trees = verify_device.Trees(
        tokens=torch.zeros(1, 2, dtype=torch.int64),
        parents=torch.tensor([[-1, 0]]),
        methods=torch.zeros(1, dtype=torch.int8),
        coins=torch.zeros(1, dtype=torch.int64),
        kinds=frozenset(kinds),
    )
    verify_device.launch(side(3), side(2) if everything else None, trees, {})


MODULES = (device, device_constraint, vllm_device, verify_device)
"""From where kernels are launched."""

KERNELS: dict[str, Callable[[torch.dtype], None]] = {
    **dict.fromkeys(("edit", "scan", "select", "finish", "law"), draw),
    **dict.fromkeys(("advance", "mask", "judge", "apply"), walk),
    **dict.fromkeys(("elect", "leave"), leave),
    **dict.fromkeys(("walk", "block"), judge_drafts),
}
"""What launches each kernel."""


def caught(name: str, dtype: torch.dtype) -> Caught:
    """The launch of one kernel, with all others left out."""
    before = [{each: vars(module)[each] for each in KERNELS if each in vars(module)} for module in MODULES]
    launches = {each: Caught(kernel) for found in before for each, kernel in found.items()}
    for module, found in zip(MODULES, before, strict=True):
        vars(module).update({each: launches[each] for each in found})
    try:
        KERNELS[name](dtype)
    finally:
        for module, found in zip(MODULES, before, strict=True):
            vars(module).update(found)
    return launches[name]


def source_of(launch: Caught) -> tuple[ASTSource, dict[str, Any]]:
    """What to compile for a launch, specialised as a launch would, and the compiler's options."""
    names = launch.kernel.arg_names
    options = dict(launch.options)
    values = dict(zip(names, launch.arguments, strict=False))
    values.update({name: options.pop(name) for name in list(options) if name in names})
    signature, constants, attributes = {}, {}, {}
    for at, (name, parameter) in enumerate(zip(names, launch.kernel.params, strict=True)):
        value, specialised = values[name], not parameter.do_not_specialize
        if isinstance(value, torch.Tensor):
            signature[name] = POINTERS[value.dtype]
            if value.data_ptr() % 16 == 0 and not parameter.do_not_specialize_on_alignment:
                attributes[(at,)] = [["tt.divisibility", 16]]
        elif isinstance(value, bool) or value is None or name.isupper() or (value == 1 and specialised):
            signature[name] = "constexpr"
            constants[name] = value
        else:
            signature[name] = "i32"
            if value % 16 == 0 and specialised:
                attributes[(at,)] = [["tt.divisibility", 16]]
    return ASTSource(launch.kernel, signature, constants, attributes), options


def report(launch: Caught, architecture: int) -> dict[str, Any]:
    """How a launch's kernel comes out."""
    begin = time.perf_counter()
    source, options = source_of(launch)
    kernel = compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    instructions = Counter(
        match[1] for match in re.finditer(r"^\s*(?:@!?%p\d+\s+)?([a-z][\w.:]*)\s", kernel.asm["ptx"], re.M)
    )
    return {
        "kernel": launch.kernel.fn.__name__,
        "architecture": architecture,
        "inexact": sorted(name for name in instructions if INEXACT.search(name)),
        "loads": {name: count for name, count in instructions.items() if name.startswith("ld.global")},
        "shared": kernel.metadata.shared,
        "binary": len(kernel.asm["cubin"]),
        "seconds": round(time.perf_counter() - begin, 2),
    }


def main() -> None:
    names, types, architectures = (each.split(",") for each in sys.argv[1:4])
    reports = [
        {**report(caught(name, getattr(torch, dtype)), int(architecture)), "dtype": dtype}
        for name in names
        for dtype in types
        for architecture in architectures
    ]
    print(json.dumps(reports))


if __name__ == "__main__":
    main()
