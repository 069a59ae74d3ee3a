"""The state of the relocation model: what is where, who has what, what is under way.

Its sorts are uninterpreted: there may be any number of requests, tokens, blocks and so on. A token is
a logical position, so that the same token of two requests that share a prefix is one ``Token``. The
state is that of a run with async depth 0, in which scheduler and worker agree at all times.

Every name here stands for the thing of the same name in ``vtoken_ref``; ``cosimulate`` says which.

Source: paper 3.2, 3.3.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import z3  # type: ignore[import-untyped,unused-ignore]

Formula = Any
Term = Any
Function = Callable[..., Any]

Request = z3.DeclareSort("Request")
Token = z3.DeclareSort("Token")
Block = z3.DeclareSort("Block")
Offset = z3.DeclareSort("Offset")
Flight = z3.DeclareSort("Flight")
Step = z3.DeclareSort("Step")
Content = z3.DeclareSort("Content")
Ticket = z3.DeclareSort("Ticket")
Bool, Int = z3.BoolSort(), z3.IntSort()


@dataclass(frozen=True)
class State:
    """The functions that make up a state; each is a Z3 function, or what an event makes of it.

    Requests:
        alive, ended: of a request; ``epoch`` is its present one.
    Token table:
        computed: the token was computed in the present epoch.
        resident: it has a slot, ``block`` and ``offset``, dead or live.
        live: it has not been evicted. ``evictions`` counts how often it was.
        content: what was written for it.
        listed: the request's block list has the block.
    Pool:
        free, fenced: of a block. ``holds`` and ``leased``: who has it.
        waits_for_step, waits_for_copies: what the fence of a block waits for.
        ticket: each leased block has one of its own; ``in_headroom`` tells which tickets there are.
        cached, cached_token, cached_content: the prefix cache; at which offsets it has something.
    Memory:
        memory: what a slot holds.
    Plans:
        has_plan: the request has a plan in flight, ``plan_of``.
        in_flight: neither committed nor cancelled, nor, of a dead epoch, wholly copied.
        owner, plan_epoch: whose plan it is. ``in_place``, ``copy_on_write``: its strategy, or else
            out of place.
        source, destination: its blocks.
        moving, copied: its tokens. ``source_block`` and ``source_offset``, ``target_block`` and
            ``target_offset``: a token's slots; ``moved_to``: the token that moves to a slot.
        paid_by, gained: ghost; a source for each destination, and one more source.
    Forwards:
        running: begun and not ended. ``in_forward``: it computes tokens of the request.
        will_write: it has still to write the slot for the request, with ``written_token``.
        will_recycle: it has still to write a token of the request over a dead one.
        zombie_write: it has still to write the slot, for an epoch that is over.

    """

    alive: Function
    ended: Function
    epoch: Function

    computed: Function
    resident: Function
    live: Function
    evictions: Function
    block: Function
    offset: Function
    content: Function
    listed: Function

    free: Function
    fenced: Function
    holds: Function
    leased: Function
    waits_for_step: Function
    waits_for_copies: Function
    ticket: Function
    in_headroom: Function
    cached: Function
    is_cached_at: Function
    cached_token: Function
    cached_content: Function

    memory: Function

    has_plan: Function
    plan_of: Function
    in_flight: Function
    owner: Function
    plan_epoch: Function
    in_place: Function
    copy_on_write: Function
    source: Function
    destination: Function
    moving: Function
    copied: Function
    source_block: Function
    source_offset: Function
    target_block: Function
    target_offset: Function
    moved_to: Function
    paid_by: Function
    gained: Function

    running: Function
    in_forward: Function
    will_write: Function
    written_token: Function
    will_recycle: Function
    zombie_write: Function

    # What follows from these.

    def present(self, flight: Term) -> Formula:
        """A plan is of the present epoch of a request that is alive."""
        owner = self.owner(flight)
        return z3.And(self.alive(owner), self.plan_epoch(flight) == self.epoch(owner))

    def orphan(self, flight: Term) -> Formula:
        """A plan of a dead epoch is in flight: copies of it may still run."""
        return z3.And(self.in_flight(flight), z3.Not(self.present(flight)))

    def at(self, request: Term, token: Term, block: Term, offset: Term) -> Formula:
        """A token is resident in this slot."""
        return z3.And(
            self.resident(request, token),
            self.block(request, token) == block,
            self.offset(request, token) == offset,
        )

    def is_overwritten(self, request: Term, block: Term, offset: Term) -> Formula:
        """A slot of a request has the KV of a token that its plan moves there."""
        flight = self.plan_of(request)
        moved = self.moved_to(flight, block, offset)
        return z3.And(
            self.has_plan(request),
            self.moving(flight, moved),
            self.copied(flight, moved),
            self.target_block(flight, moved) == block,
            self.target_offset(flight, moved) == offset,
        )


SIGNATURES: dict[str, tuple[Any, ...]] = {
    "alive": (Request, Bool),
    "ended": (Request, Bool),
    "epoch": (Request, Int),
    "computed": (Request, Token, Bool),
    "resident": (Request, Token, Bool),
    "live": (Request, Token, Bool),
    "evictions": (Request, Token, Int),
    "block": (Request, Token, Block),
    "offset": (Request, Token, Offset),
    "content": (Request, Token, Content),
    "listed": (Request, Block, Bool),
    "free": (Block, Bool),
    "fenced": (Block, Bool),
    "holds": (Request, Block, Bool),
    "leased": (Request, Block, Bool),
    "waits_for_step": (Block, Step, Bool),
    "waits_for_copies": (Block, Flight, Bool),
    "ticket": (Block, Ticket),
    "in_headroom": (Ticket, Bool),
    "cached": (Block, Bool),
    "is_cached_at": (Block, Offset, Bool),
    "cached_token": (Block, Offset, Token),
    "cached_content": (Block, Offset, Content),
    "memory": (Block, Offset, Content),
    "has_plan": (Request, Bool),
    "plan_of": (Request, Flight),
    "in_flight": (Flight, Bool),
    "owner": (Flight, Request),
    "plan_epoch": (Flight, Int),
    "in_place": (Flight, Bool),
    "copy_on_write": (Flight, Bool),
    "source": (Flight, Block, Bool),
    "destination": (Flight, Block, Bool),
    "moving": (Flight, Token, Bool),
    "copied": (Flight, Token, Bool),
    "source_block": (Flight, Token, Block),
    "source_offset": (Flight, Token, Offset),
    "target_block": (Flight, Token, Block),
    "target_offset": (Flight, Token, Offset),
    "moved_to": (Flight, Block, Offset, Token),
    "paid_by": (Flight, Block, Block),
    "gained": (Flight, Block),
    "running": (Step, Bool),
    "in_forward": (Step, Request, Bool),
    "will_write": (Step, Request, Block, Offset, Bool),
    "written_token": (Step, Request, Block, Offset, Token),
    "will_recycle": (Step, Request, Bool),
    "zombie_write": (Step, Block, Offset, Bool),
}
"""Of each function of a state, the sorts of its arguments and of its value."""

SORT_NAMES = {name: tuple(map(str, sorts)) for name, sorts in SIGNATURES.items()}
"""The names of these sorts."""

BEFORE = State(**{name: z3.Function(name, *sorts) for name, sorts in SIGNATURES.items()})
"""An arbitrary state."""
