"""What models and servers write, as something that any screen and any reader takes for text."""

from __future__ import annotations

import html
import re
from typing import Final

CONTROLS: Final = re.compile("[^\t\n\u0020-\u007e\u00a0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Control characters steer terminals, and XML 1.0 has most of them not even escaped."""


def printable(text: str) -> str:
    """The text with U+FFFD for every control character, apart from tabs and line breaks."""
    return CONTROLS.sub("\ufffd", text.replace("\r\n", "\n"))


def escape(text: str) -> str:
    """The text as HTML or XML, in an element or a quoted attribute."""
    return html.escape(printable(text))
