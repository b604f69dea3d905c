// A relay in memory, with the rules of PROTOCOL §3 to §5. Its method fetch is the transport of its clients. A hook
// between client and relay can change, lose or refuse requests and answers.
import { createPrivateKey, sign } from 'node:crypto';
import { canonicalize, checkRead, encode64, identity, instant, keyOf, readEnvelope, Refused, sha256, threadOf,
  verify } from '../agora.js';
import { Client } from '../index.js';
import { checkFresh, expiry, Ledger } from '../../../testvectors/interop/node/rules.mjs';

export const DOCUMENT = '/.well-known/agora.json';
export const URL_OF_FAKE = 'http://relay.test';
const STATUSES = { FORBIDDEN: 403, THREAD_NOT_FOUND: 404, INVALID_TRANSITION: 409, DUPLICATE_ID: 409, RATE_LIMITED: 429,
  UNAUTHORIZED: 401, AGENT_NOT_FOUND: 404, NOT_FOUND: 404, PAYLOAD_TOO_LARGE: 413 };

/** The error that fetch throws if the connection breaks. */
export const broken = (code = 'ECONNRESET') => Object.assign(new TypeError('fetch failed'), { cause: { code } });

/** An answer with a status and headers. */
export const answer = (status, object, headers = {}) => Response.json(object, { status, headers });

/** A refusal. */
export const refuse = (status, error, details = {}, headers = {}) =>
  answer(status, { ok: false, error, message: 'a test', retryable: status >= 429, details }, headers);

const formatted = (nanoseconds) => new Date(Number(nanoseconds / 1_000_000n)).toISOString();

const base64 = (bytes) => Buffer.from(bytes).toString('base64');
const hash = (...parts) => sha256(Buffer.concat(parts.map((part) => Buffer.from(part))));
const hashOf = async (e) => Buffer.from(await sha256(canonicalize(e))).toString('hex');

/** The proof by me that e is in a log of two leaves. changes replace lines of the leaf. */
export async function proofOf(me, e, changes = {}) {
  const leaf = { salt: encode64(new Uint8Array(16)), event: await hashOf(e), received: formatted(instant(e.ts)),
    request: '-', ...changes };
  const text = `agora-leaf/1\n${Object.entries(leaf).map((pair) => `${pair.join(' ')}\n`).join('')}`;
  const start = await hash([0], 'agora-log/1'), root = await hash([1], start, await hash([0], text));
  const origin = `${me.did}/00000001`, body = `${origin}\n2\n${base64(root)}\n`, x = keyOf(me.did);
  const jwk = { kty: 'OKP', crv: 'Ed25519', d: encode64(me.seed), x: encode64(x) };
  const key = createPrivateKey({ format: 'jwk', key: jwk });
  const id = (await hash(`${origin}\n`, [1], x)).subarray(0, 4), signature = sign(null, Buffer.from(body), key);
  return `c2sp.org/tlog-proof@v1\nextra ${base64(text)}\nindex 1\n${base64(start)}\n\n${body}\n` +
    `— ${origin} ${base64(Buffer.concat([id, signature]))}\n`;
}

export class FakeRelay {
  skew = 0; // how many milliseconds the relay's clock is ahead
  reads = 'open';
  database = 'a'; // the prefix of its cursors
  events = [];
  transitions = new Map(); // by thread and client
  hook; // (url, options, next) => Response
  polls = [];
  posts = [];
  bulks = []; // the lines of each bulk request
  refusals = []; // see #postBulk
  authorized = []; // the paths of reads with a valid token
  features = [];
  // What the relay gives as the proof of a message, in the receipt and at /proofs; undefined: none. Each gets the right
  // proof, and the message.
  given = () => undefined;
  shown = () => undefined;
  asked = []; // the ids of messages whose proofs were read
  #ledger = new Ledger();
  #waiting = new Set(); // functions that are called when there is something new

  static async start() {
    const relay = new FakeRelay();
    relay.me = await identity();
    return relay;
  }

  /** How many polls are waiting. */
  get waiting() { return this.#waiting.size; }

  now() { return BigInt(Date.now() + this.skew) * 1_000_000n; }

  /** A client of this relay. */
  client(me, options) { return new Client(URL_OF_FAKE, { me, fetch: this.fetch, log() {}, ...options }); }

  /** The events of a type. */
  of(type) { return this.events.filter((e) => e.type === type); }

  fetch = async (url, options = {}) => {
    options.signal?.throwIfAborted();
    const next = () => this.#route(new URL(url), options), at = new URL(url);
    if (at.pathname === '/events' && options.method !== 'POST') this.polls.push(at);
    const response = this.hook && at.pathname !== DOCUMENT ? await this.hook(at, options, next) : await next();
    options.signal?.throwIfAborted();
    return response;
  };

  async #route(url, options) {
    try {
      const result = await this.#answer(url, options);
      return typeof result === 'string' ? new Response(result) : answer(200, { ok: true, ...result });
    } catch (err) {
      if (!(err instanceof Refused)) throw err;
      const { status = STATUSES[err.code] ?? 400, code, details } = err;
      return refuse(status, code, details, status === 401 ? { 'www-authenticate': 'Agora' } : {});
    }
  }

