// The agent's side of threads: it answers REQUESTs with offers, and does the work when an offer is accepted. The agent
// keeps no state except the cursor: for each event it reads the state of the thread from the relay, and then posts the
// next message. So it survives a crash at any time.
import { backoff, pause, POST_PATIENCE, protocol, Refused, threadOf } from './agora.js';
import { formatTime, isRequest, isUSD } from './call.js';
import { flaw, hashOf, links } from './chain.js';
import { AgentError, Cancelled, isPermanent } from './errors.js';
import { objection } from './proving.js';
import { Pace, Progress, Queue, Recent, Slots } from './queue.js';
import { isClosed, isObject, linked, pages, signedForm, wasSealed } from './reading.js';

// How many ACCEPTs are handled at once. With more, the agent stops reading events. It is also how many REQUESTs it
// remembers, of this many characters at most.
const MAX_ACCEPTS = 1024, MAX_REMEMBERED = 32 << 10;
const HOUR = 3_600_000, MINUTE = 60_000, LOG_EVERY = 10_000; // milliseconds
// How far the relay's clock can differ from ours. Work may continue for this long after the deadline of its thread.
const SKEW = 300_000;

// These ERRORs show nothing about the reason: it may be private, or help to attack a sealed payload.
const INTERNAL = new AgentError('INTERNAL_ERROR',
  "the agent failed; the agent's operator can find the reason in its log");
const NOT_OPENED = new AgentError('INVALID_REQUEST', "the sealed payload cannot be opened; seal it to this agent's " +
  'key as described in docs/SEALING.md, or send it in plaintext');

/** What work returns to send more than an output. */
export class Result {
  constructor(output, { status = 'success', artifacts, metrics } = {}) {
    Object.assign(this, { output, status, artifacts, metrics });
  }
}

/** See Client.serve. */
export async function serve(client, intents, options = {}) {
  const names = [intents].flat(), { work, quote, manifest, price } = options;
  if (names.length === 0 || !names.every((name) => typeof name === 'string' && name !== '')) {
    throw new TypeError('serve needs the names of the intents that the agent serves');
  }
  if (typeof work !== 'function' || quote !== undefined && typeof quote !== 'function') {
    throw new TypeError('serve needs a function work, and quote must be a function too');
  }
  if (manifest !== undefined && !isObject(manifest)) {
    throw new TypeError("manifest must be an object such as { name: 'Upper' }");
  }
  if (price !== undefined) priceOf(price);
  if (!client.me) throw new Refused('INVALID_REQUEST', 'an agent needs an identity: new Client(url, { me })');
  await new Agent(client, names, options).run();
}

class Agent {
  constructor(client, intents, options) {
    const { price, quote = () => price ?? 0, work, manifest, cursor, concurrency = 8, quoteSeconds = 60, dropped,
      signal } = options;
    this.pricing = options.quote && price === undefined ? undefined : pricingOf(priceOf(price ?? 0));
    Object.assign(this, { client, intents, quote, work, manifest, dropped, quoteSeconds, cursor });
    this.me = client.me.did;
    this.outer = signal;
    this.stop = linked(signal);
    this.signal = this.stop.signal;
    this.progress = new Progress(cursor, (err) => this.stop.abort(err));
    this.queue = new Queue();
    this.pace = new Pace();
    this.acceptSlots = new Slots(MAX_ACCEPTS);
    this.readSlots = new Slots(concurrency); // for reads of the state of threads with an ACCEPT, and of its proof
    this.answerSlots = new Slots(concurrency);
    this.workSlots = new Slots(concurrency);
    this.running = new Map(); // by thread: what is being done there
    this.requests = new Recent(MAX_ACCEPTS); // by thread: see Run.findRequest
    this.offers = new Recent(MAX_ACCEPTS); // by thread: the hash of the last OFFER of this agent
    this.tasks = new Set();
    this.droppedCount = 0;
    this.droppedLogged = -Infinity;
  }

