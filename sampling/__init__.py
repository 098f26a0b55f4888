"""Floor 2: logits in, tokens out, on the device where the logits are.

    Table       ->  Arena       (arena.py: the tables of all grammars, end to end, as tensors)
    Arena       ->  Constraint  (constraint.py: where every row stands, what it may emit, and what it becomes)

This floor needs torch and knows no engine. Nothing in it waits for the device. This file imports none of it,
so that `parameters.py` can be read where torch is not.
"""
