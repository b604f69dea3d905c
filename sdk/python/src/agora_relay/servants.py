"""One agent at several relays (RELAYS R-10, R-12, R-14)."""
from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from .answer import log, permanent, retry_after_of
from .desk import Desk
from .errors import AgoraError, RelayError
from .follow import Event
from .links import home_of
from .serve import Agent, Service
from .waiting import READ_PATIENCE, Backoff

if TYPE_CHECKING:
    from .client import Client
    from .network import Network


class Servants:
    """The agents of one call of serve, one for each relay."""

    def __init__(self, network: Network, service: Service, desk: Desk):
        self._network, self._service, self._desk = network, service, desk
        self._agents: dict[Client, Agent] = {}
        self._tasks: dict[asyncio.Task[None], Client] = {}

    async def run(self, manifest: dict[str, Any] | None) -> None:
        """Runs until it is cancelled, or all relays refuse to be read."""
        network, announcing = self._network, None
        for client in network.clients:
            self._add(client, from_oldest=True)
        if manifest is not None:
            announcing = asyncio.create_task(self._announce(manifest))
        try:
            while True:
                done, _ = await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    client, err = self._tasks.pop(task), task.exception()
                    log.warning("the agent does not read %s any more: %s", client.url, err)
                    self._agents.pop(client)
                    if err and (not isinstance(err, RelayError) or not self._agents.keys() & {*network.clients}):
                        raise err
        finally:
            tasks = [*self._tasks, *([announcing] if announcing else [])]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _add(self, client: Client, *, from_oldest: bool) -> Agent:
        agent = self._agents[client] = Agent(
            client,
            self._service,
            self._desk,
            store_of=self._network.state.cursor,
            route=self._route,
            from_oldest=from_oldest,
        )
        self._tasks[asyncio.get_running_loop().create_task(agent.run())] = client
        return agent

    def _route(self, agent: Agent, event: Event) -> Agent | None:
        """The agent at the home of a message (RELAYS R-14); None: the message is ignored."""
        home, network = home_of(event.envelope), self._network
        did = home["did"] if home else agent.client._relay_did
        if did in network.state.caught:
            log.warning("the %s %s of %s is ignored, because its relay is caught", event.type, event.id, event.sender)
            return None
        if home is None:
            return agent
        client = network._client_of(home)
        if client is None:
            log.info("the %s %s of %s is ignored: its home is %s", event.type, event.id, event.sender, home["url"])
            return None
        if client not in self._agents and event.type == "REQUEST" and agent.serves(event):
            return self._add(client, from_oldest=False)
        return self._agents.get(client)

    async def _announce(self, manifest: dict[str, Any]) -> None:
        """Posts the manifest to all relays, again after half of its lifetime, and soon if not all have taken it."""
        pause = Backoff()
        while True:
            try:
                receipt, everywhere = await self._network._publish(manifest)
                expires = receipt.expires_at.timestamp() if receipt.expires_at else 0.0
                delay = max((expires - self._network.now()) / 2, 60.0) if everywhere else 30.0
                pause.reset()
            except AgoraError as err:
                if permanent(err):
                    log.error("the manifest was refused, and will not be posted again: %s", err)
                    return
                log.warning("posting the manifest failed, will be retried: %s", err)
                delay = min(retry_after_of(err), READ_PATIENCE)
            await pause.wait(delay)