  // Runs until the caller's signal is aborted, which is no error.
  async run() {
    this.start(this.answerAll());
    if (this.manifest) this.start(this.announce());
    try {
      const { cursor: store, signal } = this, filter = { recipient: this.me, broadcast: true };
      for await (const page of pages(this.client, { filter, store, from: 'oldest', signal })) {
        if (page.moved || page.events.length > 0) await this.page(page);
      }
    } catch (err) { this.stop.abort(err); }
    await Promise.all(this.tasks);
    await this.progress.saved();
    this.stop.unlink();
    if (!this.outer?.aborted || this.signal.reason !== this.outer.reason) throw this.signal.reason;
  }

  // Runs a task until it ends. An error that nothing has handled ends the agent.
  start(task) {
    const ended = task.catch((err) => this.stop.abort(err)).finally(() => this.tasks.delete(ended));
    this.tasks.add(ended);
  }

  async page({ events, cursor }) {
    const page = this.progress.begin(cursor);
    for (const e of events) {
      const client = e.sender.id, thread = threadOf(e), key = `${client} ${thread}`;
      if (client === this.me || !await this.isLinked(e, key)) continue;
      if (e.type === 'CANCEL' || e.type === 'ERROR') {
        this.withdraw(client, thread);
        this.running.get(key)?.stop.abort(new Cancelled());
      } else if (e.type === 'REQUEST' && (e.recipient || this.serves(e))) {
        this.progress.hold(page);
        this.drop(this.queue.put({ client, thread, key, event: e, page, failures: 0 }, performance.now()));
      } else if (e.type === 'ACCEPT') {
        const request = this.withdraw(client, thread);
        if (request) this.remember(key, request);
        await this.acceptSlots.acquire(this.signal);
        this.progress.hold(page);
        this.start(this.handleAccept(key, e, page).finally(() => this.acceptSlots.release()));
      }
    }
    this.progress.release(page);
  }

  // Whether e belongs to the thread at this relay, by its home and by what it answers (RELAYS ). What the agent
  // does not know, it does not check here.
  async isLinked(e, key) {
    let why;
    const { home } = e.meta ?? {}, relay = () => this.client.relayDid({ signal: this.signal });
    if (home && await relay().catch(() => home.did) !== home.did) {
      why = 'its home is another relay';
    } else if (e.type === 'CANCEL' || e.type === 'ERROR') {
      const { request, accept } = this.running.get(key) ?? {};
      const known = request ?? this.queue.find(e.sender.id, threadOf(e))?.event ?? this.requests.get(key);
      if (known) why = flaw(e, known.meta?.home, [await hashOf(known), accept]);
    }
    if (why) this.client.log(`the ${e.type} ${e.id} of ${e.sender.id} is ignored: ${why}`);
    return !why;
  }

  serves(request) { return this.intents.includes(request.payload.intent); }

  // Removes the REQUEST of a thread from the queue, and returns it.
  withdraw(client, thread) {
    const item = this.queue.withdraw(client, thread);
    if (item) this.progress.release(item.page);
    return item?.event;
  }

  remember(key, request) {
    if (JSON.stringify(request).length <= MAX_REMEMBERED) this.requests.add(key, request);
  }

  // Reports REQUESTs that get no answer: too many were waiting, or their ttl ended.
  drop(items) {
    for (const { event, page } of items) {
      this.droppedCount++;
      if (performance.now() - this.droppedLogged >= LOG_EVERY) {
        this.droppedLogged = performance.now();
        this.client.log(`${this.droppedCount} REQUESTs were dropped without an answer: too many were waiting, or ` +
          'their ttl ended');
      }
      this.dropped?.(event);
      this.progress.release(page);
    }
  }

  // --- REQUESTs

  async answerAll() {
    for (;;) {
      let item;
      try {
        await this.answerSlots.acquire(this.signal);
        item = await this.next();
      } catch (err) {
        if (this.signal.aborted) return;
        throw err;
      }
      this.start(this.answer(item).finally(() => this.answerSlots.release()));
    }
  }

  // Waits for the REQUEST to answer next.
  async next() {
    for (;;) {
      this.signal.throwIfAborted();
      const { item, late, wait } = this.queue.next(performance.now(), this.pace);
      this.drop(late);
      if (item) return item;
      await this.queue.changed(wait, this.signal);
    }
  }

