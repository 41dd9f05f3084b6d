"""Every revision of the schema, oldest first."""
