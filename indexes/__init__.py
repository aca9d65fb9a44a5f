"""The index library: synchronous, without network, cache server or embedding model. `__init__.pyi` lists what the
service uses of it; a name loads its module when it is first used, so that a client command starts without faiss."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
