"""How alembic runs a revision of the store: on the connection that `storage.migrate` hands it."""

from __future__ import annotations

from alembic import context

from agentmem.storage.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    render_as_batch=True,
)
with context.begin_transaction():
    context.run_migrations()
