"""The certificates that this process trusts, for servers and for authorization servers.

To read them takes 25 ms, so they are read once. Which ones they are follows from our own environment (`SSL_CERT_FILE`,
`SSL_CERT_DIR`).
"""

from __future__ import annotations

import functools
import ssl


@functools.cache
def trusted_certificates() -> ssl.SSLContext:
    """Raises `OSError` when they cannot be read; the next call tries again."""
    import httpx2

    return httpx2.create_ssl_context()
