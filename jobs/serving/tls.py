"""TLS by two files: a certificate, with those that lead to its authority, and its key."""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from indexes.base.errors import InvalidInput, NearlineError
from retrieval.base.settings import Server

logger = logging.getLogger(__name__)


def tls_context(settings: Server) -> ssl.SSLContext | None:
    """What the service proves itself with, or None where no certificate is set.

    Raises InvalidInput naming the setting for a file that cannot be read, or a key that is not the certificate's.
    """
    if not settings.tls_certificate and not settings.tls_key:
        return None
    for name in ("tls_certificate", "tls_key"):
        path = getattr(settings, name)
        if not path:
            raise InvalidInput(
                f"server.{name} is missing; TLS needs tls_certificate and tls_key", param=f"server.{name}"
            )
        try:
            Path(path).read_bytes()
        except OSError as error:
            raise InvalidInput(f"server.{name}: {error}", param=f"server.{name}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # TLS 1.2 and newer
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key, password=refuse_password)
    except (ssl.SSLError, ValueError) as error:
        raise InvalidInput(
            f"server.tls_certificate and server.tls_key are no certificate and its key, in PEM: {error}",
            param="server.tls_certificate",
        ) from None
    return context


def refuse_password() -> str:
    """Refuse a key with a password, which OpenSSL would ask for on the terminal."""
    raise ValueError("the key has a password")


def renew(context: ssl.SSLContext, settings: Server) -> None:
    """Use what the files hold now for connections to come. Where they are in error, the old certificate stays."""
    try:
        tls_context(settings)  # loading half of a pair would leave the context without a working certificate
        context.load_cert_chain(settings.tls_certificate, settings.tls_key, password=refuse_password)
    except NearlineError as error:
        logger.error("the certificate is in error, the old one stays: %s", error)
    else:
        logger.info("the certificate was read again")
