"""The executable spec as a transition system: ``apply`` takes one event or rejects it.

An event is checked whole against the state and then changes it; a rejected event raises
``VTokenError`` and changes nothing. What each kind of event does stands in ``vtoken_ref/transitions``.

Source: paper 3.2 to 3.5.
"""

from collections.abc import Callable
from typing import Any

from vtoken_ref import events as ev
from vtoken_ref.rules import Rule, VTokenError
from vtoken_ref.state import MachineConfig, State
from vtoken_ref.transitions import blocks, forwards, messages, prefix_cache, relocation, requests

TRANSITIONS: dict[type[ev.Event], Callable[[State, Any], None]] = {
    ev.Admit: requests.admit,
    ev.Share: prefix_cache.share,
    ev.Alloc: blocks.alloc,
    ev.Cache: prefix_cache.cache,
    ev.Uncache: prefix_cache.uncache,
    ev.Lease: blocks.lease,
    ev.Sync: forwards.sync,
    ev.Evict: relocation.evict,
    ev.Defer: relocation.defer,
    ev.Plan: relocation.plan,
    ev.Copy: relocation.copy,
    ev.Commit: relocation.commit,
    ev.Cancel: relocation.cancel,
    ev.Release: relocation.release,
    ev.Free: blocks.free,
    ev.Forward: forwards.forward,
    ev.Report: messages.report,
    ev.Deliver: messages.deliver,
    ev.Output: forwards.output,
    ev.Preempt: requests.preempt,
    ev.Abort: requests.abort,
    ev.Finish: requests.finish,
    ev.End: requests.end,
}


class Machine(State):
    """The state of a run, and the one way to change it."""

    def apply(self, event: ev.Event) -> None:
        """Apply one event.

        Raises:
            VTokenError: the event breaks a rule; the state is as before.

        """
        if self.is_over:
            raise VTokenError(Rule.TRACE_AFTER_END, f"a {event.kind} event follows the end")
        TRANSITIONS[type(event)](self, event)
        self.num_events += 1

    def copy(self) -> "Machine":
        """Return an independent machine in the same state."""
        other = Machine(self.config)
        self.copy_into(other)
        return other


__all__ = ["Machine", "MachineConfig"]
