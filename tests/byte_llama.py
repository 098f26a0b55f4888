"""A Llama of one layer whose tokens are bytes, with random weights: it writes nonsense, but at once."""

from __future__ import annotations

from typing import Any, Final

END: Final = 256
"""Its end token, after the bytes."""
WIDTH: Final = 260
"""Of its logits: wider than its tokens, as those of real models are."""


def byte_llama(width: int = WIDTH, *, pad: int = 0) -> Any:
    """The same model each time.

    Args:
        width: of its logits.
        pad: its padding token.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=width,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=END,
        pad_token_id=pad,
    )
    return LlamaForCausalLM(config).eval()
