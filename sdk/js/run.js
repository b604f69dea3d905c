// What an agent does in one thread.
import { protocol, threadOf } from './agora.js';
import { keyOf } from './book.js';
import { formatTime, isRequest, isUSD } from './call.js';
import { expiryOf, flaw, hashOf, links } from './links.js';
import { AgentError, isPermanent } from './errors.js';
import { objection } from './proving.js';
import { isClosed, isObject, linked, signedForm, wasSealed } from './reading.js';

// These ERRORs show nothing about the reason: it may be private, or help to attack a sealed payload.
export const INTERNAL = new AgentError('INTERNAL_ERROR',
  "the agent failed; the agent's operator can find the reason in its log");
const NOT_OPENED = new AgentError('INVALID_REQUEST', "the sealed payload cannot be opened; seal it to this agent's " +
  'key as described in docs/SEALING.md, or send it in plaintext');

/** What work returns to send more than an output. */
export class Result {
  constructor(output, { status = 'success', artifacts, metrics } = {}) {
    Object.assign(this, { output, status, artifacts, metrics });
  }
}

/** Handles one event: a REQUEST or an ACCEPT. */
export class Run {
  triedPost = false;
  unposted; // the payload of an OFFER that could not be posted yet
  request; // the client's REQUEST, as soon as it is known
  accept; // the hash of the ACCEPT that the answers are for
  outcome; // the type and payload of the message after the work
  job; // see Desk.outcome

  constructor(agent, key, event) {
    Object.assign(this, { agent, key, event, client: event.sender.id, thread: threadOf(event) });
    this.isRequest = event.type === 'REQUEST';
    this.stop = linked(agent.signal);
    this.signal = this.stop.signal;
  }

  // Whether the client has ended the thread.
  get ended() { return this.signal.aborted && !this.agent.signal.aborted; }

  // Runs act as the only run of its thread. Returns its error, or undefined.
  async alone(act) {
    const { running } = this.agent;
    let done;
    this.done = new Promise((resolve) => { done = resolve; });
    running.set(this.key, this);
    try {
      await act();
      return undefined;
    } catch (err) { return err; } finally {
      running.delete(this.key);
      this.stop.unlink();
      done();
    }
  }

  // Reads the state of the thread. If the thread waits for this agent, posts the agent's next message.
  async step() {
    const { me } = this.agent, record = await this.read(), { thread } = record, request = this.findRequest(record);
    this.request = request;
    // The message may have any request_id, because the request_id in the relay's record is not signed.
    this.seal = [...record.events, this.event, request].some((e) =>
      e?.sender.id === this.client && e.recipient?.id === me && wasSealed(e));
    if (this.isRequest) {
      const isOpen = thread.state === 'PENDING' && !thread.offers.some(({ agent }) => agent === me);
      if (isOpen && request) await this.offer(request);
    } else if (thread.state === 'ACTIVE' && thread.agent === me) {
      // The record is not signed, so it is not enough to start work.
      const accept = await this.acceptance(record);
      this.accept = accept && await hashOf(accept);
      if (accept && isClosed(accept)) await this.post('ERROR', errorOf(NOT_OPENED, thread.requestId));
      else if (accept) await this.finish(request, accept, thread);
    }
  }

  async read() {
    const { agent, client, thread, event } = this;
    if (!this.isRequest) await agent.readSlots.acquire(this.signal);
    try { return await agent.client.thread(thread, client, { signal: this.signal }); } catch (err) {
      // A private relay shows a thread only to its parties. If the REQUEST names no recipient, this agent is none yet.
      const mayBeHidden = this.isRequest && !event.recipient && agent.client.isPrivate;
      if (err.code !== 'THREAD_NOT_FOUND' || !mayBeHidden) throw err;
      const { request_id: requestId } = event.payload;
      return { thread: { id: thread, client, state: 'PENDING', requestId, offers: [] }, events: [] };
    } finally {
      if (!this.isRequest) agent.readSlots.release();
    }
  }

  // The client's ACCEPT of this agent's OFFER (RELAYS R-8); undefined: there is none.
  async acceptance(record) {
    const offers = [this.agent.offers.get(this.key)], requestId = record.thread.requestId ?? '';
    for (const e of record.events) {
      const isOwn = e.type === 'OFFER' && e.sender.id === this.agent.me && (e.payload.request_id ?? '') === requestId;
      if (isOwn) offers.push(await hashOf(e));
    }
    const home = (this.request ?? this.event).meta?.home, known = offers.filter(Boolean);
    return [...record.events, this.event].find((e) => {
      if (e.type !== 'ACCEPT' || !this.byClient(e, record)) return false;
      const why = (home || known.length > 0) && flaw(e, home, known);
      if (why) this.agent.client.log(`the ACCEPT ${e.id} of ${this.client} is ignored: ${why}`);
      return !why;
    });
  }

