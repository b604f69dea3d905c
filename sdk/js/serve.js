// The agent's side of threads: it answers REQUESTs with offers, and does the work when an offer is accepted. For each
// event the agent reads the state of the thread from the relay, and then posts the next message. So it survives a crash
// at any time.
import { backoff, pause, POST_PATIENCE, protocol, Refused, threadOf } from './agora.js';
import { flaw, hashOf } from './links.js';
import { Desk } from './desk.js';
import { Cancelled, isPermanent } from './errors.js';
import { Pace, Progress, Queue, Recent, Slots } from './queue.js';
import { isObject, linked, pages } from './reading.js';
import { priceOf, Run } from './run.js';

// How many ACCEPTs are handled at once. With more, the agent stops reading events. It remembers as many REQUESTs, if
// each has at most MAX_REMEMBERED characters.
const MAX_ACCEPTS = 1024, MAX_REMEMBERED = 32 << 10;
const HOUR = 3_600_000, MINUTE = 60_000, LOG_EVERY = 10_000; // milliseconds

/** See Client.serve. A Network starts the agents at its relays with start. */
export async function serve(client, intents, options = {}, start) {
  const names = [intents].flat(), { work, quote, manifest, price, attempts = 3 } = options;
  if (names.length === 0 || !names.every((name) => typeof name === 'string' && name !== '')) {
    throw new TypeError('serve needs the names of the intents that the agent serves');
  }
  if (typeof work !== 'function' || quote !== undefined && typeof quote !== 'function') {
    throw new TypeError('serve needs a function work, and quote must be a function too');
  }
  if (manifest !== undefined && !isObject(manifest)) {
    throw new TypeError("manifest must be an object such as { name: 'Upper' }");
  }
  if (!(attempts >= 1)) throw new TypeError('attempts must be 1 or more');
  if (price !== undefined) priceOf(price);
  if (!client.me) throw new Refused('INVALID_REQUEST', 'an agent needs an identity: new Client(url, { me })');
  const desk = new Desk(client, options), agentAt = (relay, more) =>
    new Agent(desk, relay, names, { ...options, ...more });
  await desk.state.load(client.me.did);
  if (start) start(desk, agentAt);
  else desk.start(agentAt(client).run());
  await desk.ended();
}

// The store of the cursor at the relay of client, in state. It can be loaded as soon as the relay says who it is.
function cursorIn(state, client, signal) {
  let store;
  const load = async () => {
    for (let failures = 0; !store; failures++) {
      try { store = state.cursor(await client.relayDid({ signal })); } catch (err) {
        signal.throwIfAborted();
        client.log('the relay does not say who it is, will be retried', err);
        await pause(backoff(failures, err.retryAfter), signal);
      }
    }
    return store.load();
  };
  return { load, save: (cursor) => store.save(cursor) };
}

const pricingOf = ({ amount, currency }) =>
  amount === 0 ? { model: 'free' } : { model: 'fixed', currency, fixed_price: amount };

// What an agent does at one relay. A desk has what these parts share.
class Agent {
  constructor(desk, client, intents, options) {
    const { price, quote = () => price ?? 0, manifest, cursor, concurrency = 8, quoteSeconds = 60, dropped,
      broadcast = true } = options;
    this.pricing = options.quote && price === undefined ? undefined : pricingOf(priceOf(price ?? 0));
    Object.assign(this, { desk, client, intents, quote, manifest, dropped, quoteSeconds });
    this.me = client.me.did;
    this.filter = { recipient: this.me, broadcast };
    this.stop = linked(desk.signal);
    this.signal = this.stop.signal;
    this.cursor = cursor ?? (options.state && cursorIn(options.state, client, this.signal));
    this.progress = new Progress(this.cursor, (err) => desk.stop.abort(err));
    this.queue = new Queue();
    this.pace = new Pace();
    this.acceptSlots = new Slots(MAX_ACCEPTS);
    this.readSlots = new Slots(concurrency); // for reads of the state of threads with an ACCEPT, and of its proof
    this.answerSlots = new Slots(concurrency);
    this.running = new Map(); // by thread: what is being done there
    this.requests = new Recent(MAX_ACCEPTS); // by thread: see Run.findRequest
    this.offers = new Recent(MAX_ACCEPTS); // by thread: the hash of the last OFFER of this agent
    this.tasks = new Set();
    this.droppedCount = 0;
    this.droppedLogged = -Infinity;
  }

