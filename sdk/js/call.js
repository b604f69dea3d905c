// The client's side of a thread.
import { instant, printable } from './agora.js';
import { flaw, hashOf, links } from './links.js';
import { AgentError, Cancelled, Closed, Gone, isPermanent, Plain, Unacceptable, Unproven } from './errors.js';
import { hint } from './outlook.js';
import { isClosed, isObject, linked, nameOf, newSeen, pages, wasSealed } from './reading.js';

const MAX_COLLECTED = 1000; // offers
const SILENCE = 5; // seconds until best says why there may be no offer
const isOptional = (v, type) => v === undefined || v === null || typeof v === type;

/** The milliseconds since 1970 of a Date or an RFC 3339 text. */
export const timeOf = (time) => time instanceof Date ? time.getTime() : Number(instant(time) / 1_000_000n);

/** The form of a time in messages. */
export const formatTime = (time) => new Date(timeOf(time)).toISOString();

/** Whether a price can be compared with max_cost_usd: it is in USD, or it is zero, in any currency. */
export const isUSD = ({ amount, currency }) => currency.toUpperCase() === 'USD' || amount === 0;

/** The constraints in the payload of a REQUEST, or undefined. Throws TypeError if an option is wrong. */
export function constraintsOf(constraints = {}, maxCost, deadline) {
  const all = { ...constraints };
  if (maxCost !== undefined && !(typeof maxCost === 'number' && maxCost >= 0)) {
    throw new TypeError('maxCost must be a number of USD, 0 or more');
  }
  if (deadline !== undefined && (deadline === null || !isOptionalTime(deadline))) {
    throw new TypeError('deadline must be a valid Date, or an RFC 3339 text such as 2030-01-31T12:00:00Z');
  }
  if (maxCost !== undefined && maxCost !== Infinity) all.max_cost_usd = maxCost;
  if (deadline !== undefined) all.deadline = formatTime(deadline);
  return Object.keys(all).length > 0 ? all : undefined;
}

/** The payload of a REQUEST without request_id. Throws TypeError if an option is wrong. now, if it is given, is the
 *  time before which the deadline must not be. */
export function payloadOf(intent, params, { constraints, maxCost, deadline, title, description }, now) {
  if (typeof intent !== 'string' || intent === '') throw new TypeError('intent must be a text that is not empty');
  const limits = constraintsOf(constraints, maxCost, deadline);
  if (now && limits?.deadline && timeOf(limits.deadline) <= now) {
    throw new TypeError(`deadline has passed already: ${limits.deadline}`);
  }
  return { intent, title, description, params, constraints: limits };
}

/** Whether the payload of a REQUEST has the form that the protocol requires. */
export function isRequest({ intent, title, description, constraints: limits }) {
  if (typeof intent !== 'string' || !isOptional(title, 'string') || !isOptional(description, 'string')) return false;
  if (limits === undefined || limits === null) return true;
  return isObject(limits) && isOptional(limits.max_cost_usd, 'number') && isOptional(limits.max_latency_ms, 'number') &&
    isOptionalTime(limits.deadline);
}

function isOptionalTime(time) {
  try { return time === undefined || time === null || Number.isFinite(timeOf(time)); } catch { return false; }
}

// The offer in an OFFER, or undefined if its payload is malformed.
function offerOf(envelope) {
  const { payload } = envelope, { price, plan, eta_seconds: etaSeconds, valid_until: until } = payload;
  if (!isOptional(plan, 'string') || !isOptional(etaSeconds, 'number') || !isOptionalTime(until)) return undefined;
  const offer = { agent: envelope.sender.id, requestId: payload.request_id, payload, envelope };
  if (price !== undefined && price !== null) {
    const { amount, currency } = price;
    if (!isObject(price) || !isOptional(amount, 'number') || !isOptional(currency, 'string')) return undefined;
    offer.price = { amount: amount ?? NaN, currency: currency ?? '' };
  }
  if (plan) offer.plan = plan;
  if (typeof etaSeconds === 'number') offer.etaSeconds = etaSeconds;
  if (until) offer.validUntil = new Date(timeOf(until));
  return offer;
}

