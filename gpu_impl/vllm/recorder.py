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

    def record(self, event: Event) -> None:
        """Append one event to the trace."""
        if self._writer is not None:
            self._writer.write(event)

    def record_all(self, events: Iterable[Event]) -> None:
        """Append events in order."""
        for event in events:
            self.record(event)

    def flush(self) -> None:
        """Let the trace so far survive a killed process."""
        if self._writer is not None:
            self._writer.flush()

    def close(self, num_free_blocks: int | None) -> None:
        """End the trace; None when the run did not end well."""
        if self._writer is not None:
            self._writer.close(num_free_blocks)
