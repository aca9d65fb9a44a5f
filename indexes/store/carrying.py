"""Generations on their way: live ones into the store, and those that other machines have built from it to here."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from indexes.base.errors import Conflict, Damaged, NotFound, NotReady, RecallTooLow, message_of
from indexes.store.collection_log import CollectionLog
from indexes.store.offers import Offer, Offers
from indexes.store.session import LOOK_S, Session, Tracked

logger = logging.getLogger(__name__)

OFFERS_EVERY_S = 10.0


class Carrier:
    """Carries generations, on threads of its caller."""

    def __init__(self, session: Session, clock: Callable[[], int]) -> None:
        self._session, self._clock = session, clock
        self._offers: Offers | None = None
        self.offers_due = 0.0

    def carry(self, tracked: Tracked) -> None:
        """Upload the live generation of a collection, which the caller has locked; try again later if this fails."""
        try:
            self.take_live(tracked)
        except (NotFound, NotReady):
            logger.debug("the generation of %s was replaced, or the service closes", tracked.collection.name)
        except Damaged as error:
            tracked.generation = tracked.collection.generation
            logger.warning("the indexes of %s are not stored: %s", tracked.collection.name, error.message)
        except Exception as error:  # noqa: BLE001 - tried again
            self._session.available.failed(error)
        finally:
            tracked.carrying.release()

    def take_live(self, tracked: Tracked) -> None:
        """Upload the live generation, unless the store has it. Raises like `CollectionUpload.take_generation`."""
        session, number = self._session, tracked.collection.generation
        upload = session.upload_of(tracked)
        session.require_present()
        path = tracked.collection.shelf.path(number)
        if number and upload.take_generation(path, self._clock(), session.require_open):
            tracked.committed()
        tracked.generation = number

    def take_offers(self) -> None:
        """Adopt what other machines have built."""
        try:
            self._offers = offers = self._offers or Offers(self._session.objects)
            while (offer := offers.next()) is not None:
                refusal = self._adopt(offer)
                if refusal:
                    CollectionLog(self._session.objects, offer.uid).generations.remove(offer.generation)
                tracked = self._session.tracked.get(offer.uid)
                offers.answer(refusal, tracked.generation if tracked else 0)
        except NotReady:
            return
        except Exception as error:  # noqa: BLE001 - tried again
            logger.info("what other machines have built is looked at later: %s", message_of(error))
        finally:
            self.offers_due = time.monotonic() + OFFERS_EVERY_S

    def _adopt(self, offer: Offer) -> str:
        """Adopt a generation that another machine has built. Returns why not, once the store says which one is live."""
        session, tracked, stored = self._session, self._session.tracked.get(offer.uid), offer.generation
        if tracked is None:
            return "the collection is not served"
        try:
            with session.holding(tracked.carrying):
                collection, upload = tracked.collection, session.upload_of(tracked)
                if upload.generation != stored:  # or it was adopted before the store went away
                    if collection.live_seq >= stored.seq:
                        return f"a generation as new is live already, of operation {collection.live_seq}"
                    number = collection.take_number(stored.number)
                    upload.held.generations.fetch(
                        stored, collection.shelf, number, lambda *_: session.require_open()
                    )
                    collection.adopt(number)
                    upload.generation, tracked.generation = stored, number
                    logger.info("adopted generation %d of %s, built elsewhere", number, collection.name)
                tracked.committed()
                while upload.stored_generation != stored:
                    session.require_open()
                    if session.tracked.get(offer.uid) is not tracked:
                        return "the collection was deleted"
                    time.sleep(LOOK_S)
        except (Damaged, NotFound, RecallTooLow, Conflict) as error:
            logger.warning("a generation built elsewhere is not adopted: %s", error.message)
            return error.message
        return ""
