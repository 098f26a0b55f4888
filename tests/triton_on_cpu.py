"""Triton's interpreter for tests, and vLLM's second model runner on a CPU with its kernels in it.

The CPU wheel looks for a Triton backend named "cpu"; one is made up. Call `prepare` before vLLM is imported
and `finish` once it is.
"""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any


def patch_once() -> None:
    """Let the interpreter take Triton's language over for good: for a process that compiles no kernels.

    It would at every launch, and at every call of a function in a kernel, which is a third of its time.
    """
    import triton.language as tl
    import triton.runtime.interpreter as interpreter

    interpreter._patch_lang(SimpleNamespace(__globals__={"tl": tl, "core": tl.core}))
    # Nothing is to be restored.
    interpreter._patch_lang = lambda kernel: interpreter._LangPatchScope()


def prepare() -> None:
    """Interpret kernels, and let vLLM find a backend."""
    os.environ.update(TRITON_INTERPRET="1", VLLM_USE_V2_MODEL_RUNNER="1", VLLM_ENABLE_V1_MULTIPROCESSING="0")
    import numpy as np
    import triton.backends
    import triton.runtime.interpreter as interpreter

    patch_once()

    class Driver:
        @staticmethod
        def is_active() -> bool:
            return True

    triton.backends.backends["cpu"] = triton.backends.Backend(compiler=None, driver=Driver)
    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store

    def flags(mask: Any) -> Any:
        # The interpreter takes masks of bool alone, where the compiler takes any integer.
        if mask.data.dtype != np.bool_:
            mask.data = mask.data.astype(bool)
        return mask

    def masked_load(self: Any, pointers: Any, mask: Any, *arguments: Any) -> Any:
        return load(self, pointers, flags(mask), *arguments)

    def masked_store(self: Any, pointers: Any, value: Any, mask: Any, *arguments: Any) -> Any:
        return store(self, pointers, value, flags(mask), *arguments)

    builder.create_masked_load = masked_load
    builder.create_masked_store = masked_store


def finish() -> None:
    """Let vLLM schedule ahead as it does on a GPU, and avoid the one kernel that cannot be interpreted."""
    import vllm.v1.sample.ops.topk_topp_sampler as operations
    import vllm.v1.worker.gpu.sample.sampler as sampler
    import vllm.v1.worker.gpu.sample.states as states
    from vllm.platforms.cpu import CpuPlatform

    sampler.apply_top_k_top_p = operations.apply_top_k_top_p_pytorch
    states.apply_top_k_top_p = operations.apply_top_k_top_p_pytorch
    settle = CpuPlatform.check_and_update_config.__func__

    def settle_asynchronous(platform: Any, config: Any) -> None:
        settle(platform, config)
        config.scheduler_config.async_scheduling = True

    CpuPlatform.check_and_update_config = classmethod(settle_asynchronous)
