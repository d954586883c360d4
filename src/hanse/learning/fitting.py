"""Does a module fit the data? Asked once, before round 0, so that a mistake is one line and leaves nothing behind."""

from __future__ import annotations

import torch
from torch import Tensor

from hanse.base.errors import first_line
from hanse.data.samples import Samples
from hanse.learning.job import Problem, smallest_batch
from hanse.learning.reference import Plain, untouched

__all__ = ["why_unfit"]

_FEW = 4


def why_unfit(
    problem: Problem, samples: Samples, num_classes: int | None, device: torch.device | str = "cpu"
) -> str | None:
    """Return why a module cannot be trained on such samples, or None: it must take them in evaluation and in training,
    and give each an output of the right form, with one number for each of ``num_classes`` classes (None: for each
    target).
    """
    device = torch.device(device)
    few = Samples(samples.x[:_FEW], samples.y[:_FEW])
    plain = Plain.of(problem, device, "float32")
    shape = list(few.x.shape[1:])
    with untouched(device):
        try:
            with torch.no_grad():
                plain.module.eval()
                output = plain.outputs(few.x)
        except Exception as error:  # whatever a user's module raises is the reason
            hint = "" if few.x.is_floating_point() else "; these are whole numbers (tokens), features must be float32"
            return f"cannot take samples of shape {shape} ({first_line(error)}){hint}"
        wrong = _wrong_form(output, few, num_classes)
        if wrong is not None or len(few) < smallest_batch(problem):
            return wrong
        try:
            plain.module.train()
            torch.autograd.grad(
                plain.loss(few), [p for p in plain.module.parameters() if p.requires_grad], materialize_grads=True
            )
        except Exception as error:
            return f"takes samples of shape {shape}, but cannot train on them ({first_line(error)})"
    return None


def _wrong_form(output: object, few: Samples, num_classes: int | None) -> str | None:
    """Return what is wrong with the form of a module's output on ``few`` samples, or None."""
    if not isinstance(output, Tensor):
        return f"returns a {type(output).__name__}; one tensor of outputs is needed"
    got, n = list(output.shape), len(few)
    if num_classes is None:
        wanted = few.y[0].numel()
        if output.numel() == few.y.numel() and got[:1] == [n]:
            return None
        return (
            f"gives outputs of shape {got} for {n} samples; regression needs {wanted} for each sample, [{n}, {wanted}]"
        )
    places = list(few.y.shape[1:])
    if got[:1] == [n] and got[2:] == places and len(got) == 2 + len(places) and got[1] >= num_classes:
        return None
    form = ", ".join(map(str, [n, num_classes, *places]))
    one = "; with two classes, too, cross-entropy takes two outputs" if num_classes == 2 else ""
    each = f"one for each of the {num_classes} classes is needed, [{form}]{one}"
    if places == [1]:
        each += f" (labels of shape [{n}, 1] are texts of one position; one label a sample has shape [{n}])"
    return f"gives outputs of shape {got} for {n} samples; {each}"
