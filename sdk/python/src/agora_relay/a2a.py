"""An agent that answers A2A callers (docs/A2A.md). The relay's gateway hands each message of a caller to the agent as a
REQUEST. While the agent works, it sends status messages and artifacts to the gateway."""
from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import inspect
import json
import re
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Coroutine, Iterable, Mapping, TypeVar, Union

from .calling import Caller
from .didkey import Identity
from .errors import AgentError, Refused, RelayError
from .envelope import encode64
from .jsontext import canonicalize
from .payloads import Delivery, Job
from .session import monotonic
from .waiting import Backoff

if TYPE_CHECKING:
    from .client import Client

T = TypeVar("T")
Part = Union[str, Mapping[str, Any]]
"""A piece of content (A2A §5): a text, or an object with one of text, raw (base64), url and data."""

INTENT = "a2a.message"
EVERY = 0.1  # seconds between two requests
MAX_EVENTS = 64  # of a request
MAX_BODY = 240 << 10  # bytes of the events of a request, and of what waits
MAX_TASK = 4 << 20  # bytes that a task keeps
MAX_RESULT = 80 << 10  # bytes of an output
MAX_PROOF = 32 << 10  # bytes
MAX_ANSWER = 8 << 20  # bytes of all of a turn
ATTEMPTS = 5
SKEW = 300.0  # seconds by which the relay's clock can differ from ours
STATUS = {
    "TASK_STATE_COMPLETED": "success",
    "TASK_STATE_INPUT_REQUIRED": "input-required",
    "TASK_STATE_AUTH_REQUIRED": "auth-required",
    "TASK_STATE_REJECTED": "rejected",
    "TASK_STATE_FAILED": "failed",
}


@dataclasses.dataclass
class A2AEnd:
    """How a turn ends."""

    state: str = "TASK_STATE_COMPLETED"
    """COMPLETED, INPUT_REQUIRED, AUTH_REQUIRED, REJECTED or FAILED, with TASK_STATE_ before it."""
    message: dict[str, Any] | None = None
    """The last message. The output has at most 80 KiB."""
    direct: bool = False
    """The caller may get message in place of a task, if its call still waits and the first turn sent nothing else."""


def parts_of(parts: Iterable[Part]) -> list[Any]:
    """Parts in the form of messages."""
    return [{"text": part} if isinstance(part, str) else part for part in parts]


class A2AOutput:
    """Writes an artifact in chunks."""

    def __init__(self, turn: A2ATurn, about: dict[str, Any]):
        self._turn, self._about, self._id = turn, about, about["artifactId"]

    async def write(self, *parts: Part) -> None:
        """Sends parts. It returns at once, or when there is room for more. Raises what A2ATurn.update raises."""
        await self._write(parts, False)

    async def close(self, *parts: Part) -> None:
        """Sends the last parts, and says that they are the last; without parts, an empty text."""
        await self._write(parts or ("",), True)

    async def _write(self, parts: tuple[Part, ...], last: bool) -> None:
        if not parts:
            return
        about, self._about = self._about, {}
        artifact = {"artifactId": self._id} | about | {"parts": parts_of(parts)}
        await self._turn._send({"artifactUpdate": {"artifact": artifact, "append": not about, "lastChunk": last}})