  // Answers a REQUEST if its thread still waits for that. After a temporary failure it goes back into the queue.
  async answer(item) {
    const run = new Run(this, item.key, item.event);
    run.unposted = item.unposted;
    let err;
    if (!this.running.has(item.key)) err = await run.alone(() => run.step()); // else a later message is handled
    if (!run.triedPost) this.pace.refund(performance.now());
    if (this.signal.aborted) return; // the saved cursor stays before this REQUEST, so it is read again
    if (err !== undefined && !run.ended && !isPermanent(err)) {
      this.client.log(`answering a REQUEST failed, will be retried (thread ${item.thread})`, err);
      item.unposted = run.unposted;
      this.postpone(item, err, performance.now());
      this.drop(this.queue.putBack(item));
      return;
    }
    if (err !== undefined && !run.ended && !protocol.movedOn.includes(err.code)) {
      this.client.log(`a REQUEST is not answered (thread ${item.thread})`, err);
    }
    this.progress.release(item.page);
  }

  // Decides when to retry a REQUEST. If the relay limits the rate of this agent or of its address, all other REQUESTs
  // wait too. If the inbox of the client is full, only this one waits.
  postpone(item, err, now) {
    const delay = Math.min(err.retryAfter || 0, POST_PATIENCE); // the thread may end during a longer pause
    item.notBefore = now + backoff(item.failures++, delay);
    if (err.code !== 'RATE_LIMITED') return;
    const { limit } = err.details;
    if (limit === 'inbox') return;
    if (limit === 'postsPerAgent') this.pace.limited(this.client.postRate, delay, now);
    else if (limit === 'postsPerAddress' || limit === 'readsPerAddress') this.pace.close(delay, now);
    else { // a limit that this client does not know
      this.pace.close(Math.min(delay, 1000), now);
      return;
    }
    item.notBefore = 0; // the pace delays it
  }

  // --- ACCEPTs

  // Handles an ACCEPT, after any other run in its thread has ended. Retries after temporary failures.
  async handleAccept(key, e, page) {
    const run = new Run(this, key, e), thread = threadOf(e);
    while (this.running.has(key)) await this.running.get(key).done;
    const err = await run.alone(async () => {
      for (let failures = 0; ; failures++) {
        try { return await run.step(); } catch (err) {
          if (run.signal.aborted || isPermanent(err)) throw err;
          this.client.log(`handling an ACCEPT failed, will be retried (thread ${thread})`, err);
          await pause(backoff(failures, Math.min(err.retryAfter || 0, POST_PATIENCE)), run.signal);
        }
      }
    });
    if (this.signal.aborted) return; // the saved cursor stays before this ACCEPT, so the work is done after a restart
    if (err !== undefined) this.client.log(`the agent does nothing more in a thread (thread ${thread})`, err);
    this.progress.release(page);
  }

  // Posts the manifest, and posts it again after half of its lifetime.
  async announce() {
    const intents = this.intents.map((id) => ({ id })), defaults = { id: 'main', intents, pricing: this.pricing };
    const manifest = { ...defaults, ...this.manifest };
    for (let failures = 0; ;) {
      let wait;
      try {
        this.pace.spend(performance.now());
        const receipt = await this.client.post('MANIFEST', manifest, {}, { signal: this.signal });
        failures = 0;
        wait = Math.max((Date.parse(receipt.expiresAt) - this.client.now()) / 2, MINUTE);
      } catch (err) {
        if (this.signal.aborted) return;
        if (isPermanent(err)) {
          this.client.log('the manifest was refused, and will not be posted again', err);
          return;
        }
        this.client.log('posting the manifest failed, will be retried', err);
        wait = Math.min(err.retryAfter || 0, HOUR);
      }
      try { await pause(backoff(failures++, wait), this.signal); } catch { return; }
    }
  }
}

