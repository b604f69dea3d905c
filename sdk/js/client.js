// A client of a relay that runs both sides of a thread: request asks for a service, serve offers services. It does not
// trust the relay: it verifies every envelope, and checks that the envelope was asked for, before it uses it. What only
// the relay claims, such as the state of a thread, decides what the client asks next. client.d.ts documents everything.
import { backoff, isHome, isId, newId, keyOf, pause, printable, Refused, Relay, RelayError, threadOf, UnknownOutcome }
  from './agora.js';
import { serveA2A } from './a2a.js';
import { ask } from './ask.js';
import { Call, payloadOf, requestIn, resumed } from './call.js';
import { join, leave } from './join.js';
import { hashOf } from './links.js';
import { Endless } from './errors.js';
import { outlook } from './outlook.js';
import { hubMessage, origin } from './origin.js';
import { Recent } from './queue.js';
import { postAll } from './postall.js';
import { verifyProof } from './proof.js';
import { decider, isRule, proved } from './proving.js';
import { checker, isClosed, isObject, malformed, nameOf, pages, wasSealed } from './reading.js';
import { serve } from './serve.js';

const PATIENCE = 30_000; // milliseconds that a read waits for a relay that limits it
const HOUR = 3_600_000; // how long the document of a home counts (RELAYS R-4)
const MAX_IDLE = 100, MAX_PAGES = 100_000; // pages of the directory in a row without a new agent; in total
const GATEWAYS = { hub: 'hub', jobs: 'registry of jobs', channel: 'channel gateway', a2a: 'A2A gateway' };
const DEFAULT_RATE = { perSecond: 20, burst: 40 }; // §5

/** A new id for a thread. */
export const newThread = () => newId('thread');

/** By default a line of the log goes to the console. Errors of this package need no stack. */
export function toConsole(text, err) {
  if (err === undefined) console.warn(`agora: ${text}`);
  else if (err instanceof Error && 'retryable' in err) console.warn(`agora: ${text}: ${printable(err.message)}`);
  else console.warn(`agora: ${text}:`, err);
}

export class Client extends Relay {
  #rate = DEFAULT_RATE;
  #did;
  #proves;
  #watch;
  // { did, home, gateway, gateways, url, at }: who the relay is, by the document that was read last, at the time at
  #known;

  // watch comes from a Network: see proving.js.
  constructor(url, { log = toConsole, proofs = 'prefer', watch, ...options } = {}) {
    super(url, options);
    if (!isRule(proofs)) throw new TypeError("proofs must be 'off', 'prefer' or 'required'");
    Object.assign(this, { log, proofs });
    this.#watch = watch;
  }

