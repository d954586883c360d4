"""What the operator reads during a run on a network.

:class:`Narrator` observes the run and logs each round. :func:`speaking` makes these log lines begin with ``hanse:`` in
the server app's output. ``hanse network run`` follows that output and shows only these lines.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hanse.base.errors import MachineError, UserError
from hanse.base.files import going_on
from hanse.base.plain_text import quantity
from hanse.core.entry import KEPT
from hanse.core.part import Pause
from hanse.federation.check import log as refusals
from hanse.federation.check import one_line
from hanse.flower.link import FlowerFederation
from hanse.flower.members import give
from hanse.flower.newcomers import LOG
from hanse.learning.metrics import ACCURACY, MetricStyle, main_of
from hanse.runs.config import Experiment
from hanse.runs.experiment import PlayedRun
from hanse.runs.round import Played
from hanse.runs.round_record import figure_of

MARK = "hanse: "  # the beginning of lines that the server app prints for the operator
MOST = 20  # the most clients that an error names


@contextmanager
def speaking() -> Iterator[None]:
    """Print hanse's log lines, including those on refused replies, to the current standard output.

    A mistake or a failure of the machine that ends the run is logged, a line each ("mistake:", "error:"), and passes.
    Flower, which logs what a server app raises, says that without a traceback: the lines have told all of it.

    Flower replaces the standard output of a server app to catch its log, so this must be called inside the app.
    """
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter(MARK + "%(message)s"))
    for log in (LOG, refusals):
        # a process may run several server apps: each line is to appear once, on the latest output
        for old in [h for h in log.handlers if isinstance(h, logging.StreamHandler)]:
            log.removeHandler(old)
        log.addHandler(handler)
        log.setLevel(logging.INFO)
    logging.getLogger("flwr").addFilter(_brief)
    try:
        yield
    except (UserError, MachineError) as wrong:
        for line in wrong.lines:
            LOG.error("%s: %s", "mistake" if isinstance(wrong, UserError) else "error", line)
        raise


def _brief(record: logging.LogRecord) -> bool:
    """Take the traceback out of a log record about something that :func:`speaking` has told. Return True: it stays."""
    if record.exc_info and isinstance(record.exc_info[1], UserError | MachineError):
        record.exc_info = None
    return True


@dataclass
class Narrator:
    """An observer that logs the rounds of a run.

    Refused replies are not logged here: :mod:`hanse.federation.check` logs them with the reason.

    Attributes:
        federation: the network that the run plays on, for names of clients and nodes.
        run: the run directory.
        round: the round that is being played; None between rounds.
    """

    federation: FlowerFederation
    run: Path
    round: int | None = None  # the round that is being played
    _rounds: int = field(default=0, init=False)
    _main: MetricStyle = field(default=ACCURACY, init=False)

    def on_start(self, experiment: Experiment, first_round: int, said: Sequence[str]) -> None:
        """Log what is played, and with how many members.

        Of the lines in ``said``, the operator sees only warnings.
        """
        self.round, self._rounds = first_round, experiment.run.rounds
        for line in said:
            if line.startswith("warning: "):
                LOG.warning("%s", line)
        self._main = main_of(experiment.eval.metrics)
        here = quantity(self.federation.here(), "member")
        LOG.info("%s: %d of %s played; %s here", self.run, first_round, quantity(self._rounds, "round"), here)

    def on_played(self, played: Played) -> None:
        """Order a pause if a part wishes one: before the round is kept, since a later order could be lost in a kill."""
        if (wish := played.view.get(Pause)) is not None and played.state.round < self._rounds:
            give(self.run, "pause", wish.why)

    def on_round(self, metrics: Mapping[str, Any], played: Played) -> None:
        """Log a round: its main figure, how many seats answered, how long it took, bonds that were taken, and who had a
        seat if it failed.

        Args:
            metrics: the round's line of ``metrics.jsonl``; ``answered``, ``seats`` and ``time/round_s`` must be there.
            played: the round; its number, what it posted and, if it failed, its refusals are read from ``played.view``.
        """
        number = played.view.round
        self.round = number + 1
        answered = f"{metrics['answered']} of {quantity(metrics['seats'], 'seat')} answered"
        said = [figure_of(metrics, self._main), answered]
        if not metrics["answered"]:
            said.append("the models stay as they were")
        of = f"{number + 1} of {quantity(self._rounds, 'round')}, {metrics['time/round_s']:.1f} s"
        LOG.info("round %d: %s (%s)", number, ", ".join(filter(None, said)), of)
        if "failed" in metrics:
            LOG.error("round %d: failed, and nothing of it counts: %s", number, one_line(str(metrics["failed"])))
            for client in list(dict.fromkeys(client for client, _ in played.view.refusals))[:MOST]:
                LOG.error("round %d: had a seat: %s", number, self.federation.who(client))
            return
        for taken in (one for one in played.view.posted if one.kind == KEPT):
            client = int(taken.step.rpartition("/")[2])
            LOG.warning("round %d: %s lost its bond: %s", number, self.federation.who(client), taken.memo)

    def on_end(self, result: PlayedRun) -> None:
        """Log why the run is over, and where its report and receipts are."""
        self.round = None
        if result.over is not None:
            LOG.info("%s", result.over)
        LOG.info("%s played, in %s: hanse report %s", quantity(len(result.metrics), "round"), self.run, self.run)
        if left := sum(map(len, self.federation.letters.waiting.values())):
            LOG.info("%s in letters.json for participants that are away", quantity(left, "receipt"))

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Log an exception that ends the run, with the round and the clients that were asked last, and let it pass.

        A mistake in the input, and a failure of the machine, say all in their own lines.
        """
        try:
            yield
        except (UserError, MachineError):
            raise
        except OSError as wrong:
            line = f"{wrong.filename or self.run}: {wrong.strerror}; mend that, then '{going_on(self.run)}'"
            raise MachineError(line) from wrong
        except Exception as wrong:
            where = "" if self.round is None else f"round {self.round}: "
            LOG.error("error: %s%s: %s", where, type(wrong).__name__, one_line(str(wrong)))
            for client in self.federation.asked[:MOST] if self.round is not None else ():
                LOG.error("asked last: %s", self.federation.who(client))
            raise