// What an agent does in one thread to handle one event: a REQUEST or an ACCEPT.
class Run {
  triedPost = false;
  unposted; // the payload of an OFFER that could not be posted yet
  request; // the client's REQUEST, as soon as it is known
  accept; // the hash of the ACCEPT that the answers are for
  outcome; // the message after the work; kept, so a retry of the post does not repeat the work

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
    // The message may have any request_id, because that of the relay's record is not signed.
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
    await this.post('OFFER', { ...payload, request_id: requestId });
  }

  // The payload of the OFFER. Throws AgentError if there is none.
  async quote(request) {
    const { agent, unposted } = this;
    if (!agent.serves(request)) {
      throw new AgentError('INTENT_NOT_SUPPORTED', `this agent only serves these intents: ${agent.intents.join(', ')}`);
    }
    const job = jobOf(request);
    if (unposted && !(unposted.valid_until && Date.parse(unposted.valid_until) <= agent.client.now())) return unposted;
    const quote = linked(this.signal), late = new AgentError('TIMEOUT', 'the quote took too long');
    const timer = setTimeout(() => quote.abort(late), agent.quoteSeconds * 1000);
    try {
      return await this.call('quote', async () => offerOf(await agent.quote(job, { signal: quote.signal }), job));
    } finally {
      clearTimeout(timer);
      quote.unlink();
    }
  }

  // Does the work, unless that was done, and posts the outcome.
  async finish(request, accept, { deadline }) {
    this.outcome ??= request ? await this.perform(request, accept, deadline) : ['ERROR', errorOf(new AgentError(
      'UNAVAILABLE', 'the REQUEST has expired, so the agent can no longer read it; send a new REQUEST'))];
    try { await this.post(...this.outcome); } catch (err) {
      if (this.signal.aborted || !isPermanent(err) || protocol.movedOn.includes(err.code)) throw err;
      this.agent.client.log('the outcome of the work cannot be posted, so the client gets an ERROR', err);
      this.outcome = ['ERROR', errorOf(INTERNAL)];
      await this.post(...this.outcome);
    }
  }

  // The type and payload of the message with the outcome of the work.
  async perform(request, accept, deadline) {
    const { agent, client } = this, { request_id: requestId } = request.payload;
    try {
      const job = jobOf(request);
      await this.checkProof(accept, request);
      agent.queue.earn(client);
      await agent.workSlots.acquire(this.signal, client);
      const work = linked(this.signal), left = deadline ? Date.parse(deadline) - agent.client.now() + SKEW : Infinity;
      const late = new AgentError('TIMEOUT', 'the deadline of the thread has passed');
      const timer = setTimeout(() => work.abort(late), Math.min(left, 2 ** 31 - 1));
      try {
        const output = await this.call('work', () => agent.work(job, { signal: work.signal }));
        const { status, ...rest } = output instanceof Result ? output : new Result(output);
        return ['RESULT', { ...rest, status, request_id: requestId }];
      } finally {
        clearTimeout(timer);
        work.unlink();
        agent.workSlots.release(client);
      }
    } catch (err) {
      if (!(err instanceof AgentError)) throw err;
      return ['ERROR', errorOf(err, requestId)];
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

  // Calls a function of the handler. Throws AgentError if that fails, and the signal's reason if the run was stopped.
  async call(name, act) {
    try {
      const result = await act();
      this.signal.throwIfAborted();
      return result;
    } catch (err) {
      this.signal.throwIfAborted();
      if (err instanceof AgentError) throw err;
      this.agent.client.log(`the function ${name} failed, so the client gets an ERROR (thread ${this.thread})`, err);
      throw INTERNAL;
    }
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
    await agent.client.post(type, payload, { to, thread, seal, ...links(home, re) }, { signal, retryLimited, signed });
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

// A price of the program in the form of messages. A number is in USD.
function priceOf(price) {
  const full = typeof price === 'number' ? { amount: price, currency: 'USD' } : price;
  const fits = isObject(full) && Number.isFinite(full.amount) && full.amount >= 0 && typeof full.currency === 'string';
  if (!fits) throw new TypeError('a price must be a number of USD, or { amount, currency }, and not negative');
  return full;
}

const pricingOf = ({ amount, currency }) =>
  amount === 0 ? { model: 'free' } : { model: 'fixed', currency, fixed_price: amount };

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
