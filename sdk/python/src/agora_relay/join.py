"""One identity, every protocol (docs/GATEWAYS.md). An agent registers its DID at the gateways of a relay. What their
clients ask for then arrives as REQUESTs from the relay's gateway, and serve takes them."""
from __future__ import annotations

import dataclasses
import datetime
import hashlib
import re
import uuid
from typing import TYPE_CHECKING, Any, Awaitable, Callable, Iterable, Mapping, Sequence

from .a2a import ATTEMPTS, jws
from .answer import MAX_SHORT
from .envelope import encode64, new_id
from .errors import AgentError, Refused, RelayError
from .jsontext import canonical_text, canonicalize
from .payloads import Job
from .state import State
from .waiting import Backoff

if TYPE_CHECKING:
    from .client import Client

HUB_INTENT = "chorus.hub.message"
"""The intent of the REQUESTs with which a relay delivers the messages of its hub."""

DAY = 86_400.0  # seconds after which join registers again, because the relay may have lost it
MAX_ADDRESS = 128  # characters of an address at the hub
MAX_SKILLS = 64
MAX_LABEL = 80
NOT_IN_NAME = re.compile(r"[^a-zA-Z0-9._-]+")
SKILL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
PROOF_URI = "https://github.com/agora-relay/agora/ext/proof/v1"


@dataclasses.dataclass
class Place:
    """Where an agent can be reached through one protocol."""

    relay: str
    """The URL of the relay."""
    protocol: str
    """hub, jobs, channel or a2a."""
    address: str
    """At the hub, NAME@HOST; in the registry of jobs, the id of the agent; for channels, the connection string of an
    inbox, which is a secret; for A2A, the base URL of the endpoint."""
    key: str = ""
    """A key with which A2A callers may call, a secret; empty: they need none."""
    skipped: list[str] = dataclasses.field(default_factory=list)
    """The intents that the protocol cannot name."""


@dataclasses.dataclass
class Joining:
    """The options of join, with their defaults."""

    manifest: Mapping[str, Any]
    agent: str
    culture: str
    credits: float
    public: bool
    listed: bool
    proofs: bool

    def sum(self, protocol: str) -> str:
        """What identifies a registration. All languages make it in the same way, so an agent can change its language."""
        m = self.manifest
        canonical = canonicalize(
            {
                "protocol": protocol,
                "agent": self.agent,
                "culture": self.culture,
                "credits": self.credits,
                "public": self.public,
                "listed": self.listed,
                "proofs": self.proofs,
                "manifest": [m.get(name, "") for name in ("id", "name", "description", "version")],
                "intents": [[intent["id"], intent.get("name", "")] for intent in m["intents"]],
            }
        )
        return encode64(hashlib.sha256(canonical).digest()[:12])


def agent_uuid(did: str) -> str:
    """The id of an agent in the registry of jobs. It depends on the DID only."""
    return str(uuid.UUID(bytes=hashlib.sha256(f"agora jobs {did}".encode()).digest()[:16], version=4))


def joining(
    manifest: Mapping[str, Any], *, name: str, culture: str, credits: float, public: bool, listed: bool, proofs: bool
) -> Joining:
    """Raises ValueError if the manifest has no intents."""
    intents = manifest.get("intents")
    if not isinstance(intents, Sequence) or not all(isinstance(i, Mapping) and i.get("id") for i in intents):
        raise ValueError("join needs a manifest with intents: {'name': 'Bob', 'intents': [{'id': 'text.upper'}]}")
    agent = name or manifest.get("name") or manifest.get("id") or "agent"
    return Joining(manifest, agent, culture, credits, public, listed, proofs)


