"""`python -m greenroom`, and the `greenroom` command."""

from __future__ import annotations

from .gateway._cli import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
