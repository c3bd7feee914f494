"""Alembic's entry. The connection is always handed in by app.store.migrate, which also holds the lock."""

from alembic import context

from app.store.tables import METADATA

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=METADATA,
    transaction_per_migration=True,
    compare_server_default=False,
)
with context.begin_transaction():
    context.run_migrations()
