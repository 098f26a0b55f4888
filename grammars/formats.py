"""The values of `format` that are enforced, as regular expressions.

Sources: RFC 3339 (date and time; leap seconds, which no calendar can foretell, are left out, and so is
the year 0000), RFC 4122 (uuid), RFC 5321 section 4.1.2 (email), RFC 6531 section 3.3 (internationalized
email), RFC 1123 section 2.1 (host names), RFC 4291 section 2.2 (IPv6 addresses), RFC 3986 and 3987 (URIs and
IRIs), RFC 6570 (URI templates), RFC 3339 appendix A (durations), RFC 6901 (JSON pointers).
"""

from __future__ import annotations

from typing import Final

from sortition.grammars.automaton import Automaton
from sortition.grammars.characters import ANY_CHARACTER
from sortition.grammars.expr import Expr, Graph, concat, literal, one_of, star
from sortition.grammars.regex import parse
from sortition.grammars.work import kept

_YEAR: Final = "(?:000[1-9]|00[1-9][0-9]|0[1-9][0-9]{2}|[1-9][0-9]{3})"
_FOURTH: Final = "(?:0[48]|[2468][048]|[13579][26])"
_LEAP_YEAR: Final = f"(?:[0-9]{{2}}{_FOURTH}|{_FOURTH}00)"
_DAY_OF_MONTH: Final = (
    "(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])"
    "|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)"
    "|02-(?:0[1-9]|1[0-9]|2[0-8]))"
)
_DATE: Final = f"(?:{_YEAR}-{_DAY_OF_MONTH}|{_LEAP_YEAR}-02-29)"
_CLOCK: Final = "(?:[01][0-9]|2[0-3]):[0-5][0-9]"
_TIME: Final = rf"{_CLOCK}:[0-5][0-9](?:\.[0-9]+)?(?:[Zz]|[+-]{_CLOCK})"

_BYTE: Final = "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
_IPV4: Final = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_GROUP: Final = "[0-9A-Fa-f]{1,4}"
_LAST_32_BITS: Final = f"(?:{_GROUP}:{_GROUP}|{_IPV4})"


def _ipv6() -> str:
    """Eight groups, the last two maybe as IPv4; `::` stands for the missing ones, at least one."""
    forms = [f"(?:{_GROUP}:){{6}}{_LAST_32_BITS}"]
    for after in range(8):
        tail = "" if after == 0 else f"(?:{_GROUP}:){{{after - 1}}}{_GROUP}"
        if after >= 2:
            tail = f"(?:{_GROUP}:){{{after - 2}}}{_LAST_32_BITS}"
        before = 7 - after
        head = f"(?:{_GROUP}(?::{_GROUP}){{0,{before - 1}}})?" if before else ""
        forms.append(f"{head}::{tail}")
    return f"(?:{'|'.join(forms)})"


_ATOM: Final = "[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+"
_QUOTED: Final = r'"(?:[ !#-\[\]-~]|\\[ -~])*"'
_LABEL: Final = "[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?"
_MAIL_DOMAIN: Final = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[(?:{_IPV4}|IPv6:{_ipv6()})\])"

_NOT_ASCII: Final = r"\u0080-\uD7FF\uE000-\U0010FFFF"
_WIDE_ATOM: Final = _ATOM.replace("~-]", f"~{_NOT_ASCII}-]")
_WIDE_QUOTED: Final = rf'"(?:[ !#-\[\]-~{_NOT_ASCII}]|\\[ -~])*"'
_WIDE_LABEL: Final = "(?:[^\\W_](?:(?:[^\\W_]|[\u0300-\u036f-])*(?:[^\\W_]|[\u0300-\u036f]))?)"
"""Letters and digits of any script, and accents that stand by themselves."""

_UNRESERVED: Final = "A-Za-z0-9._~"
_SUBDELIMITERS: Final = "!$&'()*+,;="
_PRIVATE: Final = r"\uE000-\uF8FF\U000F0000-\U000FFFFD\U00100000-\U0010FFFD"
_INTERNATIONAL: Final = r"\u00A0-\uD7FF\uF900-\uFDCF\uFDF0-\uFFEF" + "".join(
    rf"\U000{plane:X}{'1000' if plane == 14 else '0000'}-\U000{plane:X}FFFD" for plane in range(1, 15)
)


def _uri(characters: str, private: str, relative: bool) -> str:
    """URIs whose unreserved characters are `characters`; or references, which may be relative."""

    def any_of(more: str) -> str:
        return f"(?:[{characters}{_SUBDELIMITERS}{more}-]|%[0-9A-Fa-f]{{2}})"

    segment = any_of(":@")
    future = rf"[vV][0-9A-Fa-f]+\.[{_UNRESERVED}{_SUBDELIMITERS}:-]+"
    host = rf"(?:\[(?:{_ipv6()}|{future})\]|{any_of('')}*)"
    authority = f"//(?:{any_of(':')}*@)?{host}(?::[0-9]*)?(?:/{segment}*)*"
    absolute = f"/(?:{segment}+(?:/{segment}*)*)?"
    tail = rf"(?:\?(?:{any_of(f':@/?{private}')})*)?(?:#(?:{any_of(':@/?')})*)?"
    rootless = f"{segment}+(?:/{segment}*)*"
    whole = f"[A-Za-z][A-Za-z0-9+.-]*:(?:{authority}|{absolute}|{rootless})?{tail}"
    if not relative:
        return whole
    # The first segment of a relative path has no colon: it would end a scheme.
    no_scheme = f"{any_of('@')}+(?:/{segment}*)*"
    return f"(?:{whole}|(?:{authority}|{absolute}|{no_scheme})?{tail})"


