"""Which characters of a stranger's text may be shown, which of a name can be seen, and nouns behind numbers."""

from __future__ import annotations

import re

# controls but tab and line end; separators of lines; marks that turn the direction of writing; halves of characters
_MOVES = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
    "|\r(?!\n)"
)
# further characters that no font shows, but which make two names different
_UNSEEN = re.compile(
    "[\u00ad\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0000-\U000e0fff]"
)


def shown(text: str) -> str:
    """Return a text with a "?" for each character that could move the cursor, colour or reorder what is shown.

    Examples:
        >>> shown("clinic" + chr(27) + "[2J")
        'clinic?[2J'
    """
    return _MOVES.sub("?", text)


def is_plain(name: str) -> bool:
    """Return whether every character of a name can be seen, spaces included.

    Examples:
        >>> is_plain("Klinik Süd"), is_plain("clinic" + chr(0x200B))
        (True, False)
    """
    return name.isprintable() and not _UNSEEN.search(name)


def quantity(many: object, noun: str, plural: str = "") -> str:
    """Return a number with the noun behind it, which is in the singular behind 1.

    Args:
        many: the number, or a text of it as it is to be shown, such as "1,000" or "0.5".
        noun: the noun in the singular, with words around it where these belong to it, such as "late update was".
        plural: the same in the plural, if that is not made by an "s".

    Examples:
        >>> quantity(0, "round"), quantity(1, "round"), quantity("+1", "point"), quantity(2, "page is", "pages are")
        ('0 rounds', '1 round', '+1 point', '2 pages are')
    """
    return f"{many} {noun if str(many).lstrip('+-') == '1' else plural or noun + 's'}"
