"""Named sets of characters: what `\\w` means to Python, Unicode properties, the other cases of a letter.

Sets come from asking `re` and `regex` which of all code points they match, so they agree with them by
construction; a set takes 2 to 50 ms and is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import Final, Literal

import numpy as np
import regex

from sortition.grammars.characters import ANY_CHARACTER, LAST_CODE_POINT, contains, intersection, union
from sortition.grammars.errors import Invalid, Unsupported
from sortition.grammars.expr import Ranges
from sortition.grammars.work import charge, kept

CaseRule = Literal["python", "ascii", "ecma"]

ASCII_DIGITS: Final[Ranges] = ((0x30, 0x39),)
ASCII_WORD: Final[Ranges] = ((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
ASCII_SPACE: Final[Ranges] = ((9, 13), (0x20, 0x20))

ECMA_LINE_ENDS: Final[Ranges] = ((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
ECMA_SPACE: Final[Ranges] = (
    (9, 13),
    (0x20, 0x20),
    (0xA0, 0xA0),
    (0x1680, 0x1680),
    (0x2000, 0x200A),
    (0x2028, 0x2029),
    (0x202F, 0x202F),
    (0x205F, 0x205F),
    (0x3000, 0x3000),
    (0xFEFF, 0xFEFF),
)
"""WhiteSpace and LineTerminator of ECMA-262 12.2 and 12.3."""

LAST_CASED: Final = 0x1FFFF
"""No character with a case lies above plane 1."""

_CASED: Final = regex.compile(r"[\p{Changes_When_Casefolded}\p{Changes_When_Casemapped}]")
_TURKIC: Final = "\u0130\u0131"
"""Letters that `regex` takes for an i, which they are in Turkic languages alone."""

SETS_KEPT: Final = 1024
"""Sets that are kept, of each kind; all named ones are fewer."""

SEARCH_STEPS: Final = 15_000
"""Steps that it takes to ask about all code points."""

CASE_STEPS: Final = 130
"""Steps that each range of a set takes to be compared with all letters that have cases."""

_CATEGORIES: Final = """
Cased_Letter LC Close_Punctuation Pe Connector_Punctuation Pc Control Cc cntrl Currency_Symbol Sc
Dash_Punctuation Pd Decimal_Number Nd digit Enclosing_Mark Me Final_Punctuation Pf Format Cf
Initial_Punctuation Pi Letter L Letter_Number Nl Line_Separator Zl Lowercase_Letter Ll Mark M
Combining_Mark Math_Symbol Sm Modifier_Letter Lm Modifier_Symbol Sk Nonspacing_Mark Mn Number N
Open_Punctuation Ps Other C Other_Letter Lo Other_Number No Other_Punctuation Po Other_Symbol So
Paragraph_Separator Zp Private_Use Co Punctuation P punct Separator Z Space_Separator Zs Spacing_Mark Mc
Surrogate Cs Symbol S Titlecase_Letter Lt Unassigned Cn Uppercase_Letter Lu
"""
"""Values of General_Category that ECMA-262 names, table 70."""

_BINARY_PROPERTIES: Final = """
ASCII ASCII_Hex_Digit AHex Alphabetic Alpha Any Assigned Bidi_Control Bidi_C Bidi_Mirrored Bidi_M
Case_Ignorable CI Cased Changes_When_Casefolded CWCF Changes_When_Casemapped CWCM
Changes_When_Lowercased CWL Changes_When_NFKC_Casefolded CWKCF Changes_When_Titlecased CWT
Changes_When_Uppercased CWU Dash Default_Ignorable_Code_Point DI Deprecated Dep Diacritic Dia Emoji
Emoji_Component EComp Emoji_Modifier EMod Emoji_Modifier_Base EBase Emoji_Presentation EPres
Extended_Pictographic ExtPict Extender Ext Grapheme_Base Gr_Base Grapheme_Extend Gr_Ext Hex_Digit Hex
IDS_Binary_Operator IDSB IDS_Trinary_Operator IDST ID_Continue IDC ID_Start IDS Ideographic Ideo
Join_Control Join_C Logical_Order_Exception LOE Lowercase Lower Math Noncharacter_Code_Point NChar
Pattern_Syntax Pat_Syn Pattern_White_Space Pat_WS Quotation_Mark QMark Radical Regional_Indicator RI
Sentence_Terminal STerm Soft_Dotted SD Terminal_Punctuation Term Unified_Ideograph UIdeo Uppercase
Upper Variation_Selector VS White_Space space XID_Continue XIDC XID_Start XIDS
"""
"""Binary properties that ECMA-262 names, tables 68 and 69 (without those of strings)."""

_VALUED_PROPERTIES: Final = {
    "General_Category": "General_Category",
    "gc": "General_Category",
    "Script": "Script",
    "sc": "Script",
    "Script_Extensions": "Script_Extensions",
    "scx": "Script_Extensions",
}

_SCRIPT: Final = re.compile("[A-Z][a-z]+(?:_[A-Z][a-z]+)*|SignWriting")
"""How all names of scripts are spelled."""


@kept(SETS_KEPT)
def python_class(letter: str) -> Ranges:
    """What `\\d`, `\\w` or `\\s` matches in a `str` pattern of Python's `re`."""
    charge(SEARCH_STEPS)
    return _matched_by(re.compile(rf"\{letter}+"))