class A2ATurn:
    """One message of an A2A caller. A str stands for a text part. What is sent arrives in order, at most one request
    every 100 ms, and before the end of the turn. A function that is not async gets a turn whose methods block."""

    task: str
    turn: int
    """From 1 on."""
    context: str
    """The relay's id for the caller's conversation."""
    caller: dict[str, Any]
    """kind is key (with name), did (with did) or anonymous."""
    message: dict[str, Any]
    """The whole message, even if it did not fit into the REQUEST."""
    history: list[dict[str, Any]]
    """The earlier messages of the task, oldest first."""
    params: dict[str, Any]
    """All that the relay says: also acceptedOutputModes, extensions and metadata."""
    job: Job

    def __init__(self, client: Client, gateway: Gateway, job: Job, started: float):
        params: dict[str, Any] = job.params
        self.task, self.turn, self.context = params["task"], params["turn"], params["context"]
        self.caller, self.message, self.params = params["caller"], params["message"], params
        self.history, self.job = params.get("history") or [], job
        self._client, self._gateway = client, gateway
        self._again = job.event.ts < started + SKEW  # an earlier run may have sent artifacts
        self._messages = self._artifacts = 0
        self._sender = Sender(self._post)

    @property
    def text(self) -> str:
        """All texts of the message, joined by line breaks."""
        return "\n".join(p["text"] for p in self.message.get("parts", []) if isinstance(p.get("text"), str))

    def reply(self, *parts: Part) -> dict[str, Any] | None:
        """A message of the agent; None without parts."""
        if not parts:
            return None
        self._messages += 1
        return {
            "messageId": f"{self.job.thread}.{self._messages}",
            "role": "ROLE_AGENT",
            "parts": parts_of(parts),
        }

    def ask(self, *question: Part) -> A2AEnd:
        """The end of a turn with a question. The caller's next message to the task is another turn."""
        return A2AEnd("TASK_STATE_INPUT_REQUIRED", self.reply(*question))

    def done(self, *parts: Part) -> A2AEnd:
        """The end of a task with a message."""
        return A2AEnd(message=self.reply(*parts))

    async def update(self, *parts: Part) -> None:
        """Sends a status message: what the agent does now. Raises Refused with TURN_ENDED after the end of the turn,
        ValueError for a part that is too large, or if a task cannot keep it, and RelayError."""
        message = self.reply(*parts)
        about = {"message": message} if message else {}
        await self._send({"statusUpdate": {"state": "TASK_STATE_WORKING"} | about})

    def artifact(self, name: str = "", *, artifact_id: str = "", **about: Any) -> A2AOutput:
        """Begins an artifact. Its id is numbered by turn and order, so that a repeated run replaces it. about has its
        description, metadata and extensions."""
        self._artifacts += 1
        named = {"name": name} if name else {}
        return A2AOutput(self, {"artifactId": artifact_id or f"{self.turn}.{self._artifacts}"} | named | about)

    # --- For the package

    async def _send(self, event: dict[str, Any]) -> None:
        await self._sender.send(event)

    async def _post(self, events: list[Any]) -> None:
        await self._client._session.call(*self._gateway, self.params["work"] + "/events", {"events": events}, MAX_ANSWER)

    async def _all(self) -> dict[str, Any]:
        """All of the turn, as the relay has it now. It repeats the call after temporary failures."""
        pause = Backoff()
        while True:
            try:
                return await self._client._session.call(*self._gateway, self.params["work"], None, MAX_ANSWER)
            except RelayError as err:
                if not err.temporary or pause.failures == ATTEMPTS - 1:
                    raise
                delay = err.retry_after
            await pause.wait(delay)

    async def _load(self) -> None:
        """Loads what did not fit into the REQUEST."""
        if self.params.get("partial") is True:
            answer = await self._all()
            self.message, self.history = answer["message"], answer["history"]

    async def _result(self, end: A2AEnd | str | None) -> Delivery:
        """The RESULT. The relay writes the message of a turn that has failed, so only other ends are proved."""
        if not isinstance(end, A2AEnd):
            end = A2AEnd() if end is None else self.done(end)
        if end.state not in STATUS:
            raise ValueError(f"a turn cannot end with the state {end.state}")
        output: dict[str, Any] = {"message": end.message} if end.message else {}
        if end.direct:
            output["direct"] = True
        if end.state != "TASK_STATE_FAILED" and (proof := await self._prove(end)):
            output["proof"] = proof
        if size_of({"a2a": output}) > MAX_RESULT:
            raise AgentError(
                "INTERNAL_ERROR",
                f"the agent's last message has more than {MAX_RESULT} bytes; it should send an artifact",
            )
        return Delivery({"a2a": output}, STATUS[end.state])

    async def _prove(self, end: A2AEnd) -> dict[str, str] | None:
        """The agent's signature over the turn, with all artifacts of the task (A2A §7); None: it is too large."""
        artifacts: list[Any] = (await self._all())["artifacts"] if self.turn > 1 or self._again else []
        proven: dict[str, Any] = {
            "artifacts": {a["artifactId"]: hash_of(a) for a in [*artifacts, *self._sender.kept()]},
            "request": hash_of_message(self.message),
            "state": end.state,
            "task": self.task,
            "turn": str(self.turn),
        }
        if end.message:
            proven["message"] = hash_of_message(end.message)
        payload = canonicalize(proven)
        proof = {"turn": str(self.turn), "payload": encode64(payload)} | jws(payload, self._client.identity())
        return proof if size_of(proof) <= MAX_PROOF else None