const cost = ({ price = { amount: 0, currency: '' } }) => isUSD(price) ? price.amount : Infinity;
const eta = ({ etaSeconds = Infinity }) => etaSeconds;
const by = (value) => (a, b) => value(a) === value(b) ? 0 : value(a) - value(b);
const RULES = { cheapest: by(cost), fastest: by(eta), first: () => 0 };

export class Call {
  #client;
  #requestId;
  #recipient; // the only agent that may offer
  #constraints; // of the REQUEST; undefined: not known
  #intent; // undefined: not known
  heard; // gets undefined after each poll that was answered, and else the error
  #agent;
  #home; // of the thread; undefined: it has none
  #request; // the hash of the REQUEST; undefined: not known, because the call was resumed
  #accepts; // the agents whose offers this client has accepted, by the hashes of the ACCEPTs
  #sealDirected; // seal messages to one agent even if seal is false

  // Only the package makes calls: see Client.request and Client.resume.
  constructor(client, { thread, requestId, recipient, intent, constraints, agent, home, request, accepts, seal,
    sealDirected = false, allowPlain }) {
    Object.assign(this, { thread, seal: Boolean(seal), allowPlain: Boolean(allowPlain) });
    this.#client = client;
    this.#requestId = requestId;
    this.#recipient = recipient;
    this.#intent = intent;
    this.#constraints = constraints;
    this.#agent = agent;
    this.#home = home;
    this.#request = request;
    this.#accepts = new Map(accepts);
    this.#sealDirected = sealDirected;
  }

