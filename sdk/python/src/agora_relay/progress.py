"""Which pages of events are handled, and so which cursor to save."""
from __future__ import annotations

import asyncio
import dataclasses

from .follow import CursorStore, save_cursor


@dataclasses.dataclass(eq=False)
class Page:
    """A page of events. It is finished when holds is 0: the number of its events that are not handled yet, plus one
    while the page is being read."""

    cursor: str
    progress: Progress
    holds: int = 1

    def hold(self) -> None:
        """Adds a hold, which needs one call of release."""
        self.holds += 1

    async def release(self) -> None:
        """Removes a hold."""
        await self.progress.release(self)


class Progress:
    """Saves the cursor of the last page up to which all events are handled. Pages can finish in any order."""

    def __init__(self, store: CursorStore | None):
        self.store = store
        self._pages: list[Page] = []  # whose cursors are not saved, oldest first; adjacent finished pages are merged
        self._saving = asyncio.Lock()

    def begin(self, cursor: str) -> Page:
        """Adds a page with one hold, for which the caller calls release."""
        page = Page(cursor, self)
        self._pages.append(page)
        return page

    async def release(self, page: Page) -> None:
        """Removes a hold. If the page and all earlier pages are finished now, it saves the cursor of the last one."""
        page.holds -= 1
        if page.holds > 0:
            return
        kept: list[Page] = []
        for following in self._pages:
            if kept and kept[-1].holds == 0 and following.holds == 0:
                kept[-1] = following
            else:
                kept.append(following)
        self._pages = kept
        if kept[0].holds == 0:
            first = kept.pop(0)
            async with self._saving:  # in the order of the calls
                await save_cursor(self.store, first.cursor)