def jws(payload: bytes, me: Identity, **more: str) -> dict[str, str]:
    """The signature of an identity, as a JWS (RFC 7515) without its payload. more is what its header has beside alg, kid
    and typ."""
    kid = f"{me.did}#{me.did.removeprefix('did:key:')}"
    protected = encode64(canonicalize({"alg": "EdDSA", "kid": kid, "typ": "JOSE"} | more))
    signed = f"{protected}.{encode64(payload)}".encode()
    return {"protected": protected, "signature": encode64(me.sign_bytes(signed))}


def size_of(value: Any) -> int:
    """The size of a value in bytes of JSON."""
    return len(canonicalize(value))


def hash_of(value: Any) -> str:
    """The base64url SHA-256 of the RFC 8785 form."""
    return encode64(hashlib.sha256(canonicalize(value)).digest())


def hash_of_message(message: Mapping[str, Any]) -> str:
    """The hash of a message, without the ids that a relay sets."""
    ids = ("contextId", "taskId", "referenceTaskIds")
    return hash_of({name: value for name, value in message.items() if name not in ids})


class Sender:
    """Sends the progress of one turn. What was sent may be lost or sent twice if the relay does not answer. So the
    sender keeps the artifacts, and then begins each of them again, which replaces what the relay has."""

    def __init__(self, post: Callable[[list[Any]], Awaitable[None]]):
        self._post = post
        self._waiting: list[tuple[dict[str, Any], int]] = []  # events and their sizes in bytes
        self._size = 0  # of what waits
        self._kept: dict[str, tuple[dict[str, Any], int]] = {}  # whole artifacts by id, and their sizes
        self._changed = asyncio.Event()  # set when events were taken, or the task has ended
        self._task: asyncio.Task[None] | None = None
        self._next = 0.0  # when the next request may be sent, on the loop's clock
        self._failed: Exception | None = None
        self._closed = False

    def kept(self) -> list[dict[str, Any]]:
        """The whole artifacts."""
        return [artifact for artifact, _ in self._kept.values()]

    async def send(self, event: dict[str, Any]) -> None:
        """Takes an event. It returns at once, or when there is room."""
        event = json.loads(canonicalize(event))  # the program may change its objects
        pieces = pieces_of(event)
        if any(size > MAX_BODY for _, size in pieces):
            raise ValueError(
                f"a part or a message has more than {MAX_BODY} bytes of JSON; send a text in several parts, and other "
                "content as a URL"
            )
        self._check()
        size = sum(size for _, size in pieces)
        if "artifactUpdate" in event:
            self._keep(event["artifactUpdate"], size)
        self._add(event, pieces, size)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())
        while self._size > MAX_BODY and not self._failed:
            self._changed.clear()
            await self._changed.wait()
        if self._failed:
            raise self._failed

    def _check(self) -> None:
        if self._failed:
            raise self._failed
        if self._closed:
            raise Refused("TURN_ENDED", "this turn has ended, so its agent can send nothing more")

    def _keep(self, update: dict[str, Any], size: int) -> None:
        artifact = update["artifact"]
        kept = self._kept.get(artifact["artifactId"]) if update.get("append") else None
        if kept is None:
            kept = artifact | {"parts": []}, 0
        kept[0]["parts"] += artifact["parts"]
        self._kept[artifact["artifactId"]] = kept[0], kept[1] + size
        if sum(size for _, size in self._kept.values()) > MAX_TASK:
            raise ValueError(f"the agent has sent more than the {MAX_TASK} bytes that a task keeps")

    def _add(self, event: dict[str, Any], pieces: list[tuple[dict[str, Any], int]], size: int) -> None:
        """Adds an event. A chunk is joined with the one before, if that still waits."""
        self._size += size
        chunk, before, waits = event.get("artifactUpdate"), None, 0
        if self._waiting:
            before, waits = self._waiting[-1][0].get("artifactUpdate"), self._waiting[-1][1]
        if (
            not chunk
            or not chunk.get("append")
            or not before
            or before.get("lastChunk")
            or before["artifact"]["artifactId"] != chunk["artifact"]["artifactId"]
            or waits + size > MAX_BODY / 2
        ):
            self._waiting += pieces
            return
        before["artifact"]["parts"] += chunk["artifact"]["parts"]
        before["lastChunk"] = chunk["lastChunk"]
        self._waiting[-1] = self._waiting[-1][0], waits + size

    async def _run(self) -> None:
        pause = Backoff()
        try:
            while self._waiting:
                await asyncio.sleep(max(self._next - monotonic(), 0))
                self._next = monotonic() + EVERY
                batch = self._take()
                try:
                    await self._post(batch)
                    pause.reset()
                    continue
                except RelayError as err:
                    if err.code == "CONFLICT":
                        raise Refused("TURN_ENDED", "the relay takes no more events of this turn") from err
                    if not err.temporary or pause.failures == ATTEMPTS - 1:
                        raise
                    delay = err.retry_after
                self._again(batch)
                await pause.wait(delay)
        except Exception as err:
            self._failed = err
        finally:
            self._changed.set()

    def _take(self) -> list[Any]:
        batch: list[Any] = []
        size = 0
        while self._waiting and len(batch) < MAX_EVENTS:
            event, more = self._waiting[0]
            size += more
            if size > MAX_BODY and batch:
                break
            self._size -= more
            batch.append(event)
            del self._waiting[0]
        self._changed.set()
        return batch

    def _again(self, batch: list[Any]) -> None:
        """Begins all artifacts again. Status messages that wait or were in the batch follow."""
        statuses = [e for e in [*batch, *(event for event, _ in self._waiting)] if "statusUpdate" in e]
        whole = [{"artifactUpdate": {"artifact": a | {"parts": [*a["parts"]]}}} for a in self.kept()]
        self._waiting = [piece for event in [*whole, *statuses] for piece in pieces_of(event)]
        self._size = sum(size for _, size in self._waiting)

    async def finish(self) -> None:
        """Sends what still waits. Nothing can be sent after it."""
        self._closed = True
        if self._task:
            await self._task
        if self._failed:
            raise self._failed

    def stop(self) -> None:
        """Ends the sender, also while a request is under way."""
        self._closed = True
        if self._task:
            self._task.cancel()


