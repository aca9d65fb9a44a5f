"""TLS from two files: a certificate chain and its key."""

from __future__ import annotations

import ssl
import stat
from pathlib import Path

from indexes.base.errors import InvalidInput, message_of
from retrieval.base.settings import ServerSection


class Tls:
    """The service's certificate: the listener's `context`, which gives each connection the newest pair."""

    def __init__(self, settings: ServerSection) -> None:
        """Raises like `tls_context`."""
        self._settings = settings
        self._newest = self.context = tls_context(settings)
        self.context.sni_callback = self._use_newest

    def _use_newest(self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        """OpenSSL calls this for each connection, even if the client names no host."""
        connection.context = self._newest

    def renew(self) -> None:
        """Reload the files for new connections. Raises InvalidInput if they have an error, and keeps the old
        certificate. May block as long as the files do."""
        # A new context, because loading half of a pair would leave the old one without a working certificate.
        self._newest = tls_context(self._settings)


def tls_of(settings: ServerSection) -> Tls | None:
    """The service's certificate, or None if none is set. Raises like `tls_context`."""
    return Tls(settings) if settings.tls_certificate or settings.tls_key else None


def tls_context(settings: ServerSection) -> ssl.SSLContext:
    """A context with the certificate and key in the files.

    Raises InvalidInput naming the setting for a file that cannot be read, or a key that is not the certificate's.
    """
    for name in ("tls_certificate", "tls_key"):
        path = getattr(settings, name)
        if not path:
            raise InvalidInput(
                f"server.{name} is missing; TLS needs tls_certificate and tls_key", param=f"server.{name}"
            )
        try:
            if not stat.S_ISREG(Path(path).stat().st_mode):  # reading a pipe would wait for its writer
                raise OSError(f"{path} is not a regular file")
            with Path(path).open("rb"):
                pass
        except OSError as error:
            raise InvalidInput(f"server.{name}: {message_of(error)}", param=f"server.{name}") from None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # TLS 1.2 and newer
    try:
        context.load_cert_chain(settings.tls_certificate, settings.tls_key, password=refuse_password)
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"server.tls_certificate and server.tls_key are not a certificate and its key in PEM: {message_of(error)}",
            param="server.tls_certificate",
        ) from None
    return context


def refuse_password() -> str:
    """Refuse a key with a password, which OpenSSL would ask for on the terminal."""
    raise ValueError("the key has a password")