  /** Whether a Network uses this client. */
  get inNetwork() { return this.#watch !== undefined; }

  get postRate() { return this.#rate; }

  async about(options) {
    const document = await super.about(options), rate = document.limits?.rates?.postsPerAgent;
    const isRate = isWithin(rate?.perSecond, 0.01, 1e6) && isWithin(rate.burst, 1, 1e6);
    this.#rate = isRate ? { perSecond: rate.perSecond, burst: rate.burst } : DEFAULT_RATE;
    const has = (feature) => Array.isArray(document.features) && document.features.includes(feature);
    const { did, url } = document, self = { did, url };
    this.#proves = has('proofs');
    const home = has('home') && isHome(self) ? self : undefined;
    const gateways = document.gateways ?? {}, at = performance.now();
    this.#known = { did, home, gateway: gateways.did, gateways, url, at };
    return document;
  }

  async relayDid({ signal } = {}) {
    if (!this.#did) {
      const { did } = await this.#patiently(() => this.about({ signal }), signal);
      keyOf(did);
      this.#did = did;
    }
    return this.#did;
  }

  /** What the last call of home has returned. */
  get known() { return this.#known?.home; }

  async home({ signal } = {}) {
    try { return (await this.#who(signal)).home; } catch (err) {
      if (err.status !== 404) throw err;
      return undefined; // the relay has no document
    }
  }

  /** The DID of the relay's gateways, by a document that is not older than an hour; undefined: it has none. */
  async gateway({ signal } = {}) { return (await this.#who(signal)).gateway; }

  /** The names of the relay's gateways, by the same document. */
  async gatewayNames({ signal } = {}) {
    const { gateways } = await this.#who(signal);
    return Object.keys(GATEWAYS).filter((name) => typeof gateways[name]?.url === 'string');
  }

  async gatewayOf(name, { signal } = {}) {
    const { gateways, url } = await this.#who(signal), base = gateways[name]?.url;
    if (typeof base !== 'string' || typeof url !== 'string') {
      throw new Refused(`NO_${name.toUpperCase()}`,
        `this relay has no ${GATEWAYS[name]}; its operator can start it with agora serve --${name}`);
    }
    if (!this.moveTo(url)) return { origin: url, url: base.replace(/\/+$/, '') };
    this.#known = undefined; // another process may listen there
    return this.gatewayOf(name, { signal });
  }

  join(options) { return join(this, options); }

  leave(state, options) { return leave(this, state, options); }

  hubMessage(job, options) { return hubMessage(this, job, options); }

  origin(request, options) { return origin(this, request, options); }

  async #who(signal) {
    const isFresh = this.#known && performance.now() - this.#known.at < HOUR;
    if (!isFresh) await this.#patiently(() => this.about({ signal }), signal);
    return this.#known;
  }

  async assureHome({ meta: { home } = {} }, { signal } = {}) {
    if (!home) return;
    let did;
    try { ({ did } = await this.#who(signal)); } catch (err) {
      throw err instanceof RelayError ? Object.assign(err, { notSent: true }) : err;
    }
    if (did === home.did) return;
    this.#known = undefined; // the home may come back to its address
    throw new RelayError('OTHER_RELAY', `nothing was sent, because another relay answers at ${this.url}: the home of ` +
      `this thread is ${printable(home.did)}. Check the address`, { notSent: true, retryable: false });
  }

  async proves({ signal } = {}) {
    try {
      if (this.#proves === undefined) await this.#patiently(() => this.about({ signal }), signal);
    } catch (err) {
      if (err.status !== 404) throw err;
      this.#proves = false; // the relay has no document
    }
    return this.#proves;
  }

  async proof(message, { signal } = {}) {
    const path = `/proofs?${new URLSearchParams({ sender: message.sender.id, id: message.id })}`;
    let text;
    try { text = await this.#patiently(() => this.get(path, { signal }), signal); } catch (err) {
      if (err.code !== 'INVALID_ANSWER' || err.status !== 200) throw err;
      throw new Refused('INVALID_PROOF', 'the answer of the relay is not a proof');
    }
    return { ...await this.check(text, message, await decider(this, message, { signal })), text };
  }

  // Verifies a proof, and tells a Network about it.
  async check(text, message, relay) {
    try {
      const verified = await verifyProof(text, { message, relay });
      await this.#watch?.valid(relay, text);
      return verified;
    } catch (err) {
      await this.#watch?.invalid(relay, text, message);
      throw err;
    }
  }

  async postEnvelope(e, options = {}) { return proved(this, e, await super.postEnvelope(e, options), options); }

  postAll(envelopes, options) { return postAll(this, envelopes, options); }

  async thread(id, client, { signal } = {}) {
    const { answer, log } = await this.#patiently(async () => {
      const { take, log } = checker(this, (e) => threadOf(e) === id);
      return { answer: await super.thread(id, client, { signal, take }), log };
    }, signal);
    const thread = recordOf(answer.thread);
    if (thread.id !== id || client && thread.client !== client) throw malformed('the answer is about another thread');
    if (!Array.isArray(answer.events)) throw malformed('the answer has no list of events');
    log();
    return { ...answer, thread };
  }

  async agents(query, { signal } = {}) {
    const { answer, log } = await this.#patiently(async () => {
      const { take, log } = checker(this, (e, row) => e.type === 'MANIFEST' && e.sender.id === row.id,
        { find: (row) => row?.envelope, make: (envelope, row) => agentOf(row, { envelope }) });
      return { answer: await super.agents(query, { signal, take }), log };
    }, signal), { agents, cursor } = answer;
    if (!Array.isArray(agents) || cursor !== undefined && !isCursor(cursor)) {
      throw malformed('the answer is not a page of agents');
    }
    log();
    return answer;
  }

  async agent(did, { signal } = {}) {
    const path = `/agents/${encodeURIComponent(did)}`;
    const { agent, log } = await this.#patiently(async () => {
      const { take, log } = checker(this, (e) => e.type === 'MANIFEST' && e.sender.id === did);
      return { ...await this.get(path, { signal, take }), log };
    }, signal);
    if (!isObject(agent) || agent.id !== did) throw malformed('the answer is about another agent');
    if (!Array.isArray(agent.manifests)) throw malformed('the answer has no list of manifests');
    log();
    return agentOf(agent, { manifests: agent.manifests });
  }

  async *directory({ cursor, ...query } = {}, { signal } = {}) {
    const seen = new Recent(1 << 16);
    for (let idle = 1, n = 0; n < MAX_PAGES; n++, idle++) {
      const page = await this.agents({ ...query, cursor }, { signal });
      for (const agent of page.agents) {
        if (seen.add(nameOf(agent.envelope))) idle = 0;
        yield agent;
      }
      if (page.hasMore !== true) return;
      if (!page.cursor || page.cursor === cursor || idle === MAX_IDLE) break;
      cursor = page.cursor;
    }
    throw new Endless();
  }

  async *follow(filter = {}, { cursor: store, from, limit, signal } = {}) {
    for await (const { events, cursor, moved } of pages(this, { filter, store, from, limit, signal })) {
      for (const e of events) {
        const isUnreadable = isClosed(e) && e.recipient?.id === this.me?.did;
        if (isUnreadable) this.log(`a sealed message of ${e.sender.id} cannot be opened, and was left out`);
        else yield e;
      }
      if (moved || events.length > 0) await store?.save(cursor);
    }
  }

  async request(intent, params, options = {}) {
    const { to, seal = false, allowPlain, ttl, signal } = options;
    this.#checkCaller(options.thread);
    const isNew = options.thread === undefined, thread = options.thread ?? newThread();
    const payload = { request_id: thread, ...payloadOf(intent, params, options, isNew && this.now()) };
    const limits = payload.constraints;
    const known = { thread, requestId: thread, recipient: to, intent, constraints: limits ?? {} };
    const home = await this.home({ signal }).catch(() => signal?.throwIfAborted()); // the post says what is wrong
    const call = new Call(this, { ...known, seal, allowPlain, home });
    const signed = async (e) => call.continueAs({ request: await hashOf(e) });
    try { await this.post('REQUEST', payload, { to, thread, ttl, seal, home }, { signal, signed }); } catch (err) {
      if (err instanceof UnknownOutcome) throw Object.assign(err, { call });
      if (err.code !== 'INVALID_TRANSITION' || options.thread === undefined) throw err;
      return this.#continued(call, { intent, limits: limits ?? {}, allowPlain, signal }, err);
    }
    return call;
  }

  outlook(intent, options) { return outlook(this, intent, options); }

  ask(intent, params, options) { return ask(this, intent, params, options); }

  // The call of a thread that an earlier request has opened. refused is the relay's error for the present REQUEST. It
  // is thrown if the thread was opened with other options.
  async #continued(wanted, { intent, limits, allowPlain, signal }, refused) {
    const { thread: id, recipient: to, seal } = wanted, record = await this.thread(id, this.me.did, { signal });
    const request = requestIn(record); // another program may have opened the thread with another request_id
    const call = await resumed(this, record, { requestId: request?.payload.request_id ?? id, to });
    if (call.recipient !== to || request && (request.payload.intent !== intent || wasSealed(request) !== seal)) {
      throw refused;
    }
    const isReadable = request && !isClosed(request); // else the relay does not show it any more, or it is sealed
    call.continueAs({ limits: isReadable ? undefined : limits, seal: call.seal || !request && seal, allowPlain });
    return call;
  }

