"""Where a row's parameters are for kernels: which column of which tensor, and which code means which stage.

`whole` is int64 [rows, `WHOLE`] and `real` is float64 [rows, `REAL`]; float32 parameters are exact in it.
"""

from __future__ import annotations

import triton.language as tl

from sortition.sampling import columns
from sortition.sampling.columns import CODES, END

WHOLE_NAMES = (
    "mode",
    "top_k",
    "min_keep",
    "penalty_window",
    "min_tokens",
    "repetition_sees_prompt",
    "presence_sees_prompt",
    "frequency_sees_prompt",
    "phrases_see_prompt",
    "spares_end_tokens",
    "joint",
    "top_p_more",
    "typical_more",
    "keep_ties",
    "bias_begin",
    "bias_end",
    "phrases_begin",
    "phrases_end",
    "allowed",
)
"""Columns of `whole`: as in `Columns`, but for `mode`, one of the modes below, and `allowed`, which of the
lists of allowed tokens is the row's, -1 for none."""

REAL_NAMES = (
    "edit_temperature",
    "temperature",
    "late_temperature",
    "top_p",
    "typical",
    "min_p",
    "epsilon",
    "eta",
    "root_of_eta",
    "top_n_sigma",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""Columns of `real`: as in `Columns`, but for temperatures among edits, before filters, and among them or
after them."""

WHOLE = tl.constexpr(len(WHOLE_NAMES))
MODE = tl.constexpr(WHOLE_NAMES.index("mode"))
TOP_K = tl.constexpr(WHOLE_NAMES.index("top_k"))
MIN_KEEP = tl.constexpr(WHOLE_NAMES.index("min_keep"))
PENALTY_WINDOW = tl.constexpr(WHOLE_NAMES.index("penalty_window"))
MIN_TOKENS = tl.constexpr(WHOLE_NAMES.index("min_tokens"))
REPETITION_SEES_PROMPT = tl.constexpr(WHOLE_NAMES.index("repetition_sees_prompt"))
PRESENCE_SEES_PROMPT = tl.constexpr(WHOLE_NAMES.index("presence_sees_prompt"))
FREQUENCY_SEES_PROMPT = tl.constexpr(WHOLE_NAMES.index("frequency_sees_prompt"))
PHRASES_SEE_PROMPT = tl.constexpr(WHOLE_NAMES.index("phrases_see_prompt"))
SPARES_END_TOKENS = tl.constexpr(WHOLE_NAMES.index("spares_end_tokens"))
JOINT = tl.constexpr(WHOLE_NAMES.index("joint"))
TOP_P_MORE = tl.constexpr(WHOLE_NAMES.index("top_p_more"))
TYPICAL_MORE = tl.constexpr(WHOLE_NAMES.index("typical_more"))
KEEP_TIES = tl.constexpr(WHOLE_NAMES.index("keep_ties"))
BIAS_BEGIN = tl.constexpr(WHOLE_NAMES.index("bias_begin"))
BIAS_END = tl.constexpr(WHOLE_NAMES.index("bias_end"))
PHRASES_BEGIN = tl.constexpr(WHOLE_NAMES.index("phrases_begin"))
PHRASES_END = tl.constexpr(WHOLE_NAMES.index("phrases_end"))
ALLOWED = tl.constexpr(WHOLE_NAMES.index("allowed"))

REAL = tl.constexpr(len(REAL_NAMES))
EDIT_TEMPERATURE = tl.constexpr(REAL_NAMES.index("edit_temperature"))
TEMPERATURE = tl.constexpr(REAL_NAMES.index("temperature"))
LATE_TEMPERATURE = tl.constexpr(REAL_NAMES.index("late_temperature"))
TOP_P = tl.constexpr(REAL_NAMES.index("top_p"))
TYPICAL = tl.constexpr(REAL_NAMES.index("typical"))
MIN_P = tl.constexpr(REAL_NAMES.index("min_p"))
EPSILON = tl.constexpr(REAL_NAMES.index("epsilon"))
ETA = tl.constexpr(REAL_NAMES.index("eta"))
ROOT_OF_ETA = tl.constexpr(REAL_NAMES.index("root_of_eta"))
TOP_N_SIGMA = tl.constexpr(REAL_NAMES.index("top_n_sigma"))
REPETITION_PENALTY = tl.constexpr(REAL_NAMES.index("repetition_penalty"))
PRESENCE_PENALTY = tl.constexpr(REAL_NAMES.index("presence_penalty"))
FREQUENCY_PENALTY = tl.constexpr(REAL_NAMES.index("frequency_penalty"))

GREEDY = tl.constexpr(0)
"""Mode of a row that draws its likeliest token."""
UNFILTERED = tl.constexpr(1)
"""Mode of a row that may draw any token."""
FILTERED = tl.constexpr(2)
"""Mode of a row with filters."""
TYPICAL_FIRST = tl.constexpr(3)
"""Mode of a row with filters, the first of which asks for the mean of d."""

STAGE_END = tl.constexpr(END)
STAGE_GRAMMAR = tl.constexpr(CODES["grammar"])
STAGE_ALLOWED_TOKENS = tl.constexpr(CODES["allowed_tokens"])
STAGE_BAD_WORDS = tl.constexpr(CODES["bad_words"])
STAGE_MIN_TOKENS = tl.constexpr(CODES["min_tokens"])
STAGE_LOGIT_BIAS = tl.constexpr(CODES["logit_bias"])
STAGE_REPETITION_PENALTY = tl.constexpr(CODES["repetition_penalty"])
STAGE_PRESENCE_PENALTY = tl.constexpr(CODES["presence_penalty"])
STAGE_FREQUENCY_PENALTY = tl.constexpr(CODES["frequency_penalty"])
STAGE_TEMPERATURE = tl.constexpr(CODES["temperature"])
STAGE_TOP_N_SIGMA = tl.constexpr(CODES["top_n_sigma"])
STAGE_TOP_K = tl.constexpr(CODES["top_k"])
STAGE_TOP_P = tl.constexpr(CODES["top_p"])
STAGE_MIN_P = tl.constexpr(CODES["min_p"])
STAGE_TYPICAL = tl.constexpr(CODES["typical"])
STAGE_EPSILON = tl.constexpr(CODES["epsilon"])
STAGE_ETA = tl.constexpr(CODES["eta"])
STAGE_GREEDY = tl.constexpr(columns.GREEDY)

WITHOUT_NAN = tl.constexpr(1)
"""Treatment of a row: NaN counts as -inf."""
ONLY_INFINITE = tl.constexpr(2)
"""Treatment: what is +inf is 0, and everything else -inf."""
WITHOUT_EDITS = tl.constexpr(4)
"""Treatment: what is not finite is -inf, and no rule changes logits but the grammar."""
AS_LIKELY = tl.constexpr(8)
"""Treatment: every token that the grammar allows is as likely as the other, and no rule counts."""
SKIPPED = tl.constexpr(16)
"""Treatment: the row is not drawn, and what it drew before stays."""

BINS = tl.constexpr(512)
BINS_TO_ONE = tl.constexpr(16.0)
"""Bins of d in `select` and `finish`: what lies in the last, below -31.9, has no mass."""

PEAK = tl.constexpr(128)
"""Tokens whose greatest d is kept between `select` and `finish`, which reads no others than those near it."""


def bits(number: int) -> int:
    """The least power of two that is not less."""
    return 1 << max(number - 1, 0).bit_length()
