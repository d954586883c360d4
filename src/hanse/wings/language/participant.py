"""A participant's instructions as its data on a network: :func:`instructions`."""

from __future__ import annotations

from pathlib import Path

from hanse.base.errors import UserError
from hanse.base.files import given_path
from hanse.federation.node import ClientData
from hanse.wings.language.records import BYTES, build_tokenizer, encode, read_instructions


def instructions(
    path: str | Path,
    *,
    tokenizer: str = BYTES,
    length: int = 512,
    test: float = 0.2,
    validation: float = 0.0,
    name: str = "",
) -> ClientData:
    """Return the instructions in a file as a participant's data, for fine-tuning a language model.

    Args:
        path: a .json, .jsonl or .csv file with the fields ``instruction``, ``input`` (may be empty) and ``output``.
        tokenizer: ``"bytes"``, or the name of a model whose tokenizer is used. It must be the experiment's
            ``data.source.tokenizer``, and is therefore the same for all participants.
        length: tokens in a window; the experiment's ``data.source.length``.
        test: the share of the file's lines that is kept for testing, from 0 to below 1. It is taken from the end of the
            file.
        validation: the share kept for validation, the lines before the test lines.
        name: the participant's name. Default: the file's name without its suffix.

    Returns:
        The shares as token windows. An empty share is None.

    Raises:
        UserError: the file cannot be read or is too short, or the shares leave nothing to train on.

    Examples:
        >>> import json, tempfile
        >>> from pathlib import Path
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     path = Path(folder) / "clinic.jsonl"
        ...     line = json.dumps({"instruction": "Add.", "input": "1 + 1", "output": "2"}) + chr(10)
        ...     _ = path.write_text(line * 10)
        ...     mine = instructions(path, length=64)
        >>> mine.name, len(mine.train), len(mine.test), mine.validation
        ('clinic', 8, 2, None)
    """
    items, tokens = read_instructions(given_path("path", path)), build_tokenizer(tokenizer)
    if not (test >= 0 and validation >= 0 and test + validation < 1):
        raise UserError(f"instructions: test {test} and validation {validation}: 0 or more, and below 1 together")
    tested, validated = int(test * len(items)), int(validation * len(items))
    first = len(items) - tested - validated
    shares = {
        "train": items[:first],
        "validation": items[first : first + validated],
        "test": items[first + validated :],
    }
    wide = encode(items, tokens, length)[0].x.shape[1]
    found = {share: encode(own, tokens, length, wide)[0] for share, own in shares.items() if own}
    return ClientData(found["train"], found.get("test"), found.get("validation"), tokens.size, name or Path(path).stem)