  async resume(thread, { requestId, to, allowPlain, signal } = {}) {
    this.#checkCaller(thread ?? '');
    const call = await resumed(this, await this.thread(thread, this.me.did, { signal }), { requestId, to });
    call.continueAs({ allowPlain });
    return call;
  }

  // Refuses what request and resume cannot work with, before anything is sent.
  #checkCaller(thread) {
    if (!this.me) throw new Refused('INVALID_REQUEST', 'a request needs an identity: new Client(url, { me })');
    if (thread !== undefined && !isId(thread)) {
      throw new TypeError('thread must be the id of a thread: 1 to 128 letters, digits and . _ : ~ -, and no newline');
    }
  }

  serve(intents, options) { return serve(this, intents, options); }

  serveA2A(handler, options) { return serveA2A(this, [this], handler, options); }

  // Calls read, and again if the relay limits reads and says that it will answer soon.
  async #patiently(read, signal) {
    const end = performance.now() + PATIENCE;
    for (let failures = 0; ; failures++) {
      try { return await read(); } catch (err) {
        if (err?.status !== 429 || !err.retryAfter || performance.now() + err.retryAfter > end) throw err;
        await pause(backoff(failures, err.retryAfter), signal);
      }
    }
  }
}

// A relay may send a value of any type. It must be checked before it is compared or converted: {"valueOf":1} throws.
const isWithin = (v, min, max) => typeof v === 'number' && v >= min && v <= max;
const isTime = (v) => typeof v === 'string' && !Number.isNaN(Date.parse(v));
const isCursor = (v) => typeof v === 'string' && v.length <= 1024;
const isOptionalText = (v) => v === undefined || typeof v === 'string';

// What the relay says about an agent, with the verified part.
const agentOf = ({ id, online, lastSeen }, manifests) =>
  ({ id, online: online === true, lastSeen: typeof lastSeen === 'string' ? lastSeen : undefined, ...manifests });

// A copy of the relay's record of a thread, whose members have the types that they must have.
function recordOf(record) {
  const isList = (v) => Array.isArray(v) && v.every(isObject);
  const fits = isObject(record) && typeof record.state === 'string' && typeof record.client === 'string' &&
    isList(record.offers) && isList(record.transitions) && isOptionalText(record.agent) &&
    isOptionalText(record.requestId) && (record.deadline === undefined || isTime(record.deadline));
  if (!fits) throw malformed('the answer is not the record of a thread');
  return { ...record };
}
