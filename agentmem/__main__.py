"""`python -m agentmem` is the `agentmem` command."""

import sys

from agentmem.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