  // Completes a resumed call with what its caller knows.
  continueAs({ limits = this.#constraints, seal = this.seal, allowPlain = this.allowPlain, request = this.#request }) {
    this.#constraints = limits;
    this.#request = request;
    Object.assign(this, { seal, allowPlain: Boolean(allowPlain) });
  }

  get agent() { return this.#agent; }
  /** The agent for which this client has signed an ACCEPT, whether the relay has it or not. */
  get named() { return [...this.#accepts.values()].at(-1) ?? this.#agent; }
  get home() { return this.#home; }
  get requestId() { return this.#requestId; }
  get recipient() { return this.#recipient; }

  async *offers({ signal } = {}) {
    for await (const { event: e, state } of this.#watch(signal)) {
      if (state === 'ACTIVE' || state === 'COMPLETED' || e && isAccept(e, this.#client.me.did, this.#requestId)) return;
      const offer = e && this.#offer(e);
      if (offer) yield offer;
    }
  }

  async collect({ seconds = 5, signal } = {}) {
    const all = [];
    for await (const offer of this.#offersWithin(seconds, signal)) if (all.push(offer) === MAX_COLLECTED) break;
    return all;
  }

  async best(rule = 'cheapest', { seconds = rule === 'first' ? Infinity : 5, maxCost, deadline, signal } = {}) {
    const compare = typeof rule === 'function' ? rule : Object.hasOwn(RULES, rule) && RULES[rule];
    if (!compare) throw new TypeError("the rule must be 'cheapest', 'fastest', 'first' or a function that compares");
    if (this.agent) throw new Unacceptable('an offer was accepted already; wait for its result');
    const limits = this.#limits(maxCost, deadline), good = [];
    let reason, silence;
    if (seconds > SILENCE) silence = setTimeout(() => this.#explainSilence(limits, signal), SILENCE * 1000);
    try {
      for await (const offer of this.#offersWithin(seconds, signal)) {
        clearTimeout(silence);
        const why = this.#objection(offer, limits);
        if (why) reason = `no offer is acceptable: ${why}`;
        else if (rule === 'first') return offer;
        else if (good.push(offer) === MAX_COLLECTED) break;
      }
    } finally { clearTimeout(silence); }
    const [best] = good.filter((offer) => !this.#objection(offer, limits)).sort(compare); // some may have ended since
    if (best) return best;
    reason ??= `there was no offer within ${seconds} seconds; ${await this.#hint(limits, signal)}`;
    throw Unacceptable.none(reason, true);
  }

  async #explainSilence(limits, signal) {
    this.#client.log(`no offer after ${SILENCE} seconds; ${await this.#hint(limits, signal)}`);
  }

  // Why there may be no offer, by the relay's directory.
  async #hint(limits, signal) {
    const options = { to: this.#recipient, maxCost: limits?.max_cost_usd };
    if (this.#intent === undefined) return hint(undefined, '', options);
    const found = await this.#client.outlook(this.#intent, { ...options, signal }).catch(() => undefined);
    return hint(found, this.#intent, options);
  }

  // The offers that come within this time.
  async *#offersWithin(seconds, signal) {
    const ours = linked(signal), over = Symbol('the time is over');
    const timer = seconds === Infinity ? undefined
      : setTimeout(() => ours.abort(over), Math.min(seconds * 1000, 2 ** 31 - 1));
    try { yield* this.offers({ signal: ours.signal }); } catch (err) {
      if (err !== over) throw err;
    } finally {
      clearTimeout(timer);
      ours.unlink();
    }
  }

  async accept(offer, { maxCost, deadline, signal, failed } = {}) {
    const limits = this.#limits(maxCost, deadline), why = this.#objection(offer, limits);
    if (why) throw new Unacceptable(why);
    const { agent, price } = offer, terms = {}, { named } = this;
    if (this.#home && named && named !== agent) {
      throw new Unacceptable(`this client has signed an ACCEPT for ${named} already, and two ACCEPTs of one REQUEST ` +
        'prove that it has broken its word; make a new request');
    }
    if (!price || isUSD(price)) terms.price_usd = price?.amount ?? 0; // so the agent cannot claim another price later
    if (limits.deadline) terms.deadline = limits.deadline;
    const seal = this.seal || this.#sealDirected || wasSealed(offer.envelope);
    const payload = { request_id: this.#requestId, accepted_at: new Date(this.#client.now()).toISOString(), terms };
    this.#sealDirected = seal;
    const draft = { to: agent, thread: this.thread, seal, ...links(this.#home, await hashOf(offer.envelope)) };
    const signed = async (e) => { this.#accepts.set(await hashOf(e), agent); };
    await this.#client.post('ACCEPT', payload, draft, { signal, signed, failed });
    this.#agent = agent;
  }

  // The constraints that an offer must keep; undefined: not known.
  #limits(maxCost, deadline) {
    if (maxCost === undefined && deadline === undefined) return this.#constraints;
    const { max_cost_usd: _, ...others } = this.#constraints ?? {};
    return constraintsOf(maxCost === undefined ? this.#constraints : others, maxCost, deadline) ?? {};
  }

  // Why an offer cannot be accepted; undefined: it can.
  #objection(offer, limits) {
    const now = this.#client.now();
    if (!offer?.agent || offer.requestId !== this.requestId) return 'the offer belongs to another request';
    if (!limits) {
      return 'the constraints of the request are not known, because the relay does not show the REQUEST, or it is ' +
        'sealed; pass maxCost (Infinity: no limit)';
    }
    const { price, etaSeconds = 0, validUntil } = offer, { max_cost_usd: maxCost, deadline } = limits;
    if (validUntil && now >= validUntil) return `the offer was valid until ${formatTime(validUntil)} only`;
    if (price && Number.isNaN(price.amount)) return 'its price has no number as amount';
    if (price?.amount < 0) return 'its price is negative';
    if (typeof maxCost === 'number' && price) {
      if (!isUSD(price)) return `the price is in "${printable(price.currency)}", which cannot be compared with maxCost`;
      if (price.amount > maxCost) return `it costs ${price.amount} USD, and maxCost is ${maxCost}`;
    }
    if (deadline && (timeOf(deadline) - now) / 1000 <= Math.max(etaSeconds, 0)) {
      return `with an ETA of ${etaSeconds} s the result would come too late for the deadline, ${deadline}`;
    }
    return undefined;
  }

  async result({ signal } = {}) {
    const { named } = this;
    if (!named) throw new Unacceptable('there is no result to wait for; accept an offer first');
    for await (const { event: e, state } of this.#watch(signal)) {
      if (e?.type === 'RESULT' && e.sender.id === named && this.#forMe(e)) {
        this.#checkSeal(e);
        const { status, output, artifacts, metrics } = e.payload;
        return { output, status, artifacts, metrics, agent: e.sender.id, envelope: e };
      }
      if (state === 'COMPLETED') throw new Gone();
    }
    throw new Gone(); // not reached: watching ends with an error
  }

  async state({ signal } = {}) {
    const { thread: record, events } = await this.#client.thread(this.thread, this.#client.me.did, { signal });
    const { agent, accepts } = await accepted(events, this.#client.me.did, this.#requestId, this.#recipient);
    this.#agent = agent ?? this.#agent;
    for (const [hash, to] of accepts) this.#accepts.set(hash, to);
    return {
      thread: this.thread, state: record.state, agent: this.#agent, offers: record.offers.length,
      deadline: record.deadline === undefined ? undefined : new Date(record.deadline),
    };
  }

  async cancel(reason = '', { signal } = {}) {
    const to = this.#agent ?? this.#recipient, seal = this.seal || this.#sealDirected && Boolean(to);
    const isSecret = this.#sealDirected && !seal; // a broadcast cannot be sealed, and the REQUEST may have been
    const payload = { request_id: this.#requestId, ...(reason && !isSecret && { reason }) };
    const re = [...this.#accepts.keys()].at(-1) ?? this.#request;
    await this.#client.post('CANCEL', payload, { to, thread: this.thread, seal, ...links(this.#home, re) }, { signal });
  }

  // An answer to this call. A thread of another client may have the same id, so the request_id must match too. The
  // recipient may be absent, because some agents leave it out.
  #forMe(e) {
    const { did } = this.#client.me;
    return e.sender.id !== did && e.payload.request_id === this.#requestId &&
      (!e.recipient || e.recipient.id === did) && this.#isLinked(e);
  }

  // Whether an answer names the home of the thread and the message that it answers (RELAYS ). A resumed call
  // does not check what it does not know.
  #isLinked(e) {
    const accepts = [...this.#accepts.keys()], answers = { OFFER: [this.#request], RESULT: accepts,
      ERROR: [this.#request, ...accepts] }[e.type];
    if (!answers || answers.every((hash) => hash === undefined)) return true;
    // A sender that knows no homes is accepted, as in a thread without a home. But a Network needs homes to continue a
    // job.
    if (!e.meta?.home && !e.meta?.re && !this.#client.inNetwork) return true;
    const why = flaw(e, this.#home, answers);
    if (why) this.#client.log(`the ${e.type} ${e.id} of ${e.sender.id} is ignored: ${why}`);
    return !why;
  }

  // Reads an OFFER to this call. An OFFER that cannot be accepted is left out, because anybody may send one. But a
  // sealed REQUEST asks one agent only, which will make no second OFFER.
  #offer(e) {
    if (e.type !== 'OFFER' || !this.#forMe(e) || this.#recipient && e.sender.id !== this.#recipient) return undefined;
    try { this.#checkSeal(e); } catch (err) {
      if (this.seal && this.#recipient) throw err;
      this.#client.log(`an offer of ${e.sender.id} was left out`, err);
      return undefined;
    }
    const offer = offerOf(e);
    if (!offer) this.#client.log(`an offer of ${e.sender.id} was left out, because its payload is malformed`);
    return offer;
  }

  #checkSeal(e) {
    if (isClosed(e)) throw new Closed(e.type);
    if (this.seal && !this.allowPlain && !wasSealed(e)) throw new Plain(e.type);
  }

  // Yields { event } for each event of the thread, and { state }, the relay's claim, whenever it has asked for that:
  // when a poll brings no new event, and after an ERROR or a CANCEL. Ends with an error when the thread has ended
  // without a RESULT. The events do not show that: an ERROR may also withdraw an offer, or belong to another client's
  // thread with the same id. And the awaited message may have expired while this client was not connected.
  async *#watch(signal) {
    const client = this.#client, seen = newSeen();
    const filter = { thread: this.thread }, { heard } = this;
    for await (const { events } of pages(client, { filter, from: 'oldest', seen, signal, heard })) {
      for (const event of events) yield { event };
      if (events.length > 0 && !events.some(({ type }) => type === 'ERROR' || type === 'CANCEL')) continue;
      let record;
      try { record = await client.thread(this.thread, client.me.did, { signal }); } catch (err) {
        signal?.throwIfAborted();
        heard?.(err);
        if (isPermanent(err)) throw err;
        client.log('reading a thread failed, will be retried', err);
        continue;
      }
      for (const event of record.events) if (seen.add(nameOf(event))) yield { event };
      yield { state: record.thread.state };
      const end = await this.#end(record, signal);
      if (end) throw end;
    }
  }

  // The error for a thread that has ended without a RESULT, by the relay's record; undefined for any other thread.
  async #end({ thread: { state, transitions }, events }, signal) {
    const last = transitions.at(-1), me = this.#client.me.did;
    if (state !== 'ERROR' || !last) return undefined;
    if (last.type === 'TIMEOUT') {
      const from = await this.#client.relayDid({ signal }).catch(() => undefined);
      return new AgentError('TIMEOUT', 'the relay ended the thread, because no message came before its deadline',
        { from });
    }
    if (last.by === me) return new Cancelled();
    const e = events.find((other) => other.id === last.id && other.sender.id === last.by && other.type === 'ERROR' &&
      (!other.recipient || other.recipient.id === me) && this.#isLinked(other));
    if (!e) return new Gone();
    if (isClosed(e)) return new Closed(e.type);
    const { code, message, details } = e.payload;
    const failed = new AgentError(code, message, { details, from: e.sender.id });
    return this.seal && !this.allowPlain && !wasSealed(e) ? new Plain(e.type, failed) : failed;
  }
}

const isAccept = (e, me, requestId) => e.type === 'ACCEPT' && e.sender.id === me && e.payload.request_id === requestId;

// The agent whose offer was accepted by me, according to verified events, and the ACCEPTs: the hashes, with the agents.
async function accepted(events, me, requestId, recipient) {
  const found = events.filter((e) => isAccept(e, me, requestId)), accepts = [];
  for (const e of found) {
    accepts.push([await hashOf(e), e.recipient?.id ?? onlyOffer(events, me, requestId, recipient)]);
  }
  return { accepts, agent: accepts.at(-1)?.[1], home: found.at(-1)?.meta?.home };
}

// The only agent with an open OFFER; undefined: there is none, or more than one. An ERROR of the agent withdraws its
// offer.
function onlyOffer(events, me, requestId, recipient) {
  const open = new Set();
  for (const e of events) {
    const from = e.sender.id, mine = e.payload.request_id === requestId && (!e.recipient || e.recipient.id === me);
    if (e.type === 'OFFER' && from !== me && mine && (!recipient || from === recipient)) open.add(from);
    else if (e.type === 'ERROR') open.delete(from);
  }
  return open.size === 1 ? [...open][0] : undefined;
}

/** The REQUEST in the record of a thread, or undefined. */
export const requestIn = ({ thread, events }) => events.find((e) => e.type === 'REQUEST' &&
  e.sender.id === thread.client && e.payload.request_id === thread.requestId);

/** The Call of a record. It takes the agent and the request from what the caller knows, and from messages that this
 *  client has signed: the record itself is not signed. */
export async function resumed(client, record, { requestId, to }) {
  const { thread, events } = record, me = thread.client;
  if (requestId) thread.requestId = requestId;
  const request = requestIn(record), recipient = request ? request.recipient?.id : to;
  const { accepts, agent, home } = await accepted(events, me, thread.requestId, recipient);
  if (accepts.length === 0 && !request && !requestId) throw new Unproven();
  const counterpart = agent ?? recipient, known = { thread: thread.id, requestId: thread.requestId };
  const chain = { home: request?.meta?.home ?? home, request: request && await hashOf(request), accepts };
  const intent = request?.payload.intent, call = { ...known, ...chain, recipient, agent, intent };
  const sealed = Boolean(counterpart) && events.some((e) => e.payload.request_id === thread.requestId && wasSealed(e) &&
    (e.sender.id === me && e.recipient?.id === counterpart || e.sender.id === counterpart && e.recipient?.id === me));
  if (!request) return new Call(client, { ...call, seal: sealed, sealDirected: true });
  const isOpen = !isClosed(request);
  if (isOpen && !isRequest(request.payload)) throw new Unacceptable('the REQUEST of this thread is malformed');
  return new Call(client, { ...call, constraints: isOpen ? request.payload.constraints ?? {} : undefined,
    seal: wasSealed(request), sealDirected: sealed });
}
