// The client's side of a job: one thread, or several if the job was continued at other relays (RELAYS §4).
import { backoff, newId, pause, protocol, RelayError, UnknownOutcome } from './agora.js';
import { Call, constraintsOf, payloadOf, timeOf } from './call.js';
import { expiryOf, hashOf, rootOf } from './links.js';
import { AgentError, isPermanent, Unacceptable } from './errors.js';
import { linked } from './reading.js';

const MAX_MOVES = 3;

// Whether an error says that there was no valid answer.
const isUnanswered = (err) => {
  const last = err instanceof UnknownOutcome ? err.cause : err;
  return last instanceof RelayError &&
    (last.status === 0 || last.status >= 500 || ['INVALID_ANSWER', 'OTHER_RELAY'].includes(last.code));
};

const costOf = ({ price }) => price?.amount ?? 0;

/** See Network.request. */
export async function openCall(network, intent, params, { to, seal = false, allowPlain, ttl = protocol.draftTtl, signal,
  ...options }) {
  const payload = payloadOf(intent, params, options, network.now());
  const homes = await network.homes(to, { signal });
  if (homes.length === 0) {
    throw new Unacceptable('no relay can be the home of this request: the relays of the recipient, or the given ' +
      'ones, do not answer, do not have the recipient, or lack the feature home', { retryable: true });
  }
  const call = new NetworkCall(network, payload, { to, seal, allowPlain, ttl });
  try { await call.open(homes[0], { to, thread: options.thread, signal }); } catch (err) {
    if (err.code !== 'INVALID_TRANSITION' || options.thread === undefined) throw err;
    return resumeCall(network, options.thread, { to, allowPlain, signal }); // an earlier request has opened it
  }
  return call;
}

/** See Network.resume. */
export async function resumeCall(network, thread, options) {
  let failed;
  for (const client of network.clients) {
    try {
      const leg = await client.resume(thread, options);
      const { events } = await client.thread(thread, network.me.did, options);
      const request = events.find((e) => e.type === 'REQUEST' && e.sender.id === network.me.did);
      const { request_id: _, ...payload } = request?.payload ?? {}, { recipient: to, seal, allowPlain } = leg;
      const call = new NetworkCall(network, payload, { to, seal, allowPlain, ttl: request?.meta?.ttl });
      await call.add(client, leg, request);
      return call;
    } catch (err) { failed = err; }
  }
  throw failed;
}

export class NetworkCall extends Call {
  #network;
  #payload; // of the REQUESTs, without request_id
  #to;
  #ttl; // seconds, of the first REQUEST
  #root; // of the REQUESTs
  #ends = Infinity; // when the first REQUEST expires, by the clock of the network
  #legs = []; // the threads, oldest first
  #price; // the price of the accepted offer
  #retry = 0; // when another relay is looked for again
  #changed = () => {};

  constructor(network, payload, { to, seal, allowPlain, ttl }) {
    const { intent, constraints } = payload;
    super(network, { recipient: to, intent, constraints: constraints ?? {}, seal, allowPlain });
    this.#network = network;
    this.#payload = payload;
    this.#to = to;
    this.#ttl = ttl;
  }

