"""A model of random weights whose tokens are the 256 bytes: loads in no time and writes nonsense."""

from __future__ import annotations

from pathlib import Path

CONTEXT = 600
"""Tokens that the model can see."""


def build(folder: Path) -> Path:
    """Save the model and its tokenizer, which has no chat template."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {character: token for token, character in enumerate(alphabet)}
    backend = Tokenizer(models.BPE({**vocabulary, "<end>": 256}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<end>")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=260,  # wider than the tokenizer, as real models are
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=CONTEXT,
        bos_token_id=None,
        eos_token_id=256,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
