"""What to do about a table, in the words of the way in which it came: given in Python, or as CSV files with a schema.

What is wrong with a column or may be meant otherwise is said once, whichever way its table came; the remedy differs.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Remedies:
    """The remedies of one way. ``{}`` and ``{!r}`` stand for the column's name.

    Attributes:
        gap: how a number becomes a gap.
        leave_out: how a column becomes no feature.
        many: what to do about a column of too many words.
        group: how to say that a column has what each row is of.
        units: how to say what rows are of where no column tells.
        same: how to say that clients call the same otherwise, after a blank; "": nothing.
    """

    gap: str
    leave_out: str
    many: str
    group: str
    units: str
    same: str = ""


IN_PYTHON = Remedies(
    gap="make it a gap (NaN)",
    leave_out="leave it out of the features",
    many="if it says of whom each row is, name it as data.source.group; else put words together, take units off "
    "numbers (hanse schema does), or leave the column out",
    group="data.source.group = {!r}",
    units="Say what each row is of (data.source.group, or units as the fourth of the arrays), or group = 'none'",
)
BY_SCHEMA = Remedies(
    gap="name it with --gap of hanse schema, or under gaps in the schema",
    leave_out="--leave-out it",
    many="if it says of whom each row is, name it as --group; else put words together, or --leave-out the column",
    group="--group {0!r} of hanse schema, or group = {0!r} in the schema,",
    units="Say what each row is of (--group of hanse schema, or group in the schema), or group = 'none'",
    same=""" If so, in [sites]: SITE = {{ {} = {{ WORD = "the others' word" }} }}, and no WORD in its list""",
)
