"""Replies are untrusted input: what is wrong is refused with a reason, never mixed and never paid."""

from __future__ import annotations

import math

import torch

from hanse.federation.port import Counted, Nearest, Reply, Request, Result, Score, Scored, Train, Trained
from hanse.learning.guide import Guide

__all__ = ["refusal"]


def refusal(request: Request, reply: Reply, size: int) -> str | None:
    """Return why a reply to ``request`` must be refused, or None if it is sound; ``size`` is P, the model's columns."""
    if reply.refused is not None:
        return reply.refused
    if len(reply.results) != len(request.tasks):
        return f"{len(reply.results)} results for {len(request.tasks)} tasks"
    for task, result in zip(request.tasks, reply.results, strict=True):
        if isinstance(task, Train):
            reason = _training(task, result, size)
        elif isinstance(task, Score):
            reason = _score(task, result)
        elif isinstance(task, Nearest):
            reason = _nearest(task, result)
        else:
            reason = None if getattr(result, "name", None) == task.name else f"no answer to '{task.name}'"
        if reason is not None:
            return reason
    return None


def _training(task: Train, result: Result, size: int) -> str | None:
    if not isinstance(result, Trained) or result.seat != task.seat:
        return f"no update for seat {task.seat}"
    if tuple(result.row.shape) != (size,):
        return f"update of shape {tuple(result.row.shape)} instead of ({size},)"
    if result.row.dtype != torch.float32:
        return f"update of type {result.row.dtype} instead of float32"
    if not math.isfinite(result.loss):
        return f"training loss is {result.loss}"
    if not bool(torch.isfinite(result.row.sum())) and not bool(torch.isfinite(result.row).all()):
        return "update has NaN or infinite entries"
    if not (math.isfinite(result.num_samples) and result.num_samples >= 0):
        return f"reported {result.num_samples} samples"
    return None if task.guide is None else _label_counts(task.guide, result)


def _label_counts(guide: Guide, result: Trained) -> str | None:
    counts = result.extras.get("label_counts")
    if counts is None or counts.dtype != torch.int64 or counts.shape != (guide.generator.classes,):
        return f"no counts of the {guide.generator.classes} labels"
    return "negative label counts" if bool((counts < 0).any()) else None


def _score(task: Score, result: Result) -> str | None:
    if not isinstance(result, Scored) or result.name != task.name:
        return f"no answer to '{task.name}'"
    if tuple(result.loss.shape) != (task.models.shape[0],):
        return f"{tuple(result.loss.shape)} losses for {task.models.shape[0]} models"
    return None


def _nearest(task: Nearest, result: Result) -> str | None:
    if not isinstance(result, Counted) or result.name != task.name:
        return f"no answer to '{task.name}'"
    if result.counts.dtype != torch.int64 or tuple(result.counts.shape) != (task.models.shape[0],):
        return f"{tuple(result.counts.shape)} counts of type {result.counts.dtype} for {task.models.shape[0]} models"
    return "negative counts" if bool((result.counts < 0).any()) else None