  // Runs until the desk ends, or until an error that a retry cannot fix. Throws why.
  async run() {
    this.start(this.answerAll());
    if (this.manifest) this.start(this.announce());
    try {
      const { cursor: store, filter, signal } = this;
      for await (const page of pages(this.client, { filter, store, from: 'oldest', signal })) {
        if (page.moved || page.events.length > 0) await this.page(page);
      }
    } catch (err) { this.stop.abort(err); }
    await Promise.all(this.tasks);
    await this.progress.saved();
    this.stop.unlink();
    throw this.signal.reason;
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
      if (client === this.me) continue;
      const agent = await this.agentFor(e, key);
      if (!agent) continue;
      if (e.type === 'CANCEL' || e.type === 'ERROR') {
        this.withdraw(client, thread);
        this.running.get(key)?.stop.abort(new Cancelled());
      } else if (e.type === 'REQUEST' && (e.recipient || this.serves(e))) {
        const handled = await this.desk.claim(e, agent === this);
        if (!handled) continue;
        this.progress.hold(page);
        const done = () => { handled(); this.progress.release(page); };
        agent.drop(agent.queue.put({ client, thread, key, event: e, done, failures: 0 }, performance.now()));
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

  // The agent that handles e: this one, or the agent at the home of a REQUEST that other relays have too. It is
  // undefined if e does not belong to a thread at this relay, by its home and by what it answers (RELAYS ).
  // This does not check what the agent does not know.
  async agentFor(e, key) {
    let why;
    const { home } = e.meta ?? {}, relay = () => this.client.relayDid({ signal: this.signal });
    if (home && await relay().catch(() => home.did) !== home.did) {
      why = 'its home is another relay';
      try { if (e.type === 'REQUEST' && this.desk.agentAt) return await this.desk.agentAt(home); } catch (err) {
        this.signal.throwIfAborted();
        why = err.message;
      }
    } else if (home && this.desk.state.caught(home.did)) why = 'its home has lied, and is not used any more';
    else if (e.type === 'CANCEL' || e.type === 'ERROR') {
      const run = this.running.get(key), queued = this.queue.find(e.sender.id, threadOf(e));
      const known = run?.request ?? queued?.event ?? this.requests.get(key);
      if (known) why = flaw(e, known.meta?.home, [await hashOf(known), run && await hashOf(run.event)]);
    }
    if (why) this.client.log(`the ${e.type} ${e.id} of ${e.sender.id} is ignored: ${why}`);
    return why ? undefined : this;
  }

  serves(request) { return this.intents.includes(request.payload.intent); }

  // Removes the REQUEST of a thread from the queue, and returns it.
  withdraw(client, thread) {
    const item = this.queue.withdraw(client, thread);
    item?.done();
    return item?.event;
  }

  remember(key, request) {
    if (JSON.stringify(request).length <= MAX_REMEMBERED) this.requests.add(key, request);
  }

  // Reports REQUESTs that get no answer: too many were waiting, or their ttl ended.
  drop(items) {
    for (const { event, done } of items) {
      this.droppedCount++;
      if (performance.now() - this.droppedLogged >= LOG_EVERY) {
        this.droppedLogged = performance.now();
        this.client.log(`${this.droppedCount} REQUESTs were dropped without an answer: too many were waiting, or ` +
          'their ttl ended');
      }
      this.dropped?.(event);
      done();
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
    item.done();
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
    this.desk.done(run);
    if (this.signal.aborted) return; // the saved cursor stays before this ACCEPT, so the work is done after a restart
    if (run.ended) this.desk.leave(run);
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
        const receipt = await this.desk.publish(this.client, manifest, { signal: this.signal });
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
      try { await this.desk.rest(backoff(failures++, wait), this.signal); } catch { return; }
    }
  }
}

