"""Changes of the store's schema, one revision a file, run by alembic when a store is opened."""
