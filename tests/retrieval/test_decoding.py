"""What a body that does not fit is told: the field, by the name the sender gave it."""

from __future__ import annotations

import pytest

from indexes.errors import InvalidInput
from retrieval.decoding import decode
from retrieval.schemas import WriteDocuments

DOCUMENT = b'{"id": "a", "text": "b", "metadata": {"n": 1, "k": null}}'


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"documents": [' + DOCUMENT + b"]}", "documents[0].metadata.k"),
        (b'{"documents": [' + DOCUMENT + b"]", "documents[0].metadata[...]"),
        (b'{"documents": [' + DOCUMENT + b'], "documents": []}', "documents[0].metadata[...]"),
        (b'{"documents": [' + DOCUMENT[:-2] + b', "k": 2}}]}', "documents[0].metadata[...]"),
    ],
    ids=["whole", "cut off", "list twice", "key twice"],
)
def test_a_key_of_metadata_is_named(body: bytes, param: str) -> None:
    """Wherever it can be known; a body that is wrong in other ways as well is still one clear error."""
    with pytest.raises(InvalidInput) as refused:
        decode(body, WriteDocuments)
    assert refused.value.param == param
    assert refused.value.message.startswith(f"{param}: Expected")