async def join(client: Client, options: Joining, protocols: Iterable[str], state: State) -> list[Place]:
    """See Client.join. The places that were joined before an error are in its attribute places."""
    chosen = await _chosen(client, list(protocols))
    relay, places = await client.relay_did(), []
    state.bind(client.identity().did)
    for protocol in chosen:
        before, total = state.place(relay, protocol) or {}, options.sum(protocol)
        now = datetime.datetime.fromtimestamp(int(client.now()), datetime.timezone.utc)
        if before.get("sum") != total or abs((now - _instant(before["at"])).total_seconds()) >= DAY:
            try:
                made = await _JOINS[protocol](client, options, before)
            except Refused as err:
                err.args = (f"joining {protocol}: {err}",)
                raise
            made |= {"relay": client.url, "protocol": protocol, "sum": total, "at": now.strftime("%Y-%m-%dT%H:%M:%SZ")}
            state.set_place(relay, protocol, made)
            if before.get("id", made["id"]) != made["id"]:
                await _remove(client, protocol, before["id"])
            before = made
        places.append(_place(before))
    return places


async def leave(client: Client, state: State) -> list[Place]:
    """See Client.leave."""
    relay, left = await client.relay_did(), []
    state.bind(client.identity().did)
    for protocol in _JOINS:
        before = state.place(relay, protocol)
        if before is not None:
            await _remove(client, protocol, before["id"])
            state.set_place(relay, protocol, None)
            left.append(_place(before))
    return left


def _instant(text: str) -> datetime.datetime:
    return datetime.datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=datetime.timezone.utc)


def _place(kept: Mapping[str, Any]) -> Place:
    return Place(
        kept["relay"], kept["protocol"], kept["address"], kept.get("key", ""), list(kept.get("skipped") or [])
    )


async def _chosen(client: Client, names: list[str]) -> list[str]:
    for name in names:
        if name not in _JOINS:
            raise ValueError(f"there is no protocol {name!r}; the protocols are {', '.join(_JOINS)}")
        await client.gateway_of(name)
    if names:
        return [name for name in _JOINS if name in names]
    has = await client.gateway_names()
    if not has:
        raise Refused("NO_GATEWAY", "this relay has no gateways, so there is nothing to join")
    return [name for name in _JOINS if name in has]


_LEAVES: dict[str, Callable[[str], str]] = {
    "hub": lambda id: f"/agents/{id}",
    "jobs": lambda id: f"/agents/{id}",
    "channel": lambda id: f"/inboxes/{id}",
    "a2a": lambda id: f"/{id}/endpoint",
}


async def _remove(client: Client, protocol: str, id: str) -> None:
    """Removes a registration. One that does not exist any more is no error."""
    try:
        await _call(client, protocol, "DELETE", _LEAVES[protocol](id))
    except RelayError as err:
        # A relay does not say whether others have an inbox.
        if err.status not in (404, 410) and not (protocol == "channel" and err.status == 403):
            raise
    except Refused as err:
        if err.code != f"NO_{protocol.upper()}":
            raise


async def _call(
    client: Client,
    protocol: str,
    method: str,
    path: str,
    body: Any = None,
    *,
    repeatable: bool = True,
) -> dict[str, Any]:
    """A signed call to a gateway. If the call may have had an effect, it is repeated only if it is repeatable."""
    origin, gateway = await client.gateway_of(protocol)
    pause = Backoff()
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await client.call_gateway(
                origin, gateway, gateway + path, body, MAX_SHORT, method=method, sister=protocol in ("hub", "jobs")
            )
        except RelayError as err:
            no_effect = err.not_sent or 400 <= err.status < 500
            if not err.retryable or not (repeatable or no_effect) or attempt == ATTEMPTS:
                raise
            delay = err.retry_after
        await pause.wait(delay)
    raise AssertionError("unreachable")


