// What this page knows: the messages it has read, and what follows from them. It keeps what is in the feed and forgets
// the rest, so its memory is bounded by the feed's.
import * as agora from './agora.js';
import { isOfClient, TYPES } from './text.js';

const isObject = (v) => typeof v === 'object' && v !== null && !Array.isArray(v);
const text = (v) => (typeof v === 'string' ? v : '');
const MINUTE = 60_000;
const MINUTES_KEPT = 60;
const MAX_BYTES = 1 << 20; // of a message; some relays accept more than others
const CHECKS_AT_A_TIME = 16;
const NAMES_KEPT = 5000;

/** A message that was read. status is pending, true, false or unknown; problem says why it is not true. */
class Message {
  constructor(envelope) {
    const e = isObject(envelope) ? envelope : {};
    this.envelope = envelope;
    this.payload = isObject(e.payload) ? e.payload : {};
    this.id = text(e.id);
    this.type = TYPES.includes(e.type) ? e.type : 'UNKNOWN';
    this.from = text(e.sender?.id);
    this.name = text(e.sender?.name);
    this.to = text(e.recipient?.id);
    this.ts = Date.parse(text(e.ts));
    this.key = `${this.from} ${this.id}`;
    this.threadId = this.type === 'MANIFEST' ? '' : text(e.thread?.id) || text(this.payload.request_id);
    this.sealed = this.type !== 'MANIFEST' && Object.hasOwn(this.payload, 'sealed');
    this.status = 'pending';
    this.problem = '';
    this.hash = undefined; // the promise of its content hash, once asked for
    this.opened = undefined; // the payload, if the reader's key has opened it
    this.order = 0; // larger: later in the relay's order
    this.thread = undefined;
  }
}

export class Model extends EventTarget {
  messages = new Map(); // by sender and id
  threads = new Map(); // by client and id
  minutes = new Map(); // by minute: {messages, threads}
  about = undefined; // the relay's well-known document
  clockOffset = 0; // the relay's clock minus ours, in ms
  me = undefined; // the identity of the reader's key file
  verified = { true: 0, false: 0, unknown: 0 };
  names = new Map(); // by DID: the name in the agent's verified manifest
  #threadsById = new Map();
  #unchecked = [];
  #checking = false;
  #changed = false;

  /** The relay's time, in ms. */
  now() {
    return Date.now() + this.clockOffset;
  }

  /** Tells the views that something has changed, once for all changes of a task. */
  change() {
    if (this.#changed) return;
    this.#changed = true;
    queueMicrotask(() => {
      this.#changed = false;
      this.dispatchEvent(new Event('change'));
    });
  }

  /** Returns the message of an envelope without keeping it. If it is known, returns the known one. */
  message(envelope) {
    const m = new Message(envelope);
    const known = this.messages.get(m.key);
    if (known && JSON.stringify(known.envelope) === JSON.stringify(envelope)) return known;
    return this.#added(m);
  }

  /** Keeps a message at a place in the relay's order. Returns undefined if it was kept before. */
  keep(envelope, order) {
    const m = new Message(envelope);
    if (this.messages.has(m.key)) return undefined;
    m.order = order;
    this.messages.set(m.key, m);
    if (m.threadId) this.#enter(m);
    this.#count(m);
    return this.#added(m);
  }

  #added(m) {
    this.#unchecked.push(m);
    this.#check();
    this.change();
    return m;
  }

  /** Forgets messages. */
  forget(messages) {
    for (const m of messages) {
      this.messages.delete(m.key);
      const t = m.thread;
      if (!t) continue;
      t.messages = t.messages.filter((other) => other !== m);
      if (t.messages.length > 0) continue;
      this.threads.delete(t.key);
      const left = this.#threadsById.get(t.id).filter((other) => other !== t);
      if (left.length > 0) this.#threadsById.set(t.id, left);
      else this.#threadsById.delete(t.id);
    }
  }

  /** Threads with this id that the page has read messages of. */
  threadsWithId(id) {
    return this.#threadsById.get(id) ?? [];
  }

