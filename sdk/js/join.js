// One identity, every protocol (BRIDGE §4). An agent registers its DID at the gateways of a relay. What their clients
// ask for then arrives as REQUESTs from the relay's gateway, and serve takes them.
import { canonicalize, canonicalText, encode64, newId, Refused, sha256 } from './agora.js';
import { jws, patiently } from './a2a.js';
import { Memory } from './memory.js';
import { isObject } from './reading.js';

const DAY = 86_400_000; // milliseconds after which join registers again, because the relay may have lost it
const MAX_ADDRESS = 128, MAX_SKILLS = 64, MAX_LABEL = 80; // characters of an address, skills, characters of a label
const NOT_IN_NAME = /[^a-zA-Z0-9._-]+/g, SKILL = /^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$/;
const PROOF_URI = 'https://github.com/agora-relay/agora/ext/proof/v1';

const multibaseOf = (did) => did.slice('did:key:'.length);
const endpointOf = (did) => `agora:${did}`;
const isFromGateways = (intent) => intent.startsWith('chorus.') || intent.startsWith('a2a.');

/** The id of an agent in the registry of jobs. It depends on the DID only. */
export async function agentUUID(did) {
  const sum = (await sha256(new TextEncoder().encode(`agora jobs ${did}`))).slice(0, 16);
  sum[6] = sum[6] & 0x0f | 0x40;
  sum[8] = sum[8] & 0x3f | 0x80; // the form of a random UUID (RFC 9562 §5.4)
  const hex = [...sum].map((byte) => byte.toString(16).padStart(2, '0')).join('');
  return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-');
}

// The options with their defaults. Throws TypeError.
function optionsOf({ protocols = [], manifest, name = '', culture = '', credits = 0, isPublic = false, listed = false,
  proofs = false }) {
  if (!isObject(manifest) || !Array.isArray(manifest.intents) || manifest.intents.some(({ id }) => !id)) {
    throw new TypeError("join needs a manifest with intents: { name: 'Bob', intents: [{ id: 'text.upper' }] }");
  }
  const agent = name || manifest.name || manifest.id || 'agent';
  return { protocols, manifest, agent, culture: culture || 'en', credits, isPublic, listed, proofs };
}

/** What identifies a registration. All languages make it in the same way, so an agent can change its language. */
export async function sumOf(protocol, { manifest, agent, culture, credits, isPublic, listed, proofs }) {
  const { id = '', name = '', description = '', version = '' } = manifest;
  const intents = manifest.intents.map((intent) => [intent.id, intent.name ?? '']);
  return encode64((await sha256(canonicalize({ protocol, agent, culture, credits, public: isPublic, listed, proofs,
    manifest: [id, name, description, version], intents }))).subarray(0, 12));
}

// How an agent joins each gateway, in this order, and the path that leaves it. join returns the new place.
const PROTOCOLS = [
  { name: 'hub', join: joinHub, path: (id) => `/agents/${id}` },
  { name: 'jobs', join: joinJobs, path: (id) => `/agents/${id}` },
  { name: 'channel', join: joinChannel, path: (id) => `/inboxes/${encodeURIComponent(id)}` },
  { name: 'a2a', join: joinA2A, path: (id) => `/${id}/endpoint` },
];

// The protocols with these names, or those of the gateways that the relay has.
async function chosen(client, names, signal) {
  const known = PROTOCOLS.map(({ name }) => name), unknown = names.find((name) => !known.includes(name));
  if (unknown !== undefined) {
    throw new TypeError(`there is no protocol "${unknown}"; the protocols are ${known.join(', ')}`);
  }
  if (names.length > 0) {
    for (const name of names) await client.gatewayOf(name, { signal });
    return PROTOCOLS.filter(({ name }) => names.includes(name));
  }
  const has = await client.gatewayNames({ signal }), all = PROTOCOLS.filter(({ name }) => has.includes(name));
  if (all.length > 0) return all;
  throw new Refused('NO_GATEWAY', 'this relay has no gateways, so there is nothing to join');
}

