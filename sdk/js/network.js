// A client of several relays with one identity, which trusts none of them (RELAYS §3). A thread is decided by one of
// them, its home. If the home is silent, the job continues at another relay.
import { backoff, canonicalize, checkEnvelope, encode64, instant, isHome, newId, pause, protocol, Refused, sha256,
  sign } from './agora.js';
import { serveA2A } from './a2a.js';
import { ask } from './ask.js';
import { atEach, join, leave } from './join.js';
import { expiryOf } from './links.js';
import { Client, toConsole } from './client.js';
import { isPermanent } from './errors.js';
import { Memory } from './memory.js';
import { openCall, resumeCall } from './netcall.js';
import { outlook } from './outlook.js';
import { verifyEvidence, verifyProof } from './proof.js';
import { Recent } from './queue.js';
import { hubMessage, ofAny, origin } from './origin.js';
import { linked, nameOf, pages, signedForm } from './reading.js';
import { serve } from './serve.js';

const MAX_RELAYS = 8, MAX_LISTED = 4; // relays of a network, and in a manifest
const MAX_HOSTS = 16, HOUR = 3_600_000; // new hosts in an hour

// The name of an event in the memory of handled ones.
const markOf = async (e) => encode64((await sha256(canonicalize(signedForm(e)))).subarray(0, 16));

const newest = (a, b) => instant(a.ts) < instant(b.ts) ? 1 : -1;

export class Network {
  #given;
  #found = new Map(); // clients of discovered relays, by their DIDs
  #hosts = []; // when new hosts were contacted
  #discover;
  #options;
  #claimed = new Set(); // the marks of events that are being handled
  #proofs = new Map(); // the last valid proof of each relay
  #wrong = new Map(); // the last proof of each relay, if it does not hold
  #resting = new Set(); // controllers of those that wait to post the manifest again
  #manifest; // the last one that was signed

