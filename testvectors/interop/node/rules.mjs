// What a relay checks beyond the form and the signature of a message (PROTOCOL §1, §3, §4, §6): whether it is fresh,
// meant for this relay, and new, and whether the thread allows it. Clients and agents do not need this. It is here because a
// second implementation of the rules finds gaps in the specification.
import { canonicalText, instant, protocol, Refused, threadOf } from '../../../sdk/js/index.js';

const SECOND = 1_000_000_000n, PENDING_TIMEOUT = 300n * SECOND, ACTIVE_TIMEOUT = 3600n * SECOND, MEMORY = 1800n * SECOND;
const MAX_OFFERS = 100;
export const REQUIRED = { REQUEST: ['intent'], RESULT: ['status'], ERROR: ['code', 'message'] };
const CLOSENESS = { FORBIDDEN: 1, INVALID_REQUEST: 2 }; // how near a refusal is to acceptance; other codes: 3
const refuse = (code, what) => { throw new Refused(code, what); };

/** Refuses a message that is five minutes or more off, or expired. Times are in nanoseconds. */
export function checkFresh(ts, ttl = protocol.defaultTtl, now) {
  if (now - 300n * SECOND >= ts || ts >= now + 300n * SECOND) refuse('STALE_TIMESTAMP', 'ts is too far from now');
  if (now >= expiry(ts, ttl)) refuse('EXPIRED', 'ts + ttl has passed');
}

/** The time until which an event is kept: ts + ttl, at most thirty days. */
export const expiry = (ts, ttl = protocol.defaultTtl) => ts + BigInt(Math.min(ttl, 30 * 86400)) * SECOND;

/** Checks what a relay with this origin checks of an envelope at the time now, before it uses its storage. */
export function checkMeant(e, origin, now) {
  checkFresh(instant(e.ts), e.meta?.ttl, now);
  if (e.meta?.relay !== undefined && ![e.meta.relay].flat().includes(origin)) refuse('FORBIDDEN', 'meant for another relay');
  const key = e.type === 'MANIFEST' ? e.payload.auth?.public_key : undefined;
  if (key !== undefined && ![key, `did:key:${key}`].includes(e.sender.id)) refuse('INVALID_REQUEST', "another's public_key");
}

/** The memory of a relay: the messages it has accepted, and the threads of each id, oldest first. */
export class Ledger {
  seen = new Map();
  threads = new Map();

  /** Accepts a fresh, verified envelope at the time now. Returns {duplicate, state, client}, or throws Refused. */
  take(e, now) {
    const key = `${e.sender.id} ${e.id}`, text = canonicalText(e), known = this.seen.get(key);
    if (known && now < known.until) {
      if (known.text !== text) refuse('DUPLICATE_ID', 'another message of the sender has this id');
      return { ...known.answer, duplicate: true };
    }
    const answer = e.type === 'MANIFEST' ? {} : this.move(e, now);
    this.seen.set(key, { text, answer, until: now + MEMORY });
    return { ...answer, duplicate: false };
  }

  move(m, now) {
    const candidates = this.threads.get(threadOf(m)) ?? [];
    let closest;
    for (const [i, t] of candidates.entries()) {
      if (m.type === 'REQUEST' && m.sender.id !== t.client) continue; // a REQUEST by another client opens another thread
      try {
        const moved = next(t, m, now);
        candidates[i] = moved;
        return { state: moved.state, client: moved.client };
      } catch (err) {
        if (!(err instanceof Refused)) throw err;
        if (!closest || (CLOSENESS[err.code] ?? 3) > (CLOSENESS[closest.code] ?? 3)) closest = err;
      }
    }
    if (closest) throw closest;
    if (m.type !== 'REQUEST') refuse('THREAD_NOT_FOUND', 'no thread has this id');
    const opened = next(undefined, m, now);
    this.threads.set(threadOf(m), [...candidates, opened]);
    return { state: opened.state, client: opened.client };
  }
}

/** Returns the thread t after the message m at the time now. Without t, returns the thread that m opens. */
export function next(t, m, now) {
  const from = m.sender.id, to = m.recipient?.id;
  if (t && t.deadline !== undefined && now >= t.deadline) t = { ...t, state: 'ERROR', deadline: undefined };
  if (t) checkParties(t, m.type, from, to);
  else if (m.type !== 'REQUEST') refuse('THREAD_NOT_FOUND', 'a thread begins with a REQUEST');
  for (const name of REQUIRED[m.type] ?? []) {
    if (typeof m.payload[name] !== 'string' || m.payload[name] === '') refuse('INVALID_REQUEST', `payload.${name}`);
  }
  const requestId = m.payload.request_id ?? '';
  if (!t) {
    return { client: from, state: 'PENDING', requestId, named: to, offers: [], made: 0, deadline: now + PENDING_TIMEOUT };
  }
  const needsId = ['OFFER', 'ACCEPT', 'RESULT'].includes(m.type);
  if (m.type !== 'REQUEST' && requestId !== t.requestId && (needsId || requestId !== '')) refuse('INVALID_REQUEST', 'request_id');

  const wrongState = () => refuse('INVALID_TRANSITION', `the thread is ${t.state}`);
  const step = (state, change) => ({ ...t, deadline: undefined, ...change, state });
  switch (m.type) {
    case 'OFFER':
      if (t.state !== 'PENDING') wrongState();
      if (t.made >= MAX_OFFERS) refuse('RATE_LIMITED', 'too many offers');
      return step('PENDING', { offers: [...t.offers, from], made: t.made + 1, deadline: now + PENDING_TIMEOUT });
    case 'ACCEPT': {
      const offered = [...new Set(t.offers)], agent = to ?? offered[0];
      if (t.state !== 'PENDING' || !offered.includes(agent) || !to && offered.length > 1) wrongState();
      return step('ACTIVE', { agent, deadline: now + ACTIVE_TIMEOUT });
    }
    case 'CANCEL': return t.state === 'PENDING' || t.state === 'ACTIVE' ? step('ERROR') : wrongState();
    case 'RESULT': return t.state === 'ACTIVE' ? step('COMPLETED') : wrongState();
    case 'ERROR':
      if (t.state === 'ERROR') wrongState();
      if ([t.client, t.agent, t.named].includes(from)) return step('ERROR');
      return { ...t, offers: t.offers.filter((agent) => agent !== from) }; // withdraws the offer; the state stays the same
  }
  wrongState(); // a REQUEST of the client, whose thread exists already
}

// Refuses a sender that may never send this type in the thread, and a wrong recipient, whatever the state is.
function checkParties(t, type, from, to) {
  const agents = t.agent ? [t.agent] : t.named ? [t.named] : t.offers; // the agents that the client may address
  const isClient = from === t.client;
  const may = {
    OFFER: !isClient && (!t.named || from === t.named),
    RESULT: !isClient && agents.includes(from),
    ERROR: isClient || agents.includes(from) || t.offers.includes(from),
  }[type] ?? isClient;
  if (!may) refuse('FORBIDDEN', 'not yours to move');
  if (!to || type === 'REQUEST') return;
  const known = isClient ? agents.includes(to) || !t.agent && t.offers.includes(to) : to === t.client;
  if (!known) refuse(type === 'ACCEPT' ? 'INVALID_TRANSITION' : 'FORBIDDEN', 'not your counterpart');
}