/** See Client.join. */
export async function join(client, { state = new Memory(), signal, ...given } = {}) {
  const options = optionsOf(given), { me } = client, places = [];
  if (!me) throw new Refused('INVALID_REQUEST', 'joining needs an identity: new Client(url, { me })');
  const all = await chosen(client, [options.protocols].flat(), signal), relay = await client.relayDid({ signal });
  await state.load(me.did);
  for (const protocol of all) {
    const { name } = protocol, before = state.place(relay, name) ?? {}, sum = await sumOf(name, options);
    const now = Math.floor(client.now() / 1000) * 1000;
    if (before.sum !== sum || !(Math.abs(now - Date.parse(before.at)) < DAY)) {
      const at = new Date(now).toISOString().replace('.000Z', 'Z');
      let made;
      try { made = await protocol.join(client, options, before, signal); } catch (err) {
        throw Object.assign(err, { message: `joining ${name}: ${err.message}`, places });
      }
      await state.setPlace(relay, name, { ...made, relay: client.url, protocol: name, sum, at });
    }
    const { id, sum: _, at: __, ...place } = state.place(relay, name);
    places.push(place);
    if (before.id && before.id !== id) await remove(client, protocol, before.id, signal);
  }
  return places;
}

/** See Client.leave. */
export async function leave(client, state, { signal } = {}) {
  const relay = await client.relayDid({ signal }), left = [];
  await state.load(client.me.did);
  for (const protocol of PROTOCOLS) {
    const { name } = protocol, before = state.place(relay, name);
    if (!before) continue;
    await remove(client, protocol, before.id, signal);
    await state.setPlace(relay, name, null);
    const { id, sum, at, ...place } = before;
    left.push(place);
  }
  return left;
}

/** Does the same at each relay. Throws AggregateError if some fail; its places has the places of the others. */
export async function atEach(clients, act) {
  const places = [], errors = [];
  for (const client of clients) {
    try { places.push(...await act(client)); } catch (err) {
      places.push(...err.places ?? []);
      errors.push(Object.assign(err, { relay: client.url }));
    }
  }
  if (errors.length === 0) return places;
  const why = errors.map((err) => `${err.relay}: ${err.message}`).join('\n');
  throw Object.assign(errors.length === 1 ? errors[0] : new AggregateError(errors, why), { places });
}

// Removes a registration. It is no error if it does not exist any more.
async function remove(client, { name, path }, id, signal) {
  try { await call(client, name, path(id), { method: 'DELETE', signal }); } catch (err) {
    const isGone = err.status === 404 || err.status === 410 || err.code === `NO_${name.toUpperCase()}` ||
      name === 'channel' && err.status === 403; // this is also the answer if there is no such inbox
    if (!isGone) throw Object.assign(err, { message: `leaving ${name}: ${err.message}` });
  }
}

// A signed call to the gateway with this name. If it is not repeatable and may have had an effect, it is not repeated.
async function call(client, name, path, { repeatable = true, signal, ...options } = {}) {
  const { origin, url } = await client.gatewayOf(name, { signal }), sister = name === 'hub' || name === 'jobs';
  const again = (err) => repeatable || err.noEffect;
  try {
    return await patiently(() => client.call(origin, url + path, { ...options, sister, signal }), signal, again);
  } catch (err) {
    if (repeatable || err.noEffect !== false) throw err;
    throw Object.assign(err, { message: 'it is unknown whether the relay has done this; list what it has before you ' +
      `try again: ${err.message}` });
  }
}

async function joinHub(client, { agent, culture }, before, signal) {
  const { me: { did } } = client;
  const about = await call(client, 'hub', '/.well-known/chorus.json', { signal }), host = about.server_name;
  if (typeof host !== 'string' || !/^[a-zA-Z0-9._-]+$/.test(host)) {
    throw new Refused('INVALID_ANSWER', "the hub's document has no valid server_name");
  }
  const name = (agent.replace(NOT_IN_NAME, '-').replace(/^-+|-+$/g, '') || 'agent')
    .slice(0, Math.max(1, MAX_ADDRESS - host.length - '@-123456'.length));
  const names = [name, `${name}-${multibaseOf(did).replace(/^z6Mk/, '').slice(0, 6)}`];
  if (before.id?.startsWith(`${names[1]}@`)) names.shift();
  const card = { card_version: '0.3', user_culture: culture, supported_languages: [culture] };
  return firstFree(names, async (each) => {
    const address = `${each}@${host}`;
    const body = { agent_id: address, endpoint: endpointOf(did), agent_card: card };
    await call(client, 'hub', '/register', { signal, body });
    return { address, id: address };
  });
}

// Tries one name after the other, while somebody else has the name.
async function firstFree(names, register) {
  for (const [n, name] of names.entries()) {
    try { return await register(name); } catch (err) {
      if (err.status !== 409 || n === names.length - 1) throw err;
    }
  }
}

// The skills of the agent in the registry of jobs, and the intents that cannot be skills.
function skillsOf({ manifest, credits }) {
  const skills = new Map(), skipped = [];
  for (const { id, name } of manifest.intents) {
    if (isFromGateways(id)) continue;
    if (!SKILL.test(id) || skills.has(id) || skills.size === MAX_SKILLS) skipped.push(id);
    else {
      skills.set(id, { skill_name: id, description: name || id, cost_per_call: credits, input_schema: {},
        output_schema: {} });
    }
  }
  return { skills: [...skills.values()], skipped };
}