  get #newest() { return this.#legs.at(-1); }
  get agent() { return this.named; }
  get named() { return this.#legs.map(({ call }) => call.named).find(Boolean); }
  get requestId() { return this.#newest?.call.requestId; }
  get home() { return this.#newest?.home; }

  /** Posts a REQUEST of the job at a relay, and adds its thread, also if the relay does not answer: it may have stored
   *  the REQUEST. Throws an error if it has refused. */
  async open(client, { to, thread = newId('thread'), ttl = this.#ttl, signal }) {
    const { seal, allowPlain } = this, { intent, constraints } = this.#payload, home = client.known;
    const known = { thread, requestId: thread, recipient: to, intent, constraints: constraints ?? {}, home };
    const call = new Call(client, { ...known, seal, allowPlain });
    let request;
    const signed = async (e) => {
      request = e;
      call.continueAs({ request: await hashOf(e) });
    };
    const draft = { to, thread, ttl, seal, home, continues: this.#root };
    const isOpen = await this.#insist((posting) =>
      client.post('REQUEST', { ...this.#payload, request_id: thread }, draft, { ...posting, signed }), signal);
    await this.add(client, call, request, !isOpen);
  }

  /** Adds a thread. */
  async add(client, call, request, isLost = false) {
    const { constraints: { deadline } = {} } = this.#payload, now = this.#network.now();
    if (request) this.#root ??= await rootOf(request);
    if (request && this.#ends === Infinity) this.#ends = expiryOf(request);
    const left = Math.min(this.#ends, deadline ? timeOf(deadline) : Infinity) - now;
    const leg = { client, call, home: call.home, isLost, hasOffer: false, failing: undefined };
    leg.patience = performance.now() + Math.min(this.#network.offerWait, left / 4);
    call.heard = (err) => {
      leg.failing = err && isUnanswered(err) ? leg.failing ?? performance.now() : undefined;
      this.#changed();
    };
    this.#legs.push(leg);
    this.thread = call.thread;
    this.#changed();
  }

  // Posts with act. Returns false if the home gives no valid answer for as long as it may be silent.
  async #insist(act, signal) {
    const ours = linked(signal), silent = new Error('the home is silent'), { silence } = this.#network;
    const wait = () => setTimeout(() => ours.abort(silent), silence);
    let timer = wait();
    const failed = (err) => {
      if (isUnanswered(err)) return;
      clearTimeout(timer);
      timer = wait();
    };
    try {
      await act({ signal: ours.signal, failed });
      return true;
    } catch (err) {
      signal?.throwIfAborted();
      if (err === silent || isUnanswered(err)) return false;
      throw err;
    } finally {
      clearTimeout(timer);
      ours.unlink();
    }
  }

  // --- Continuing

  // When the job is to be continued, and why; without why: when it ends.
  #due() {
    const { home, isLost, failing, call, hasOffer, patience } = this.#newest, { silence, state } = this.#network;
    const now = performance.now(), end = { at: now + this.#ends - this.#network.now() }, due = [];
    if (!home || this.#legs.length > MAX_MOVES) return end;
    if (state.caught(home.did)) due.push({ at: now, why: 'was caught' });
    if (isLost) due.push({ at: now, why: 'is silent' });
    if (failing !== undefined) due.push({ at: failing + silence, why: 'is silent' });
    if (call.recipient && !hasOffer && !call.named) due.push({ at: patience, why: 'shows no offer' });
    const all = due.map(({ at, why }) => ({ at: Math.max(at, this.#retry), why }));
    return [end, ...all].reduce((first, other) => other.at < first.at ? other : first);
  }

  // Continues the job at the next relay. If there is none, it tries again a little later.
  async #move(why, signal) {
    const from = this.#newest, to = this.named ?? this.#to, { silence, moved } = this.#network;
    this.#retry = performance.now() + silence / 6;
    const left = Math.floor((this.#ends - this.#network.now()) / 1000);
    const homes = await this.#network.homes(to, { signal });
    const next = homes[(homes.indexOf(from.client) + 1) % homes.length];
    if (!next || next === from.client || left < 1) return;
    try { await this.open(next, { to, ttl: left, signal }); } catch (err) {
      signal?.throwIfAborted();
      this.#network.log(`${next.url} does not take the continued job`, err);
      return;
    }
    const { host } = new URL(from.home.url), other = new URL(next.known?.url ?? next.url).host;
    this.#network.log(`${host} ${why}; continued at ${other}`);
    moved({ from: from.home, to: this.home, thread: this.thread, why });
  }

  // Cancels a thread that the job has left, unless it has an ACCEPT. It tries until the relay answers.
  async #cancelLeft({ call }, signal) {
    for (let failures = 0; !call.named; failures++) {
      try { return await call.cancel('continued at another relay', { signal }); } catch (err) {
        if (signal.aborted || !isUnanswered(err)) return undefined;
      }
      try { await pause(backoff(failures), signal); } catch { return undefined; }
    }
    return undefined;
  }

  // Yields { offer } and { result } of all threads, and continues the job when that is due.
  async *#events(signal) {
    const ours = linked(signal), pending = new Map(), cancels = [];
    const next = (leg, source) => pending.set(source, source.next().then(({ value, done }) =>
      ({ leg, source, value, done }), (error) => ({ leg, source, error, done: true })));
    let started = 0, timer;
    try {
      for (;;) {
        for (; started < this.#legs.length; started++) {
          next(this.#legs[started], this.#read(this.#legs[started], ours.signal));
          if (started > 0) cancels.push(this.#cancelLeft(this.#legs[started - 1], ours.signal));
        }
        const { at, why } = this.#due();
        const woken = new Promise((resolve) => {
          this.#changed = () => resolve({});
          const left = Math.min(Math.max(at - performance.now(), 0), 2 ** 31 - 1);
          timer = setTimeout(() => resolve({ why, isDue: true }), left);
        });
        const { leg, source, value, error, done, isDue } = await Promise.race([...pending.values(), woken]);
        clearTimeout(timer);
        signal?.throwIfAborted();
        if (isDue && !why) throw new AgentError('TIMEOUT', 'the request has expired without a result');
        if (isDue) await this.#move(why, signal);
        if (!source) continue;
        pending.delete(source);
        if (error) this.#ended(leg, error);
        if (!done) next(leg, source);
        if (value) yield value;
      }
    } finally {
      clearTimeout(timer);
      ours.abort();
      ours.unlink();
      await Promise.all([...pending.values(), ...cancels]);
    }
  }

  // Throws the error of a thread if it ends the job. The error of a thread that the job has left does not end it. If
  // the relay has lost the thread, the job continues elsewhere.
  #ended(leg, err) {
    const declines = err instanceof AgentError && err.from === (this.named ?? this.#to) && !leg.call.named;
    if (declines) throw err;
    if (leg !== this.#newest) return;
    const mayMove = leg.home && this.#legs.length <= MAX_MOVES && (err instanceof RelayError && isPermanent(err));
    if (!mayMove) throw err;
    leg.isLost = true;
  }

  // Reads one thread. Once an agent is named, its offer is accepted, and the result awaited.
  async *#read(leg, signal) {
    const { call } = leg;
    if (!call.named) {
      for await (const offer of call.offers({ signal })) {
        leg.hasOffer = true;
        const isNamed = this.named === offer.agent && costOf(offer) <= costOf(this.#price ?? {}) &&
          (offer.price?.currency === this.#price?.price?.currency || costOf(offer) === 0);
        if (!this.named) yield { offer };
        else if (isNamed && leg === this.#newest) {
          await this.#accept(leg, offer, { maxCost: Infinity, signal });
          break;
        }
      }
    }
    if (call.named) yield { result: await call.result({ signal }) };
  }

  async #accept(leg, offer, options) {
    const { signal } = options;
    leg.isLost ||= !await this.#insist((posting) => leg.call.accept(offer, { ...options, ...posting }), signal);
    this.#changed();
  }

  // --- The methods of Call

  async *offers({ signal } = {}) {
    if (this.named) return;
    for await (const { offer } of this.#events(signal)) {
      if (offer?.requestId === this.requestId) yield offer;
      if (this.named) return;
    }
  }

  async accept(offer, { maxCost, deadline, signal } = {}) {
    const leg = this.#legs.find(({ call }) => call.requestId === offer?.requestId) ?? this.#newest, { named } = this;
    if (named && named !== offer.agent) throw new Unacceptable(`an ACCEPT was signed for ${named} already`);
    if (leg !== this.#newest) throw new Unacceptable('the job was continued elsewhere; take an offer from there');
    const limits = { ...maxCost !== undefined && { maxCost }, ...deadline !== undefined && { deadline } };
    try { await this.#accept(leg, offer, { ...limits, signal }); } finally {
      if (this.named) this.#price ??= offer;
    }
  }

  async result({ signal } = {}) {
    if (!this.named) throw new Unacceptable('there is no result to wait for; accept an offer first');
    for await (const { result } of this.#events(signal)) if (result) return result;
    throw new Unacceptable('there is no result'); // not reached: the events end with an error
  }

  state(options) { return this.#newest.call.state(options); }

  async cancel(reason, options) {
    const [newest, ...left] = this.#legs.toReversed();
    await Promise.allSettled(left.filter(({ call }) => !call.named).map(({ call }) => call.cancel(reason, options)));
    await newest.call.cancel(reason, options);
  }
}
