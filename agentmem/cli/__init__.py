"""The `agentmem` command: one short file per group of commands."""