def pieces_of(event: dict[str, Any]) -> list[tuple[dict[str, Any], int]]:
    """An event in pieces that fit into a request, with their sizes. Only an artifact with several parts can be
    divided."""
    size, update = size_of(event) + 1, event.get("artifactUpdate")
    if not update or size <= MAX_BODY / 2 or len(update["artifact"]["parts"]) < 2:
        return [(event, size)]
    artifact = update["artifact"]
    half, last = len(artifact["parts"]) // 2, update.get("lastChunk", False)
    first = {"artifact": artifact | {"parts": artifact["parts"][:half]}, "append": update.get("append", False)}
    parts = {"artifactId": artifact["artifactId"], "parts": artifact["parts"][half:]}
    rest = {"artifact": parts, "append": True, "lastChunk": last}
    return [piece for each in (first, rest) for piece in pieces_of({"artifactUpdate": each})]


class BlockingOutput:
    """A2AOutput for a function that is not async."""

    def __init__(self, output: A2AOutput, run: Callable[[Coroutine[Any, Any, None]], None]):
        self._output, self._run = output, run

    def write(self, *parts: Part) -> None:
        """See A2AOutput.write."""
        self._run(self._output.write(*parts))

    def close(self, *parts: Part) -> None:
        """See A2AOutput.close."""
        self._run(self._output.close(*parts))


