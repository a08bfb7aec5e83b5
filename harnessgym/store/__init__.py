"""The SQL of HarnessGym, but for the queries that `harnessgym.traces` still has (see tests/layout.toml).

`TraceStore` runs functions that take a connection. The other modules of this package hold those functions,
one module per noun.
"""

from harnessgym.store.tables import new_id
from harnessgym.store.trace_store import TraceStore

__all__ = ["TraceStore", "new_id"]