  // Puts a message into its thread. The client sends REQUEST, ACCEPT and CANCEL; the other types are sent to it. A
  // message that names nobody goes to the thread with its id that has its sender, or to the only one.
  #enter(m) {
    const known = this.threadsWithId(m.threadId);
    const client = isOfClient(m.type) ? m.from : m.to;
    let t =
      known.find((t) => t.client === client || t.client === m.from) ??
      known.find(
        (t) =>
          t.client === '' || (m.type !== 'REQUEST' && (client === '' || t.messages.some((o) => o.from === m.from))),
      );
    if (!t) {
      t = { id: m.threadId, client, key: `${client} ${m.threadId}`, messages: [] };
      this.#threadsById.set(t.id, [...known, t]);
      this.threads.set(t.key, t);
    } else if (t.client === '' && client !== '') {
      this.threads.delete(t.key);
      t.client = client;
      t.key = `${client} ${t.id}`;
      this.threads.set(t.key, t);
    }
    if (m.type === 'REQUEST') t.intent = text(m.payload.intent);
    t.messages.push(m);
    t.messages.sort((a, b) => a.order - b.order);
    m.thread = t;
  }

  /** Returns what the page can tell about a thread from the messages it has read. */
  stateOf(t) {
    const seconds = this.about?.seconds ?? {};
    const s = { state: 'PENDING', intent: '', title: '', offers: new Set(), agent: '', last: 0 };
    let deadline = Infinity;
    for (const m of t.messages) {
      s.last = Math.max(s.last, m.ts);
      switch (m.type) {
        case 'REQUEST':
          s.intent = text(m.payload.intent);
          s.title = text(m.payload.title);
          s.named = m.to;
          deadline = m.ts + seconds.pendingTimeout * 1000;
          break;
        case 'OFFER':
          s.offers.add(m.from);
          if (s.state === 'PENDING') deadline = m.ts + seconds.pendingTimeout * 1000;
          break;
        case 'ACCEPT':
          s.state = 'ACTIVE';
          s.agent = m.to || [...s.offers][0] || '';
          deadline = m.ts + seconds.activeTimeout * 1000;
          break;
        case 'RESULT':
          s.state = 'COMPLETED';
          s.agent ||= m.from;
          break;
        case 'CANCEL':
          s.state = 'ERROR';
          break;
        case 'ERROR':
          if (m.from === t.client || m.from === s.agent || m.from === s.named || m.from === this.about?.did)
            s.state = 'ERROR';
          else s.offers.delete(m.from);
      }
    }
    if ((s.state === 'PENDING' || s.state === 'ACTIVE') && deadline < this.now()) s.state = 'ERROR';
    return s;
  }

  #count(m) {
    if (!Number.isFinite(m.ts)) return;
    const now = Math.floor(this.now() / MINUTE);
    const minute = Math.min(Math.floor(m.ts / MINUTE), now);
    if (minute <= now - MINUTES_KEPT) return;
    const figures = this.minutes.get(minute) ?? { messages: 0, threads: 0 };
    figures.messages++;
    if (m.type === 'REQUEST') figures.threads++;
    this.minutes.set(minute, figures);
    if (this.minutes.size > MINUTES_KEPT)
      for (const at of this.minutes.keys()) if (at <= now - MINUTES_KEPT) this.minutes.delete(at);
  }

  /** Waits until the message is checked. */
  async checked(m) {
    while (m.status === 'pending')
      await new Promise((resume) => this.addEventListener('checked', resume, { once: true }));
  }

  // Checks the messages that wait for it, the newest first. Few at a time, so that the page stays quick.
  async #check() {
    if (this.#checking) return;
    this.#checking = true;
    while (this.#unchecked.length > 0) {
      await Promise.all(this.#unchecked.splice(-CHECKS_AT_A_TIME).map((m) => this.#checkOne(m)));
      this.dispatchEvent(new Event('checked'));
      await new Promise((resume) => setTimeout(resume));
    }
    this.#checking = false;
    this.change();
  }

  async #checkOne(m) {
    try {
      agora.checkEnvelope(m.envelope, { maxBytes: MAX_BYTES });
      await agora.verify(m.envelope);
      m.status = 'true';
    } catch (err) {
      m.status = err.code === 'NO_WEBCRYPTO' ? 'unknown' : 'false';
      m.problem = err.message;
    }
    if (this.messages.get(m.key) === m) this.verified[m.status]++;
    if (m.status !== 'true') return;
    if (m.type === 'MANIFEST' && text(m.payload.name)) this.#remember(m.from, m.payload.name);
    await this.#open(m);
  }

  #remember(did, name) {
    this.names.delete(did);
    this.names.set(did, name);
    if (this.names.size > NAMES_KEPT) this.names.delete(this.names.keys().next().value);
  }

  async #open(m) {
    if (!m.sealed || !this.me || m.to !== this.me.did) return;
    try {
      m.opened = await agora.open(m.envelope, this.me);
    } catch (err) {
      m.problem = err.message;
    }
  }

  /** Uses an identity, or none. The feeds must then be read again, because a key shows other messages. */
  setKey(me) {
    this.me = me;
    this.clear();
  }

  /** Forgets all messages. */
  clear() {
    this.messages.clear();
    this.threads.clear();
    this.#threadsById.clear();
    this.minutes.clear();
    this.#unchecked.length = 0;
    this.verified = { true: 0, false: 0, unknown: 0 };
    this.change();
  }
}
