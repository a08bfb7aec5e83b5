"""All SQL of HarnessGym. `TraceStore` runs functions of a connection; the modules beside it are those
functions, by noun.
"""

from harnessgym.store.tables import new_id
from harnessgym.store.trace_store import TraceStore

__all__ = ["TraceStore", "new_id"]
