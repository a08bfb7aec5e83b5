"""Alembic's entry point: runs migrations on the connection that `schema.upgrade` hands over, in one
transaction.
"""

from alembic import context

from harnessgym.store.tables import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
    transactional_ddl=True,
)
with context.begin_transaction():
    context.run_migrations()
