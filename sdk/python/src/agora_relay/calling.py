"""Calls the functions of an agent, which may be async or blocking."""
from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import threading
from typing import Any, Callable, TypeVar

from .answer import log
from .errors import AgentError
from .payloads import Job

T = TypeVar("T")

# It does not contain the cause, because the cause may be private. The log has the cause.
INTERNAL = AgentError("INTERNAL_ERROR", "the agent failed; the agent's operator can find the reason in its log")


class Caller:
    """Calls functions for one task, and knows which blocking ones still run."""

    def __init__(self) -> None:
        self._threads: set[asyncio.Future[Any]] = set()

    async def call(self, function: Callable[[Job], T], job: Job, limit: asyncio.Timeout) -> T:
        """Calls quote or work, until limit. Raises AgentError for every error of it."""
        try:
            async with limit:
                if _is_async(function):
                    value: Any = function(job)
                else:
                    value = await self._in_thread(function, job)
                return await value if inspect.isawaitable(value) else value  # type: ignore[no-any-return]
        except AgentError:
            raise
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task and task.cancelling():
                raise
            log.error(
                "the function of the agent was cancelled by its own code"
            )  # for example, it awaited a cancelled task
            raise INTERNAL from None
        except Exception:
            log.exception("the function of the agent failed in the thread %s of %s", job.thread, job.client)
            raise INTERNAL from None
        finally:
            job.cancelled.set()

    async def _in_thread(self, function: Callable[[Job], T], job: Job) -> T:
        """Runs a blocking function in a thread. Nothing can stop a thread. So if the task is cancelled, the thread
        continues, and can look at job.cancelled. It is a daemon, so it does not keep the process from ending."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()
        context = contextvars.copy_context()

        def finish(set_result: Callable[[], None]) -> None:
            try:
                loop.call_soon_threadsafe(lambda: None if done.done() else set_result())
            except RuntimeError:
                pass  # the loop has ended, so nobody waits

        def body() -> None:
            try:
                value = context.run(function, job)
            except Exception as err:
                finish(functools.partial(done.set_exception, err))
            except BaseException as err:  # such as SystemExit, which ends the thread only
                finish(functools.partial(done.set_exception, RuntimeError(f"the function raised {err!r}")))
            else:
                finish(functools.partial(done.set_result, value))

        self._threads.add(done)
        done.add_done_callback(self._threads.discard)
        threading.Thread(target=body, name="agora-work", daemon=True).start()
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            done.add_done_callback(lambda future: future.exception())  # nobody waits for it any more
            raise

    def after_threads(self, release: Callable[[], object]) -> None:
        """Calls release once no blocking function is running."""
        running = next(iter(self._threads), None)
        if running is None:
            release()
        else:
            running.add_done_callback(lambda _: self.after_threads(release))


def _is_async(function: Callable[..., Any]) -> bool:
    while isinstance(function, functools.partial):
        function = function.func
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None))
