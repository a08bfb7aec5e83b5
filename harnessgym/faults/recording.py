"""Faults in the trace: one event of kind `fault` for each that was applied, with its ground truth."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from harnessgym.faults.plan import Applied
from harnessgym.store import events
from harnessgym.store.events import EventRow

KIND = "fault"
SOURCE = "sandbox"


def record(conn: Connection, rollout_id: str, applied: Sequence[Applied], doubt: str | None = None) -> None:
    """Writes what was applied. `doubt` says why the account of it may not be whole; it becomes an event of
    its own.
    """
    rows = [EventRow(rollout_id, KIND, _attributes(each), t=each.t, source=SOURCE) for each in applied]
    if doubt is not None:
        rows.append(EventRow(rollout_id, KIND, {"doubt": doubt}, source=SOURCE))
    events.add_many(conn, rows)


def _attributes(applied: Applied) -> dict[str, Any]:
    fault = applied.draw.fault
    return {
        "fault": fault.kind,
        "label": applied.label,
        "command": applied.command,
        "where": applied.where,
        "index": applied.draw.index,
        "ordinal": applied.draw.ordinal,
        "amount": applied.draw.amount,
        "settings": fault.model_dump(mode="json"),
    }