async def _first_free(names: list[Any], register: Callable[[Any], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """Tries one name after the other, while somebody else has the name."""
    for number, name in enumerate(names, 1):
        try:
            return await register(name)
        except RelayError as err:
            if err.status != 409 or number == len(names):
                raise
    raise AssertionError("unreachable")


def _multibase(did: str) -> str:
    return did.removeprefix("did:key:")


async def _join_hub(client: Client, options: Joining, before: Mapping[str, Any]) -> dict[str, Any]:
    did = client.identity().did
    host = (await _call(client, "hub", "GET", "/.well-known/chorus.json")).get("server_name")
    if not isinstance(host, str) or not re.fullmatch(r"[a-zA-Z0-9._-]+", host):
        raise Refused("INVALID_ANSWER", "the hub's document has no valid server_name")
    name = NOT_IN_NAME.sub("-", options.agent).strip("-") or "agent"
    name = name[: max(1, MAX_ADDRESS - len(host) - len("@-123456"))]
    names = [name, f"{name}-{_multibase(did).removeprefix('z6Mk')[:6]}"]
    if str(before.get("id", "")).startswith(names[1] + "@"):
        names = names[1:]
    card = {
        "card_version": "0.3",
        "user_culture": options.culture,
        "supported_languages": [options.culture],
    }

    async def register(name: str) -> dict[str, Any]:
        address = f"{name}@{host}"
        body = {"agent_id": address, "endpoint": f"agora:{did}", "agent_card": card}
        await _call(client, "hub", "POST", "/register", body)
        return {"address": address, "id": address}

    return await _first_free(names, register)


def _skills(options: Joining) -> tuple[list[dict[str, Any]], list[str]]:
    """The skills of the agent in the registry of jobs, and the intents that cannot be skills."""
    skills: dict[str, dict[str, Any]] = {}
    skipped = []
    for intent in options.manifest["intents"]:
        id = str(intent["id"])
        if id.startswith(("chorus.", "a2a.")):
            continue
        if not SKILL.fullmatch(id) or id in skills or len(skills) == MAX_SKILLS:
            skipped.append(id)
            continue
        skills[id] = {
            "skill_name": id,
            "description": intent.get("name") or id,
            "cost_per_call": options.credits,
            "input_schema": {},
            "output_schema": {},
        }
    return list(skills.values()), skipped


async def _join_jobs(client: Client, options: Joining, before: Mapping[str, Any]) -> dict[str, Any]:
    skills, skipped = _skills(options)
    if not skills:
        raise Refused("INVALID_REQUEST", "none of the agent's intents can be the name of a skill")
    did = client.identity().did
    form = {"agent_name": options.agent, "owner_id": did, "api_endpoint": f"agora:{did}", "skills": skills}

    async def register(id: str | None) -> dict[str, Any]:
        body = form | ({"agent_id": id} if id else {})
        made = (await _call(client, "jobs", "POST", "/register", body, repeatable=id is not None)).get("agent_id")
        if not isinstance(made, str) or not made:
            raise Refused("INVALID_ANSWER", "the registry's answer has no agent_id")
        return {"address": made} | ({"skipped": skipped} if skipped else {}) | {"id": made}

    return await _first_free([before.get("id") or agent_uuid(did), None], register)


async def _join_channel(client: Client, options: Joining, before: Mapping[str, Any]) -> dict[str, Any]:
    """Makes an inbox, unless the agent still has the earlier one."""
    if before:
        inboxes = (await _call(client, "channel", "GET", "/inboxes")).get("inboxes")
        if isinstance(inboxes, list) and any(
            isinstance(inbox, dict) and inbox.get("id") == before["id"] for inbox in inboxes
        ):
            return dict(before)
    body = {"label": options.agent[:MAX_LABEL]}
    answer = await _call(client, "channel", "POST", "/inboxes", body, repeatable=False)
    _, gateway = await client.gateway_of("channel")
    inbox, url = answer.get("inbox"), answer.get("url")
    id = inbox.get("id") if isinstance(inbox, dict) and inbox.get("owner") == client.identity().did else None
    if not id or not isinstance(url, str) or not url.startswith(gateway + "/inbox/"):
        raise Refused("INVALID_ANSWER", "the relay's answer is about an inbox of another owner or gateway")
    return {"address": url, "id": id}


async def _join_a2a(client: Client, options: Joining, before: Mapping[str, Any]) -> dict[str, Any]:
    _, gateway = await client.gateway_of("a2a")
    id = _multibase(client.identity().did)
    settings = {
        "card": _signed(client, f"{gateway}/{id}", _card(client, f"{gateway}/{id}", options)),
        "access": "public" if options.public else "keys",
        "mode": "message",
        "listed": options.listed,
    }
    await _call(client, "a2a", "PUT", f"/{id}/endpoint", settings)
    place = {"address": f"{gateway}/{id}/", "id": id}
    if options.public:
        return place
    key = before.get("key")
    if not key:
        body = {"name": new_id("join", client.now())}
        key = (await _call(client, "a2a", "POST", f"/{id}/keys", body, repeatable=False)).get("key")
    return place | {"key": key}


def _card(client: Client, at: str, options: Joining) -> dict[str, Any]:
    """The card of an agent (A2A §2). It has no empty members, because SDKs leave them out."""
    m, modes = options.manifest, ["text/plain", "application/json"]
    name = m.get("name") or m.get("id") or "agent"
    proof = {
        "uri": PROOF_URI,
        "description": "signs request and answer of each turn",
        "params": {"did": client.identity().did},
    }
    card: dict[str, Any] = {
        "name": name,
        "description": m.get("description") or name,
        "version": m.get("version") or "1",
        "supportedInterfaces": [
            {"url": f"{at}/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"},
            {"url": at, "protocolBinding": "HTTP+JSON", "protocolVersion": "1.0"},
        ],
        "capabilities": {"streaming": True, "pushNotifications": True}
        | ({"extensions": [proof]} if options.proofs else {}),
        "defaultInputModes": modes,
        "defaultOutputModes": modes,
        "skills": [
            {
                "id": intent["id"],
                "name": intent.get("name") or intent["id"],
                "description": intent.get("name") or intent["id"],
                "tags": [tag for tag in intent["id"].split(".") if tag],
            }
            for intent in m["intents"]
        ],
    }
    if not options.public:
        card["securitySchemes"] = {"key": {"httpAuthSecurityScheme": {"scheme": "Bearer"}}}
        card["securityRequirements"] = [{"schemes": {"key": {"list": ["a2a"]}}}]
    return card


def _signed(client: Client, at: str, card: dict[str, Any]) -> dict[str, Any]:
    """The card with the signatures that all SDKs need: Python's json escapes what is not ASCII."""
    plain = canonical_text(card)
    escaped = re.sub(
        "[^\0-~]",
        lambda found: "".join(f"\\u{unit:04x}" for unit in _units(found[0])),
        plain,
    )
    me = client.identity()
    texts = dict.fromkeys((plain, escaped))
    return card | {"signatures": [jws(text.encode(), me, jku=f"{at}/jwks.json") for text in texts]}


def _units(char: str) -> Iterable[int]:
    text = char.encode("utf-16-be")
    return (int.from_bytes(text[i : i + 2], "big") for i in range(0, len(text), 2))


_JOINS: dict[str, Callable[[Client, Joining, Mapping[str, Any]], Awaitable[dict[str, Any]]]] = {
    "hub": _join_hub,
    "jobs": _join_jobs,
    "channel": _join_channel,
    "a2a": _join_a2a,
}


def hub_message(job: Job) -> dict[str, Any]:
    """The message of the hub in a job with HUB_INTENT, which serve takes only from the relay's gateway: agent_id, id,
    trace_id, timestamp and envelope, which has sender_id and original_text. Its sender may be anybody. Raises AgentError."""
    message = job.params if isinstance(job.params, dict) else {}
    said = message.get("envelope")
    if (
        job.intent != HUB_INTENT
        or not isinstance(said, dict)
        or not all(isinstance(said.get(name), str) and said[name] for name in ("sender_id", "original_text"))
    ):
        raise AgentError("INVALID_REQUEST", "the message needs envelope.sender_id and envelope.original_text")
    return message


def hub_output(text: str, *, culture: str = "", context: str = "") -> dict[str, Any]:
    """The output of a RESULT that answers a message of the hub with a text of 1 to 10,000 UTF-16 code units."""
    reply = {"original_text": text, "sender_culture": culture, "cultural_context": context}
    return {"reply": {name: value for name, value in reply.items() if value}}
