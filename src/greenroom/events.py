"""Every event of a room, and what an event says."""

# One name twice makes it public for type checkers.
# ruff: noqa: I001

from .protocol.events import (
    ApprovalDecision as ApprovalDecision,
    ApprovalMove as ApprovalMove,
    CallAccepted as CallAccepted,
    CallEnded as CallEnded,
    CallRefused as CallRefused,
    CallEvent as CallEvent,
    CallSent as CallSent,
    CatalogueChanged as CatalogueChanged,
    ConnectStep as ConnectStep,
    EndDecision as EndDecision,
    Event as Event,
    Eviction as Eviction,
    BreakerDecision as BreakerDecision,
    BreakerMove as BreakerMove,
    Kind as Kind,
    Lagged as Lagged,
    Note as Note,
    NoteCode as NoteCode,
    Place as Place,
    StartMoved as StartMoved,
    Step as Step,
    Transition as Transition,
    WarmChildMoved as WarmChildMoved,
    WarmMove as WarmMove,
)
from .protocol.lifecycle import Cause as Cause, Means as Means, Reason as Reason, State as State
