from __future__ import annotations

from zerotoolsd.http.web.checkpoint_pictures import KEPT_SECONDS, MOST_KEPT, PictureDocuments


def test_a_document_is_found_by_its_token_for_a_while() -> None:
    now = [0.0]
    kept = PictureDocuments(clock=lambda: now[0])
    first = kept.add("one")
    assert (kept.find(first), kept.find(first[:-1])) == ("one", None)
    now[0] = KEPT_SECONDS + 1
    assert kept.find(first) is None


def test_many_documents_drop_the_oldest() -> None:
    kept = PictureDocuments()
    tokens = [kept.add(str(number)) for number in range(MOST_KEPT + 1)]
    found = [kept.find(token) for token in tokens]
    assert found == [None, *map(str, range(1, MOST_KEPT + 1))]
