"""The SQL of HarnessGym: all of it, which a test of the layout holds.

`TraceStore` runs functions that take a connection. The other modules of this package hold those functions,
one module per noun.
"""

from harnessgym.store.tables import new_id
from harnessgym.store.trace_store import TraceStore

__all__ = ["TraceStore", "new_id"]