@kept(SETS_KEPT)
def unicode_property(text: str) -> Ranges:
    """The characters of `\\p{text}` as ECMA-262 reads it.

    Raises:
        Invalid: ECMA-262 knows no such property.
        Unsupported: no data for this property.
    """
    categories = _CATEGORIES.split()
    name, equals, value = text.partition("=")
    if equals:
        # `regex` reads values in any case and with any underscores, ECMA-262 as they are listed.
        listed = value in categories if name in ("General_Category", "gc") else _SCRIPT.fullmatch(value)
        known = name in _VALUED_PROPERTIES and bool(listed)
        query = f"{_VALUED_PROPERTIES.get(name)}={value}"
    else:
        known = name in categories or name in _BINARY_PROPERTIES.split()
        query = f"General_Category={name}" if name in categories else name
    if not known:
        raise Invalid(
            f"there is no Unicode property {text!r}",
            keyword=rf"\p{{{text}}}",
            hint=r"write for example \p{L}, \p{Script=Greek} or \p{Alphabetic}",
        )
    charge(SEARCH_STEPS)
    try:
        return _matched_by(regex.compile(rf"\p{{{query}}}+"))
    except regex.error as error:
        raise Unsupported(f"no data for the Unicode property {text!r}", keyword=rf"\p{{{text}}}") from error


@kept(SETS_KEPT)
def with_other_cases(ranges: Ranges, rule: CaseRule) -> Ranges:
    """The set and every character that differs from a member only by case.

    "python" is `re.IGNORECASE`, "ascii" the same with `re.ASCII`, "ecma" the flags `iu` of ECMA-262.
    """
    charge(SEARCH_STEPS + CASE_STEPS * len(ranges))
    return union(
        ranges,
        *(
            tuple((code, code) for code in variants)
            for variants in _case_variants(rule)
            if any(contains(ranges, code) for code in variants)
        ),
    )


def _matched_by(pattern: re.Pattern[str]) -> Ranges:
    spans = (match.span() for match in pattern.finditer(_every_code_point()))
    return intersection(tuple((start, end - 1) for start, end in spans), ANY_CHARACTER)


@cache
def _every_code_point() -> str:
    """A text whose index n holds the code point n."""
    code_points = np.arange(LAST_CODE_POINT + 1, dtype="<u4")
    return code_points.tobytes().decode("utf-32-le", "surrogatepass")


@cache
def _case_variants(rule: CaseRule) -> tuple[tuple[int, ...], ...]:
    """The sets of at least two characters that differ only by case."""
    key: Callable[[str], str] = {"python": _python_case, "ascii": str.lower, "ecma": _simple_fold}[rule]
    last = 0x7F if rule == "ascii" else LAST_CASED
    variants: dict[str, list[int]] = {}
    for code in range(last + 1):
        variants.setdefault(key(chr(code)), []).append(code)
    if rule == "ecma":
        _add_what_python_does_not_fold(variants)
    return tuple(tuple(codes) for codes in variants.values() if len(codes) > 1)


def _add_what_python_does_not_fold(variants: dict[str, list[int]]) -> None:
    """Join letters that `regex` folds and Python does not.

    These are the letters of a later Unicode than Python's, and those whose full folding has several
    characters and whose simple one `str` does not tell, such as U+1FE3, which folds to U+03B0.
    """
    cased = "".join(_CASED.findall(_every_code_point()[: LAST_CASED + 1]))
    for character in cased:
        key = _simple_fold(character)
        if character not in _TURKIC and variants.get(key) == [ord(character)]:
            others = regex.findall(regex.escape(character), cased, regex.IGNORECASE)
            keys = [other for other in map(_simple_fold, others) if other != key and other in variants]
            if keys:
                variants[keys[0]] += variants.pop(key)


def _python_case(character: str) -> str:
    """What `re` compares: letters are equal by their lower case, or if those share their upper case."""
    return character.lower()[0].upper()


def _simple_fold(character: str) -> str:
    """Simple case folding, which maps one character to one (CaseFolding.txt, status C and S)."""
    folded = character.casefold()
    if len(folded) == 1:
        return folded
    lower = character.lower()
    return lower if len(lower) == 1 else character