class BlockingTurn:
    """A2ATurn for a function that is not async: update, and the methods of an artifact, block. The other members are as
    in A2ATurn."""

    def __init__(self, turn: A2ATurn, loop: asyncio.AbstractEventLoop):
        self._turn, self._loop = turn, loop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._turn, name)

    def update(self, *parts: Part) -> None:
        """See A2ATurn.update."""
        self._wait(self._turn.update(*parts))

    def artifact(self, name: str = "", **about: Any) -> BlockingOutput:
        """See A2ATurn.artifact."""
        return BlockingOutput(self._turn.artifact(name, **about), self._wait)

    def _wait(self, sending: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(sending, self._loop).result()


Gateway = tuple[str, str]
"""The origin of a relay, for signed calls, and the URL of its A2A gateway."""


class TurnServer:
    """The functions quote and work of an agent that answers A2A callers. clients returns the clients of the relays
    whose gateways it serves. work and quote are for other intents."""

    def __init__(
        self,
        clients: Callable[[], Iterable[Client]],
        handler: Callable[[Any], Any],
        intents: str | Iterable[str],
        work: Callable[[Job], Any] | None,
        quote: Callable[[Job], Any] | None,
        price: Any,
        started: float,
    ):
        others = [intents] if isinstance(intents, str) else list(intents)
        if not callable(handler):
            raise TypeError("serve_a2a needs a function that answers a turn")
        if others and not callable(work):
            raise TypeError("other intents need a function work")
        self.intents = [INTENT, *others]
        self._clients, self._handler, self._started = clients, handler, started
        self._work, self._quote, self._price = work, quote, 0 if price is None else price

    async def quote(self, job: Job) -> Any:
        """Offers turns that come from the gateway, for nothing."""
        if job.intent == INTENT:
            await self._find(job)
            return 0
        return await called(self._quote, job) if self._quote else self._price

    async def work(self, job: Job) -> Any:
        """Answers a turn, or does other work."""
        if job.intent != INTENT:
            return await called(self._work, job)
        client, gateway = await self._find(job)
        turn = A2ATurn(client, (gateway[0], gateway[1]), job, self._started)
        try:
            await turn._load()
            try:
                end = await called(self._handler, job, turn)
            except AgentError:
                with contextlib.suppress(Exception):  # the answer says what has failed
                    await turn._sender.finish()
                raise
            await turn._sender.finish()
            return await turn._result(end)
        finally:
            turn._sender.stop()

    async def _find(self, job: Job) -> tuple[Client, Gateway]:
        """The client of the relay whose gateway has sent a turn, and that gateway. Raises AgentError, because anybody
        can send params."""
        p = job.params
        fits = (
            isinstance(p, dict)
            and all(isinstance(p.get(name), str) for name in ("task", "context", "work"))
            and all(isinstance(p.get(name), dict) for name in ("message", "caller"))
            and type(p.get("turn")) is int
            and p["turn"] > 0
        )
        if not fits:
            raise AgentError("INVALID_REQUEST", "params are not those of a turn")
        id = p["work"].rpartition("/")[2]
        for client in self._clients():
            if await client.gateway() != job.event.sender:
                continue
            gateway = await client.gateway_of("a2a")
            if re.fullmatch(r"[\w:~-]+", id, re.ASCII) and p["work"] == f"{gateway[1]}/work/{id}":
                return client, gateway  # it gets signed calls
        raise AgentError("INVALID_REQUEST", "params.work is not a URL of this relay")


async def called(function: Any, job: Job, turn: A2ATurn | None = None) -> Any:
    """Calls an async or blocking function for a job or a turn. Raises AgentError for every error of it."""
    if turn is None:
        return await Caller().call(function, job, asyncio.timeout(None))
    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(getattr(function, "__call__", None)):

        async def awaited(_: Job) -> Any:
            return await function(turn)

        return await Caller().call(awaited, job, asyncio.timeout(None))
    blocking = BlockingTurn(turn, asyncio.get_running_loop())
    return await Caller().call(lambda _: function(blocking), job, asyncio.timeout(None))