async function joinJobs(client, options, before, signal) {
  const { skills, skipped } = skillsOf(options), { me: { did } } = client;
  if (skills.length === 0) {
    throw new Refused('INVALID_REQUEST', "none of the agent's intents can be the name of a skill");
  }
  const form = { agent_name: options.agent, owner_id: did, api_endpoint: endpointOf(did), skills };
  return firstFree([before.id ?? await agentUUID(did), undefined], async (id) => {
    const body = id ? { ...form, agent_id: id } : form;
    const { agent_id: made } = await call(client, 'jobs', '/register', { signal, body, repeatable: Boolean(id) });
    if (typeof made !== 'string' || !made) {
      throw new Refused('INVALID_ANSWER', "the registry's answer has no agent_id");
    }
    return { address: made, ...skipped.length > 0 && { skipped }, id: made };
  });
}

// Makes an inbox, unless the agent still has the earlier one.
async function joinChannel(client, { agent }, before, signal) {
  if (before.id) {
    const { inboxes } = await call(client, 'channel', '/inboxes', { signal });
    if (Array.isArray(inboxes) && inboxes.some((inbox) => inbox?.id === before.id)) return before;
  }
  const label = [...agent].slice(0, MAX_LABEL).join('');
  const how = { signal, body: { label }, status: 201, repeatable: false };
  const { inbox, url } = await call(client, 'channel', '/inboxes', how);
  const gateway = await client.gatewayOf('channel', { signal });
  const fits = inbox?.id && inbox.owner === client.me.did && String(url).startsWith(`${gateway.url}/inbox/`);
  if (!fits) throw new Refused('INVALID_ANSWER', "the relay's answer is about an inbox of another owner or gateway");
  return { address: url, id: inbox.id };
}

async function joinA2A(client, options, before, signal) {
  const { url } = await client.gatewayOf('a2a', { signal }), { me } = client, id = multibaseOf(me.did);
  const { isPublic, listed } = options, access = isPublic ? 'public' : 'keys';
  const card = await signedCard(cardOf(`${url}/${id}`, options, me.did), `${url}/${id}`, me);
  const body = { card, access, mode: 'message', listed };
  await call(client, 'a2a', `/${id}/endpoint`, { method: 'PUT', signal, body });
  const place = { address: `${url}/${id}/`, id };
  if (isPublic || before.key) return isPublic ? place : { ...place, key: before.key };
  const named = { name: newId('join', client.now()) };
  const { key } = await call(client, 'a2a', `/${id}/keys`, { signal, body: named, status: 201, repeatable: false });
  return { ...place, key };
}

// The card of an agent (A2A §2). It has no empty members, because SDKs leave them out.
function cardOf(at, { manifest, isPublic, proofs }, did) {
  const modes = ['text/plain', 'application/json'], name = manifest.name || manifest.id || 'agent';
  const extensions = [{ uri: PROOF_URI, description: 'signs request and answer of each turn', params: { did } }];
  return {
    name, description: manifest.description || name, version: manifest.version || '1',
    supportedInterfaces: [{ url: `${at}/rpc`, protocolBinding: 'JSONRPC', protocolVersion: '1.0' },
      { url: at, protocolBinding: 'HTTP+JSON', protocolVersion: '1.0' }],
    capabilities: { streaming: true, pushNotifications: true, ...proofs && { extensions } },
    defaultInputModes: modes, defaultOutputModes: modes,
    skills: manifest.intents.map(({ id, name: title }) =>
      ({ id, name: title || id, description: title || id, tags: id.split('.').filter(Boolean) })),
    ...!isPublic && { securitySchemes: { key: { httpAuthSecurityScheme: { scheme: 'Bearer' } } },
      securityRequirements: [{ schemes: { key: { list: ['a2a'] } } }] },
  };
}

// The card with the signatures that all SDKs need: Python's json escapes what is not ASCII.
async function signedCard(card, at, me) {
  const plain = canonicalText(card);
  const escaped = plain.replace(/[^\0-~]/g, (unit) => `\\u${unit.charCodeAt(0).toString(16).padStart(4, '0')}`);
  const bytes = [...new Set([plain, escaped])].map((text) => new TextEncoder().encode(text));
  return { ...card, signatures: await Promise.all(bytes.map((each) => jws(each, me, { jku: `${at}/jwks.json` }))) };
}
