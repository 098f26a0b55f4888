"""What `reference.py` and `constraint.py` define, as Triton kernels: the same bits, on the device.

A draw is four launches, none of which waits for the host or depends on values that only the device knows:

    edit     one program a row      which tokens the row may draw, and the few whose logits are changed
    scan     one for rows x tiles   first read of the logits: their maximum, and what is wrong with them
    select   one for rows x tiles   second read: masses, the race of rows without filters, counts by distance
    finish   one program a row      the filters, exactly, on the few tokens that can pass them, and their race

and where the likeliest tokens are to be reported, one more:

    law      one for rows x tiles   the law that each row was drawn from, token by token

and grammars are two more:

    advance  one program a request  where tokens take rows, and the classes of tokens that may come next
    mask     one for rows x tiles   those classes as bits of tokens, or applied to logits

and after a draw of every place, drafts are one or two more, by which methods there are:

    walk     one program a row      which drafts of a tree stand, and the token after them
    block    one program a row      the same for a chain that is judged as a whole

Kernels have to be compiled without fused multiply-add, which `LAUNCH` says.
"""

from __future__ import annotations

from typing import Final

LAUNCH: Final = {"enable_fp_fusion": False, "num_stages": 1}
"""Options of every launch: a * b + c is rounded twice, as it is everywhere else; loops are not pipelined."""
