"""Jobs on a Ray cluster: the same work as over processes, a task of one core each. Ray is optional."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from hanse.base.errors import UserError, library
from hanse.lab.jobs.job import Job
from hanse.lab.jobs.pool import Work, dead

__all__ = ["in_ray"]

_PATIENCE_S = 10.0


def in_ray(
    jobs: Sequence[Job], step: Callable[[Job, int], None], *, work: Work, address: str
) -> Iterator[tuple[Job, dict[str, Any]]]:
    """Do the jobs on the Ray cluster at ``address``; yields each with its result as it ends.

    ``address`` is what Ray takes: "host:port", "ray://host:port", "auto" for the cluster that this machine is part of,
    "local" for a new one on this machine. hanse must be installed on the cluster's machines; ``HANSE_DATA`` goes along.
    ``work`` is a function of a module. A task whose worker dies fails alone. Raises UserError if Ray is not installed
    or nothing answers at the address.
    """
    ray = _ray(address)
    try:
        remote = ray.remote(num_cpus=1, max_retries=0)(_one_thread)
        running = {remote.remote(work, job): job for job in jobs}
        while running:
            ready, _ = ray.wait(list(running), num_returns=1)
            job = running.pop(ready[0])
            try:
                found = ray.get(ready[0])
            except ray.exceptions.RayError as wrong:
                found = dead(job, f"its Ray task was lost: {' '.join(str(wrong).split())}")
            yield job, found
    finally:
        ray.shutdown()  # which ends the tasks that still run


def _ray(address: str) -> Any:
    """Return the module, connected."""
    ray = library("ray", "--ray: ray is not installed; 'pip install ray'")
    _knock(address)
    variables = {name: os.environ[name] for name in ("HANSE_DATA",) if name in os.environ}
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR", runtime_env={"env_vars": variables})
    except (ConnectionError, ValueError, RuntimeError, OSError) as wrong:
        raise UserError(f"--ray {address}: no Ray cluster answers: {' '.join(str(wrong).split())}") from None
    return ray


def _knock(address: str) -> None:
    """Refuse an address where nothing listens: Ray itself tries for minutes, and then ends the process."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_PATIENCE_S).close()
    except (OSError, OverflowError) as wrong:
        raise UserError(f"--ray {address}: no Ray cluster answers: {wrong}") from None


def _one_thread(work: Work, job: Job) -> dict[str, Any]:
    """Do one job in a Ray worker."""
    from hanse.learning.threads import intra_op

    with intra_op(1):
        return work(job, lambda rounds: None)