  // A message of the thread's client about its request, to this agent or to all.
  byClient(e, { thread }) {
    return e.sender.id === this.client && (e.payload.request_id ?? '') === (thread.requestId ?? '') &&
      (!e.recipient || e.recipient.id === this.agent.me);
  }

  // The client's REQUEST. The relay deletes it when its ttl ends, which may be before the client accepts the offer. So
  // the agent remembers those that it has seen.
  findRequest(record) {
    const found = [...record.events, this.event].find((e) => e.type === 'REQUEST' && this.byClient(e, record));
    if (found) this.agent.remember(this.key, found);
    return found ?? this.agent.requests.get(this.key);
  }

  // Answers a REQUEST with an OFFER. If there is none, a directed REQUEST gets an ERROR, and a broadcast nothing: the
  // relay would refuse an ERROR of an agent that has not offered.
  async offer(request) {
    const { request_id: requestId } = request.payload;
    let payload;
    try { payload = await this.quote(request); } catch (err) {
      if (!(err instanceof AgentError)) throw err;
      if (request.recipient) await this.post('ERROR', errorOf(err, requestId));
      return;
    }
    this.unposted = payload;
    await this.agent.desk.offered(await keyOf(request), payload, expiryOf(request));
    await this.post('OFFER', { ...payload, request_id: requestId });
  }

  // The payload of the OFFER. Throws AgentError if there is none.
  async quote(request) {
    const { agent, unposted } = this;
    if (!agent.serves(request)) {
      throw new AgentError('INTENT_NOT_SUPPORTED', `this agent only serves these intents: ${agent.intents.join(', ')}`);
    }
    await this.checkGateway(request);
    const job = jobOf(request), isOver = (terms) => Date.parse(terms.valid_until) <= agent.client.now();
    if (unposted && !isOver(unposted)) return unposted;
    const terms = agent.desk.terms(await keyOf(request));
    if (terms) return isOver(terms) ? { ...terms, valid_until: undefined } : terms;
    const quote = linked(this.signal), late = new AgentError('TIMEOUT', 'the quote took too long');
    const timer = setTimeout(() => quote.abort(late), agent.quoteSeconds * 1000);
    try {
      return await called(agent.client, 'quote', job, this.signal,
        async () => offerOf(await agent.quote(job, { signal: quote.signal }), job));
    } finally {
      clearTimeout(timer);
      quote.unlink();
    }
  }

  // Refuses a REQUEST with an intent of a gateway, unless the relay's gateway has sealed it. Anybody can post one, and
  // its params say who the caller is (A2A §4). Throws AgentError.
  async checkGateway(request) {
    const { client } = this.agent;
    if (!/^(a2a|chorus)\./.test(request.payload.intent)) return;
    let gateway;
    try { gateway = await client.gateway({ signal: this.signal }); } catch (err) {
      this.signal.throwIfAborted();
      client.log(`it is not known who the relay's gateway is (thread ${this.thread})`, err);
      throw new AgentError('UNAVAILABLE', "the agent cannot read the relay's document now; try again later");
    }
    if (request.sender.id !== gateway || !wasSealed(request)) {
      throw new AgentError('FORBIDDEN', "only the relay's gateway sends this, and seals it; its DID is in the " +
        "relay's document /.well-known/agora.json");
    }
  }

  // Does the work, unless that was done, and posts the outcome.
  async finish(request, accept, { deadline, requestId }) {
    if (!this.outcome) {
      const { type, payload } = request ? await this.perform(request, accept, deadline) :
        this.agent.desk.outcomeAt(this) ?? failed(new AgentError('UNAVAILABLE',
          'the REQUEST has expired, so the agent can no longer read it; send a new REQUEST'));
      this.outcome = [type, { ...payload, request_id: request ? request.payload.request_id : requestId }];
    }
    try { await this.post(...this.outcome); } catch (err) {
      if (this.signal.aborted || !isPermanent(err) || protocol.movedOn.includes(err.code)) throw err;
      this.agent.client.log('the outcome of the work cannot be posted, so the client gets an ERROR', err);
      this.outcome = ['ERROR', errorOf(INTERNAL, this.outcome[1].request_id)];
      await this.post(...this.outcome);
    }
  }

