"""Was the same question asked before in other words?

    wording.py     what two texts must share to ask the same
    questions.py   the questions of each scope by their vectors, in this process
    shared.py      the same in Redis, in vector sets
    cache.py       finds them, checks a sample of its hits, and switches itself off

It holds questions and no answers. Answers are looked up in the result cache as those of the earlier question, so they
are never staler here than there, and callers get none that was not computed with their rights.
"""

from __future__ import annotations

from retrieval.cache.semantic.cache import SemanticCache, SemanticCounts
from retrieval.cache.semantic.questions import Question, Questions
from retrieval.cache.semantic.shared import SharedQuestions

__all__ = ["Question", "Questions", "SemanticCache", "SemanticCounts", "SharedQuestions"]