  constructor(relays, { state = new Memory(), discover, silence = 30, offerWait = 60, moved = () => {}, log = toConsole,
    ...options } = {}) {
    if (!Array.isArray(relays) || relays.length < 1 || relays.length > MAX_RELAYS) {
      throw new TypeError(`a network has a list of 1 to ${MAX_RELAYS} URLs of relays`);
    }
    if (!options.me) throw new TypeError('a network needs an identity: new Network(urls, { me })');
    if (discover && typeof discover !== 'function') {
      throw new TypeError('to discover relays, pass discover: dialler, from agora-relay/node; browsers cannot check ' +
        'addresses');
    }
    const watch = { valid: (...proof) => this.#compare(...proof), invalid: (...proof) => this.#doubt(...proof) };
    this.#options = { ...options, log, watch };
    this.#discover = discover;
    this.#given = relays.map((url) => new Client(url, this.#options));
    Object.assign(this, { me: options.me, state, log, moved, silence: silence * 1000, offerWait: offerWait * 1000 });
  }

  now() { return this.#given[0].now(); }

  /** The clients of the relays that were given. */
  get clients() { return [...this.#given]; }

  // --- Relays

  // Asks all given relays at the same time. Returns what those that answer return; throws if none does.
  async #all(act, signal) {
    const asking = this.#given.map((client) => this.#within(signal, (ours) => act(client, ours)));
    const found = await Promise.allSettled(asking);
    signal?.throwIfAborted();
    const values = found.filter(({ status }) => status === 'fulfilled').map(({ value }) => value);
    if (values.length === 0) throw (found.find(({ reason }) => reason.status) ?? found[0]).reason;
    return values;
  }

  // Calls act with a signal that ends it after a third of the silence, or three seconds if that is longer.
  async #within(signal, act) {
    const ours = linked(signal), late = new Refused('TIMEOUT', 'the relay does not answer in time');
    const timer = setTimeout(() => ours.abort(late), Math.max(this.silence / 3, 3000));
    try { return await act(ours.signal); } finally {
      clearTimeout(timer);
      ours.unlink();
    }
  }

  /** The client of the relay that is this home, and answers there. Throws an error if it may not be contacted. */
  async at(home, { signal } = {}) {
    if (this.state.caught(home.did)) throw new Refused('CAUGHT', 'this relay has lied, and is not used any more');
    const fits = ({ known, url }) => known ? known.did === home.did : url === home.url;
    const client = [...this.#given, ...this.#found.values()].find(fits);
    if (client) await client.assureHome({ meta: { home } }, { signal });
    return client ?? this.#contact(home, signal);
  }

  async #contact(home, signal) {
    const { url } = home, now = Date.now();
    if (!this.#discover) throw new Refused('FORBIDDEN', `${url} is not one of the relays that were given`);
    this.#hosts = this.#hosts.filter((at) => now - at < HOUR);
    if (this.#hosts.length >= MAX_HOSTS) throw new Refused('RATE_LIMITED', 'too many new relays within an hour');
    const client = new Client(url, { ...this.#options, fetch: this.#discover(url) });
    this.#hosts.push(now);
    await client.assureHome({ meta: { home } }, { signal });
    this.#found.set(home.did, client);
    return client;
  }

  /** The relays that can be the home of a REQUEST to this recipient, or to all, the preferred one first. All of
   *  them answer now. */
  async homes(to, { signal } = {}) {
    const manifest = to && (await this.agent(to, { signal }).catch(() => undefined))?.manifests[0];
    const named = relaysIn(manifest), candidates = named.length > 0 ? named.map((home) => (ours) => this.at(home,
      { signal: ours })) : this.#given.map((client) => async (ours) => {
      if (to) await client.agent(to, { signal: ours });
      return client;
    });
    const found = await Promise.allSettled(candidates.map((find) => this.#within(signal, async (ours) => {
      const client = await find(ours);
      await client.about({ signal: ours });
      return !client.known || this.state.caught(client.known.did) ? undefined : client;
    })));
    signal?.throwIfAborted();
    for (const { reason } of found) if (reason) this.log('a relay cannot be the home of a request', reason);
    return found.map(({ value }) => value).filter(Boolean);
  }

  /** Stops using the relay with this DID, and saves the evidence. */
  async catch(relay, why, evidence) {
    this.log(`the relay ${relay} was caught, and is not used any more: ${why}`);
    await this.state.keep(relay, evidence);
    await this.state.setCaught(relay, why);
  }

  async report(evidence) {
    const { kind, relay } = await verifyEvidence(evidence), { proofs = [] } = JSON.parse(evidence);
    const [first, ...others] = await Promise.all(proofs.map((text) => verifyProof(text)));
    const isLoss = kind === 'chain' || others.some(({ epoch }) => epoch !== first.epoch);
    if (!isLoss) await this.catch(relay, `there is evidence against it: ${kind}`, JSON.parse(evidence));
    return !isLoss;
  }

  // Compares a valid proof of a relay with the one before.
  async #compare(relay, text) {
    const last = this.#proofs.get(relay);
    const checkpoints = [last, text].map((proof) => proof?.slice(proof.indexOf('\n\n') + 2));
    this.#wrong.delete(relay);
    this.#proofs.set(relay, text);
    if (!last || last === text) return;
    for (const kind of ['fork', 'index', 'twice', 'time']) {
      const about = kind === 'fork' ? { checkpoints } : { proofs: [last, text] };
      const evidence = JSON.stringify({ typ: 'agora-evidence/1', kind, ...about });
      await this.report(evidence).catch((err) => { if (err.code !== 'INVALID_PROOF') this.log('saving failed', err); });
    }
  }

  // Records a proof that does not hold. After two in a row the relay is caught.
  async #doubt(relay, proof, message) {
    const before = this.#wrong.get(relay);
    this.#wrong.set(relay, proof);
    const evidence = { proofs: [before, proof], message };
    if (before !== undefined) await this.catch(relay, 'two proofs in a row do not hold', evidence);
  }