  // The type and payload of the message with the outcome of the work.
  async perform(request, accept, deadline) {
    try {
      const job = jobOf(request);
      await this.checkProof(accept, request);
      this.agent.queue.earn(this.client);
      return await this.agent.desk.outcome(this, job, accept, deadline);
    } catch (err) {
      if (!(err instanceof AgentError)) throw err;
      return failed(err);
    }
  }

  // Throws AgentError if the relay does not prove, as it must, that it has stored the ACCEPT of this REQUEST.
  async checkProof(accept, request) {
    const { agent: { client, readSlots }, signal } = this;
    await readSlots.acquire(signal);
    let why;
    try { why = await objection(client, signedForm(accept), signedForm(request), { signal }); } finally {
      readSlots.release();
    }
    if (!why) return;
    client.log(`the agent does not begin to work: ${why} (thread ${this.thread})`);
    throw new AgentError('UNAVAILABLE', `the agent does not begin to work: ${why}`);
  }

  // Posts to the client of the thread. If the relay limits an answer to a REQUEST, that goes back into the queue, where
  // another REQUEST may be more urgent. All other messages are repeated.
  async post(type, payload) {
    const { agent, client: to, thread, seal, signal } = this, retryLimited = !this.isRequest;
    this.triedPost = true;
    if (retryLimited) agent.pace.spend(performance.now());
    const home = (this.request ?? this.event).meta?.home;
    const re = type === 'OFFER' || !this.accept ? this.request && await hashOf(this.request) : this.accept;
    const signed = async (e) => { if (type === 'OFFER') agent.offers.add(this.key, await hashOf(e)); };
    return agent.client.post(type, payload, { to, thread, seal, ...links(home, re) }, { signal, retryLimited, signed });
  }
}

/** Calls a function of the handler for a job. Throws AgentError if that fails, and the signal's reason if it is
 *  aborted. */
export async function called(client, name, job, signal, act) {
  try {
    const result = await act();
    signal.throwIfAborted();
    return result;
  } catch (err) {
    signal.throwIfAborted();
    if (err instanceof AgentError) throw err;
    client.log(`the function ${name} failed, so the client gets an ERROR (thread ${job.thread})`, err);
    throw INTERNAL;
  }
}

// What the handler gets for a REQUEST. Throws AgentError if the payload cannot be read.
function jobOf(envelope) {
  if (isClosed(envelope)) throw NOT_OPENED;
  const { payload } = envelope;
  if (!isRequest(payload)) {
    throw new AgentError('INVALID_REQUEST',
      'the payload of the REQUEST does not have the form that the protocol requires');
  }
  const { intent, params, title, description, constraints, request_id: requestId } = payload;
  return { intent, params, title, description, constraints: constraints ?? {}, requestId, client: envelope.sender.id,
    thread: threadOf(envelope), sealed: wasSealed(envelope), envelope };
}

/** A price of the program in the form of messages. A number is in USD. */
export function priceOf(price) {
  const full = typeof price === 'number' ? { amount: price, currency: 'USD' } : price;
  const fits = isObject(full) && Number.isFinite(full.amount) && full.amount >= 0 && typeof full.currency === 'string';
  if (!fits) throw new TypeError('a price must be a number of USD, or { amount, currency }, and not negative');
  return full;
}

// The payload of the OFFER for what quote has returned.
function offerOf(quoted, { constraints }) {
  if (quoted === undefined || quoted === null) throw new AgentError('UNAVAILABLE', 'the agent makes no offer');
  if (typeof quoted === 'number') quoted = { price: quoted };
  if (!isObject(quoted)) throw new TypeError('quote must return a price, or { price: 0.05, etaSeconds: 10 }');
  const { plan, etaSeconds, validUntil } = quoted;
  const price = quoted.price === undefined ? undefined : priceOf(quoted.price);
  const { max_cost_usd: budget } = constraints;
  if (typeof budget === 'number' && price && isUSD(price) && price.amount > budget) {
    throw new AgentError('INSUFFICIENT_BUDGET', `the agent's price is ${price.amount} USD, but max_cost_usd of the ` +
      `REQUEST is ${budget}`, { details: { min_required: price.amount, provided: budget } });
  }
  return { plan, price, eta_seconds: etaSeconds, valid_until: validUntil && formatTime(validUntil) };
}

const errorOf = ({ code, reason, details }, requestId) =>
  ({ code, message: reason || code, details, request_id: requestId });

/** The outcome of a job that has failed. */
export const failed = (err) => ({ type: 'ERROR', payload: errorOf(err) });