  async #answer({ pathname, search, searchParams: query, origin }, { method = 'GET', headers = {}, body, signal }) {
    if (pathname === DOCUMENT) {
      const { reads, features, gateways } = this;
      return { did: this.me.did, url: origin, reads, features, gateways };
    }
    if (pathname === '/health') return { version: '1.0.0' };
    if (pathname === '/events/bulk') return this.#postBulk(body, query.get('proofs') === 'true');
    if (method === 'POST') return this.#post(body);
    const token = headers.authorization?.slice('Agora '.length);
    let reader;
    if (token) {
      const now = this.now();
      try { reader = await checkRead(token, { origin, method, target: pathname + search }, now); } catch (err) {
        if (this.reads === 'parties') {
          throw Object.assign(err, { details: { ...err.details, now: formatted(now) } });
        }
      }
      if (reader) this.authorized.push(pathname);
    }
    if (pathname === '/events') return this.#poll(query, reader, signal);
    if (pathname.startsWith('/threads/')) return this.#thread(decodeURIComponent(pathname.slice(9)), query, reader);
    if (pathname === '/proofs') return this.#proof(query, reader);
    if (pathname.startsWith('/agents')) return this.#agents(decodeURIComponent(pathname.slice(8)));
    throw new Refused('NOT_FOUND', 'no such path');
  }

  async #post(body) {
    const e = readEnvelope(body), now = this.now();
    await verify(e);
    this.posts.push(e);
    try { checkFresh(instant(e.ts), e.meta?.ttl, now); } catch (err) {
      throw Object.assign(err, { details: { now: formatted(now) } });
    }
    if (e.meta?.home && e.meta.home.did !== this.me.did) throw new Refused('FORBIDDEN', 'home', { reason: 'home' });
    const threads = () => (this.#ledger.threads.get(threadOf(e)) ?? []).map((t) => ({ ...t }));
    const before = e.type === 'MANIFEST' ? [] : threads();
    const { duplicate, state, client } = this.#ledger.take(e, now);
    if (!duplicate) {
      if (client) {
        const key = `${client} ${threadOf(e)}`, list = this.transitions.get(key) ?? [];
        const from = before.find((t) => t.client === client)?.state ?? 'OPEN';
        if (from !== state) list.push({ from, to: state, type: e.type, by: e.sender.id, id: e.id, at: e.ts });
        this.transitions.set(key, list);
      }
      this.add(e);
    }
    const thread = client && { id: threadOf(e), client, state }, end = formatted(expiry(instant(e.ts), e.meta?.ttl));
    const proof = duplicate ? undefined : await this.given(await this.#rightProof(e), e);
    return { id: e.id, cursor: this.cursor(), duplicate, expiresAt: end, thread, proof };
  }

  // The right proof of a message.
  async #rightProof(e) {
    const request = this.events.find((other) => other.type === 'REQUEST' && threadOf(other) === threadOf(e));
    return proofOf(this.me, e, request && { request: await hashOf(request) });
  }

  async #proof(query, reader) {
    const e = this.events.find((other) => other.id === query.get('id') && other.sender.id === query.get('sender'));
    const isHidden = e && this.reads === 'parties' && ![e.sender.id, e.recipient?.id ?? reader].includes(reader);
    this.asked.push(query.get('id'));
    const proof = e && !isHidden ? await this.shown(await this.#rightProof(e), e) : undefined;
    if (proof === undefined) throw new Refused('NOT_FOUND', 'there is no proof of this message');
    return proof;
  }

  // Posts each line. refusals has, for each of the next bulk requests, the refusals of lines by their numbers. stop is
  // the number of the line at which the relay stops, and the reason.
  async #postBulk(body, proofs) {
    const lines = new TextDecoder().decode(body).split('\n');
    const { stop: [end, stopped] = [Infinity], ...refused } = this.refusals.shift() ?? {};
    if (lines.pop() !== '') throw new Error('the last line does not end');
    this.bulks.push(lines);
    const results = [];
    for (const [n, line] of lines.slice(0, end).entries()) {
      try {
        if (refused[n]) results.push(refused[n]);
        else {
          const { id, duplicate, expiresAt, proof } = await this.#post(new TextEncoder().encode(line));
          results.push({ id, duplicate, expiresAt, ...(proofs && { proof }) });
        }
      } catch (err) {
        if (!(err instanceof Refused)) throw err;
        results.push({ error: err.code, message: err.message, details: err.details });
      }
    }
    return { results, stopped };
  }

  /** Adds an event without any check. */
  add(e) {
    this.events.push(e);
    this.#wake();
  }

  /** Ends a thread, as the relay does at its deadline. */
  timeOut(client, id) {
    const t = this.#ledger.threads.get(id).find((other) => other.client === client);
    const at = '2026-02-02T12:00:00Z';
    this.transitions.get(`${client} ${id}`).push({ from: t.state, to: 'ERROR', type: 'TIMEOUT', at });
    Object.assign(t, { state: 'ERROR', deadline: undefined });
    this.#wake();
  }

  #wake() { for (const change of [...this.#waiting]) change(); }

  cursor(n = this.events.length) { return `${this.database}-${n}`; }

  async #poll(query, reader, signal) {
    const { recipient } = Object.fromEntries(query), isPrivate = this.reads === 'parties';
    if (isPrivate && recipient && recipient !== reader) {
      throw new Refused('UNAUTHORIZED', 'unsigned', { reason: 'unsigned' });
    }
    const cursor = query.get('cursor');
    const [database, place] = cursor === '0' ? [this.database, '0'] : cursor?.split('-') ?? [];
    if (cursor !== null && database !== this.database) {
      throw new Refused('INVALID_REQUEST', 'cursor', { reason: 'unknown_cursor' });
    }
    const since = query.get('since'), limit = Number(query.get('limit') ?? 100), sees = (e) => !isPrivate ||
      !e.recipient || e.recipient.id === reader || e.sender.id === reader;
    const is = (name, value) => !query.get(name) || query.get(name) === value;
    const isForUs = (e) => is('recipient', e.recipient?.id) || query.get('broadcast') === 'true' && !e.recipient;
    const matches = (e) => sees(e) && isForUs(e) && is('thread', threadOf(e)) && is('sender', e.sender.id) &&
      is('type', e.type);
    for (let first = since ? 0 : Number(place), n = first; ;) {
      const events = [];
      for (; n < this.events.length && events.length < limit; n++) {
        const e = this.events[n];
        if ((!since || instant(e.ts) > instant(since)) && matches(e)) events.push(e);
      }
      if (events.length > 0 || query.get('timeout') === '0') {
        return { events, cursor: this.cursor(n), hasMore: n < this.events.length };
      }
      await new Promise((resolve, reject) => {
        const timer = setTimeout(() => end(resolve), Number(query.get('timeout')) * 1000);
        const end = (act) => {
          clearTimeout(timer);
          this.#waiting.delete(change);
          signal?.removeEventListener('abort', abort);
          act(signal?.reason);
        };
        const change = () => end(resolve), abort = () => end(reject);
        this.#waiting.add(change);
        if (signal?.aborted) abort();
        else signal?.addEventListener('abort', abort);
        timer.unref();
      });
      if (n === this.events.length) return { events: [], cursor: this.cursor(n), hasMore: false };
    }
  }

  #thread(id, query, reader) {
    const client = query.get('client') ?? undefined;
    const t = (this.#ledger.threads.get(id) ?? []).find((other) => !client || other.client === client);
    const isParty = t && [t.client, t.agent ?? t.named ?? t.offers].flat().includes(reader);
    if (!t || this.reads === 'parties' && !isParty) throw new Refused('THREAD_NOT_FOUND', 'no thread has this id');
    const parties = (e) => threadOf(e) === id && e.type !== 'MANIFEST';
    return {
      thread: { id, client: t.client, state: t.state, requestId: t.requestId || undefined, recipient: t.named,
        agent: t.agent,
        offers: t.offers.map((agent) => ({ agent, id: 'msg_1', at: '2026-02-02T12:00:00Z' })),
        transitions: this.transitions.get(`${t.client} ${id}`) ?? [],
        deadline: t.deadline && formatted(t.deadline) },
      events: this.events.filter(parties), expired: 0,
    };
  }

  #agents(did) {
    const manifests = this.of('MANIFEST'), row = (e) => ({ id: e.sender.id, online: true, lastSeen: e.ts });
    if (!did) return { agents: manifests.map((e) => ({ ...row(e), envelope: e })), hasMore: false };
    const own = manifests.filter((e) => e.sender.id === did);
    if (own.length === 0) throw new Refused('AGENT_NOT_FOUND', 'no such agent');
    return { agent: { ...row(own[0]), manifests: own } };
  }
}

/** Ends waits of less than 30 seconds at once. Returns a list, to which each of them adds its original length. */
export function skipWaits(t) {
  const real = globalThis.setTimeout, waits = [];
  t.mock.method(globalThis, 'setTimeout', (act, ms, ...args) => {
    if (ms < 30_000) waits.push(ms);
    return real(act, ms < 30_000 ? 0 : ms, ...args);
  });
  return waits;
}

/** Waits until check returns something. */
export async function until(check, what = check) {
  for (let n = 0; n < 1000; n++) {
    const found = check();
    if (found) return found;
    await new Promise((resolve) => { setImmediate(() => setTimeout(resolve, 5)); });
  }
  throw new Error(`waited in vain for ${what}`);
}

/** Runs an agent until the test ends, or until the returned function is called. */
export function serving(t, client, intents, options) {
  const stop = new AbortController(), ended = client.serve(intents, { signal: stop.signal, ...options });
  ended.catch(() => {});
  const end = async () => {
    stop.abort(new Error('stopped'));
    await ended;
  };
  t.after(() => end().catch(() => {}));
  return end;
}