def _uri_template() -> str:
    """Literals and expressions; the operators that are reserved for later are left out."""
    encoded = "%[0-9A-Fa-f]{2}"
    literal = rf"(?:[!#-$&-;=?-\[\]_a-z~{_INTERNATIONAL}{_PRIVATE}]|{encoded})"
    character = f"(?:[A-Za-z0-9_]|{encoded})"
    variable = rf"{character}+(?:\.{character}+)*(?::[1-9][0-9]{{0,3}}|\*)?"
    return rf"(?:{literal}|\{{[+#./;?&]?{variable}(?:,{variable})*\}})*"


_CLOCK_PART: Final = "T(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DATE_PART: Final = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
_POINTER: Final = r"(?:/(?:[^~/]|~[01])*)*"

PATTERNS: Final = {
    "date": _DATE,
    "time": _TIME,
    "date-time": f"{_DATE}[Tt]{_TIME}",
    "uuid": "[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}",
    "ipv4": _IPV4,
    "ipv6": _ipv6(),
    "uri": _uri(_UNRESERVED, "", False),
    "uri-reference": _uri(_UNRESERVED, "", True),
    "iri": _uri(_UNRESERVED + _INTERNATIONAL, _PRIVATE, False),
    "iri-reference": _uri(_UNRESERVED + _INTERNATIONAL, _PRIVATE, True),
    "duration": f"P(?:{_DATE_PART}(?:{_CLOCK_PART})?|{_CLOCK_PART}|[0-9]+W)",
    "json-pointer": _POINTER,
    "relative-json-pointer": f"(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
    "email": rf"(?:{_ATOM}(?:\.{_ATOM})*|{_QUOTED})@{_MAIL_DOMAIN}",
    "idn-email": (
        rf"(?:{_WIDE_ATOM}(?:\.{_WIDE_ATOM})*|{_WIDE_QUOTED})"
        rf"@(?:{_WIDE_LABEL}(?:\.{_WIDE_LABEL})*|{_MAIL_DOMAIN})"
    ),
    "uri-template": _uri_template(),
}
"""Formats that are enforced, in the syntax of `re`."""

LABELS: Final = 7
"""Labels of a host name, where one of more than 31 characters counts for two: then 253 characters suffice."""

NOT_ENFORCED: Final = frozenset(["idn-hostname", "regex"])
"""The other formats of the specification; those that it does not know are annotations."""

FORMATS: Final = frozenset({*PATTERNS, "hostname", *NOT_ENFORCED})
"""Every format of the specification."""

_EXACT: Final = frozenset({"date", "uuid", "ipv4", "ipv6"})
"""Formats on whose every string validators agree."""

_NOT_IN_URI: Final = r"[\s\S]*[\x00- <>\"{}|\\^`\x7F][\s\S]*"
_NEVER: Final = {
    "email": "[^@]*",
    "idn-email": "[^@]*",
    "date-time": r"[^0-9][\s\S]*|[0-9]*",
    "time": r"[^0-9T][\s\S]*|[0-9]*",
    "duration": r"[^P+-][\s\S]*|",
    "uri": rf"[^:]*|{_NOT_IN_URI}",
    "iri": rf"[^:]*|{_NOT_IN_URI}",
    "uri-reference": _NOT_IN_URI,
    "iri-reference": _NOT_IN_URI,
    "hostname": r"|[\s\S]*[\x00-,/:-@\[-^`{-\x7F][\s\S]*",
    "json-pointer": r"[^/][\s\S]*",
    "relative-json-pointer": r"[^0-9][\s\S]*|",
}
"""Strings that no reader takes for one of the format, where readers do not agree on all others."""


@kept(2 * len(FORMATS))  # The large ones count for several.
def format_automaton(name: str) -> Automaton:
    """The strings of a format, as an automaton over code points."""
    return Automaton.of(_hostname() if name == "hostname" else parse(PATTERNS[name], "python"))


@kept(len(FORMATS))
def others_automaton(name: str) -> Automaton | None:
    """Strings that are not of a format: all, or those on which there is no doubt; None if not known."""
    if name in _EXACT:
        return Automaton.of(star(one_of(ANY_CHARACTER))).difference(format_automaton(name))
    return Automaton.of(parse(_NEVER[name], "python")) if name in _NEVER else None


def _hostname() -> Expr:
    """Labels of up to 63 letters, digits and hyphens inside; a state is how many labels were counted.

    Two hyphens after the second character announce an encoded label, and no pattern tells which are valid.
    """
    encoded = Automaton.of(parse(r"..--.*", "python"))
    edges: list[tuple[int, Expr, int]] = []
    end = LABELS + 1
    for count, longest in ((1, 31), (2, 63)):
        rest = f"(?:[A-Za-z0-9-]{{0,{longest - 2}}}[A-Za-z0-9])?"
        label = Automaton.of(parse(f"[A-Za-z0-9]{rest}", "python")).difference(encoded).expr()
        for before in range(LABELS - count + 1):
            edges.append((before, label, end))
            edges.append((before, concat(label, literal((ord("."),))), before + count))
    return Graph(tuple(edges), 0, frozenset({end}))