  info({ signal } = {}) {
    return Promise.all([...this.#given, ...this.#found.values()].map(async (client) => {
      const about = { url: client.url };
      try {
        const { did } = await this.#within(signal, (ours) => client.about({ signal: ours }));
        return { ...about, did, home: Boolean(client.known), caught: this.state.caught(did) };
      } catch (err) {
        signal?.throwIfAborted();
        return { ...about, error: err };
      }
    }));
  }

  // --- The directory

  async agent(did, { signal } = {}) {
    const all = await this.#all((client, ours) => client.agent(did, { signal: ours }), signal);
    return { ...all[0], online: all.some(({ online }) => online),
      manifests: all.flatMap(({ manifests }) => manifests).sort(newest) };
  }

  async agents(query, { signal } = {}) {
    const all = await this.#all((client, ours) => client.agents(query, { signal: ours }), signal), found = new Map();
    for (const agent of all.flatMap(({ agents }) => agents)) {
      const known = found.get(agent.id), online = agent.online || known?.online === true;
      const latest = known && newest(known.envelope, agent.envelope) < 0 ? known : agent;
      found.set(agent.id, { ...latest, online });
    }
    return { ok: true, agents: [...found.values()], hasMore: all.some(({ hasMore }) => hasMore) };
  }

  outlook(intent, options) { return outlook(this, intent, options); }

  // --- Messages

  async post(type, payload, { home, ...draft } = {}, { signal } = {}) {
    if (type !== 'MANIFEST') {
      const client = home ? await this.at(home, { signal }) : this.#given[0];
      return client.post(type, payload, { home, ...draft }, { signal });
    }
    const e = await this.#signed(payload, draft.ttl);
    const [receipt] = await this.#all((client, ours) => client.postEnvelope(e, { signal: ours }), signal);
    return receipt;
  }

  async #signed(payload, ttl = protocol.draftTtl) {
    const relays = this.#given.map(({ known }) => known).filter(Boolean).slice(0, MAX_LISTED);
    const e = { version: '1.0', id: newId('msg', this.now()), ts: new Date(this.now()).toISOString(), type: 'MANIFEST',
      sender: { id: this.me.did }, payload: { relays, ...payload }, meta: { ttl } };
    return checkEnvelope(await sign(e, this.me));
  }

  // Posts the manifest at one relay. All get the same bytes, until half of its lifetime is over, or one more relay has
  // said who it is.
  async #publish(client, payload, options) {
    const { signal } = options, own = client.home(options);
    await Promise.allSettled(this.#given.map((other) => this.#within(signal, (ours) => other.home({ signal: ours }))));
    await own;
    const relays = this.#given.filter(({ known }) => known).length, { count, ends } = this.#manifest ?? {};
    if (count !== relays || ends - this.now() < protocol.draftTtl * 500) {
      this.#manifest = { count: relays, ends: this.now() + protocol.draftTtl * 1000, e: this.#signed(payload) };
      for (const resting of this.#resting) resting.abort();
    }
    return client.postEnvelope(await this.#manifest.e, options);
  }

  // Waits, but only until there is a new manifest to post.
  async #rest(ms, signal) {
    const ours = linked(signal);
    this.#resting.add(ours);
    try { await pause(ms, ours.signal); } catch { signal.throwIfAborted(); } finally {
      this.#resting.delete(ours);
      ours.unlink();
    }
  }

  async *follow(filter = {}, { from, limit, signal } = {}) {
    const state = this.state.isDurable ? this.state : new Memory();
    const own = { from, limit, seen: { add: () => true }, state };
    await state.load(this.me.did);
    const ours = linked(signal), pending = new Map(), names = new Recent(4096);
    const next = (source) => pending.set(source, source.next().then((result) => ({ source, result }), (error) =>
      ({ source, error })));
    this.#given.forEach((client) => next(this.#pages(client, { ...own, filter, signal: ours.signal })));
    try {
      for (let last; pending.size > 0;) {
        const { source, result, error } = await Promise.race(pending.values());
        pending.delete(source);
        signal?.throwIfAborted();
        if (error) {
          this.log('a relay is not followed any more', error);
          last = error;
          if (pending.size === 0) throw last;
          continue;
        }
        const { events, cursor, store } = result.value;
        for (const e of events) yield* this.#once(e, names, state);
        await store.save(cursor);
        next(source);
      }
    } finally {
      ours.abort();
      ours.unlink();
    }
  }

  // Yields an event, unless it came before.
  async *#once(e, names, state) {
    const mark = await markOf(e), now = this.now();
    if (state.isHandled(mark, now)) return;
    const before = names.get(nameOf(e));
    if (before && before !== mark) this.log(`${e.sender.id} has signed two messages with the id ${e.id}`);
    names.add(nameOf(e), mark);
    yield e;
    state.handle(mark, expiryOf(e), now);
  }

  // The pages of one relay, with the store of its cursor. It waits until the relay says who it is.
  async *#pages(client, options) {
    for (let failures = 0; ; failures++) {
      try {
        const store = options.state.cursor(await client.relayDid(options));
        for await (const page of pages(client, { ...options, store })) yield { ...page, store };
        return;
      } catch (err) {
        options.signal.throwIfAborted();
        if (isPermanent(err) && err.code !== 'NOT_FOUND') throw err;
        this.log(`${client.url} does not say who it is, will be retried`, err);
        await pause(backoff(failures, err.retryAfter), options.signal);
      }
    }
  }

  // --- Both sides of threads

  async request(intent, params, options = {}) {
    await this.state.load(this.me.did);
    return openCall(this, intent, params, options);
  }

  async resume(thread, options) {
    await this.state.load(this.me.did);
    return resumeCall(this, thread, options);
  }

  ask(intent, params, options) { return ask(this, intent, params, options); }

  serve(intents, options) {
    return serve(this, intents, { ...options, cursor: undefined, state: this.state }, (desk, agentAt) => {
      const agents = new Map(), add = (client, more) => {
        const agent = agentAt(client, more);
        agents.set(client, agent);
        desk.start(agent.run().catch((err) => {
          desk.signal.throwIfAborted();
          agents.delete(client);
          if (agents.size === 0) throw err;
          this.log(`the agent does not serve at ${client.url} any more`, err);
        }));
        return agent;
      };
      desk.agentAt = async (home) => {
        const client = await this.#within(desk.signal, (signal) => this.at(home, { signal }));
        return agents.get(client) ?? add(client, { broadcast: false, manifest: undefined });
      };
      desk.claim = (...shown) => this.#claim(...shown);
      desk.publish = (client, payload, posting) => this.#publish(client, payload, posting);
      desk.rest = (ms, signal) => this.#rest(ms, signal);
      for (const client of this.#given) add(client);
    });
  }

  serveA2A(handler, options) { return serveA2A(this, this.#given, handler, options); }

  join(options) { return atEach(this.#given, (client) => join(client, { ...options, state: this.state })); }

  leave(state = this.state, options) { return atEach(this.#given, (client) => leave(client, state, options)); }

  hubMessage(job, options) { return ofAny(this.#given, (client) => hubMessage(client, job, options)); }

  async origin(request, options) {
    let found;
    for (const client of this.#given) {
      found = await origin(client, request, options);
      if (found.protocol !== 'agora') break;
    }
    return found;
  }

  // Returns what to call when a REQUEST was handled; undefined: it is a copy from another relay, and came before. What
  // the home of the thread shows again is handled again: the home may have been restored from a backup without the
  // answer.
  async #claim(e, isByHome) {
    const mark = await markOf(e), now = this.now();
    if (!isByHome && (this.#claimed.has(mark) || this.state.isHandled(mark, now))) return undefined;
    this.#claimed.add(mark);
    return () => {
      this.#claimed.delete(mark);
      this.state.handle(mark, expiryOf(e), now);
    };
  }
}

// The relays in a manifest, the preferred first.
function relaysIn(manifest) {
  const { relays } = manifest?.payload ?? {};
  if (!Array.isArray(relays) || relays.length > MAX_LISTED) return [];
  return relays.map((relay) => ({ did: relay?.did, url: relay?.url })).filter(isHome);
}
