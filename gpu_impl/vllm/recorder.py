"""Where the scheduler's process puts trace events: in the one trace file of the run, or nowhere."""

from collections.abc import Iterable

from conformance.trace import TraceWriter
from vtoken_ref.events import Event


class Recorder:
    """Write events, if there is a writer.

    Args:
        writer: the trace, None to record nothing.

    """

    def __init__(self, writer: TraceWriter | None) -> None:
        self._writer = writer
        self._held: list[Event] | None = None

    def record(self, event: Event) -> None:
        """Append one event to the trace, or behind the worker's report that is to come."""
        if self._held is not None:
            self._held.append(event)
        elif self._writer is not None:
            self._writer.write(event)

    def hold(self) -> None:
        """Keep events back until the worker's report of the step just scheduled.

        vLLM takes aborts after the worker has done the step and before the scheduler hears of it:
        what the worker did came first.
        """
        if self._writer is not None:
            self._held = []

    def record_report(self, events: Iterable[Event]) -> None:
        """Append a worker's report, then what was kept back for it."""
        held, self._held = self._held or [], None
        for event in (*events, *held):
            self.record(event)

    def flush(self) -> None:
        """Let the trace so far survive a killed process."""
        if self._writer is not None:
            self._writer.flush()

    def close(self, num_free_blocks: int | None) -> None:
        """End the trace; None when the run did not end well."""
        if self._writer is not None:
            self._writer.close(num_free_blocks)
