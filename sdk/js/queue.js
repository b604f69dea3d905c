// What Client.serve needs to decide what it does next: which REQUEST it answers, when it may post, who gets a slot for
// work, and which cursor may be saved. Times are in milliseconds of one clock that never goes back.
import { pause, protocol } from './agora.js';

/** A map that keeps only the size keys that were added last. */
export class Recent {
  #size;
  #values = new Map();

  constructor(size) { this.#size = size; }

  /** Sets the value of a key. Returns whether the key is new. */
  add(key, value = true) {
    const isNew = !this.#values.has(key);
    this.#values.set(key, value);
    if (this.#values.size > this.#size) this.#values.delete(this.#values.keys().next().value);
    return isNew;
  }

  get(key) { return this.#values.get(key); }
}

// The ranks of a REQUEST. REQUESTs with a lower rank are answered first, except in every fourth turn.
const KNOWN = 0; // from a client with credit, see EARNED
const DIRECTED = 1; // from another client, with this agent as its recipient
const BROADCAST = 2; // from another client, without a recipient
const RANKS = 3;

// Bounds of the queue, for each rank. A relay accepts 20 offers a second by default, so a REQUEST that does not fit
// would have to wait for more than a minute and a half.
const MAX_LENGTH = 2048, MAX_SIZE = 8 << 20; // REQUESTs, and characters of their envelopes
const TURN_WINDOW = 60_000; // after this time all counts of turns are reset
const MAX_CLIENTS = 4096; // the most clients with a count of turns, and the most clients with credit
const EARNED = 8, MAX_CREDIT = 64; // credit for each job that is begun; a REQUEST of rank KNOWN uses up one
const REVERSE = 4; // every fourth turn takes the ranks in reverse order
const NEW_AGE = 1000; // how long a REQUEST counts as new, see best

/** The REQUESTs that wait for an answer. An item has client, thread and event, and the queue adds more members.
 *  notBefore of an item says when to try it again, if it is set. */
export class Queue {
  #lists = Array.from({ length: RANKS }, () => []);
  #sizes = new Array(RANKS).fill(0);
  #arrivals = 0;
  #turns = 0;
  #served = new Map(); // the number of turns of each client since #counted
  #counted = -Infinity;
  #credit = new Recent(MAX_CLIENTS);
  #wake = () => {};

  /** Gives credit to a client. It is called when the agent begins to work for that client. */
  earn(client) { this.#credit.add(client, Math.min((this.#credit.get(client) ?? 0) + EARNED, MAX_CREDIT)); }

  /** Adds a REQUEST that has just arrived. Returns the items that no longer fit; they may include this one. */
  put(item, now) {
    const ttl = (item.event.meta?.ttl ?? protocol.defaultTtl) * 1000, credit = this.#credit.get(item.client) ?? 0;
    Object.assign(item, { sequence: ++this.#arrivals, arrived: now, expires: now + ttl });
    item.size = JSON.stringify(item.event).length;
    item.rank = credit > 0 ? KNOWN : item.event.recipient ? DIRECTED : BROADCAST;
    if (credit > 0) this.#credit.add(item.client, credit - 1);
    return this.putBack(item);
  }

  /** Adds an item again that next has returned, but that could not be answered. Returns what no longer fits. */
  putBack(item) {
    const list = this.#lists[item.rank], dropped = [];
    list.push(item);
    this.#sizes[item.rank] += item.size;
    while (list.length > MAX_LENGTH || this.#sizes[item.rank] > MAX_SIZE) {
      let last = 0;
      list.forEach((other, i) => { if (this.#outranks(list[last], other)) last = i; });
      dropped.push(this.#remove(item.rank, last));
    }
    this.#wake();
    return dropped;
  }

  // Whether a is kept rather than b if only one of them fits. The client with fewer turns wins, then the later REQUEST.
  #outranks(a, b) {
    const x = this.#served.get(a.client) ?? 0, y = this.#served.get(b.client) ?? 0;
    return x === y ? a.sequence > b.sequence : x < y;
  }

  #remove(rank, i) {
    const list = this.#lists[rank], item = list[i], last = list.pop();
    if (i < list.length) list[i] = last;
    this.#sizes[rank] -= item.size;
    return item;
  }

  /** The REQUEST of a thread, or undefined. */
  find(client, thread) {
    return this.#lists.flat().find((item) => item.client === client && item.thread === thread);
  }

  /** Removes and returns the REQUEST of a thread, or undefined. */
  withdraw(client, thread) {
    const item = this.find(client, thread);
    return item && this.#remove(item.rank, this.#lists[item.rank].indexOf(item));
  }

  /** Removes and returns the REQUEST to answer now, as item, and counts a post in pace. Without one, wait is the time
   *  until there may be one; Infinity: when a REQUEST was added. late are REQUESTs whose ttl has ended. */
  next(now, pace) {
    if (now - this.#counted >= TURN_WINDOW || this.#served.size >= MAX_CLIENTS) {
      this.#served.clear();
      this.#counted = now;
    }
    const late = [], order = [...this.#lists.keys()];
    if (this.#turns % REVERSE === REVERSE - 1) order.reverse();
    let wait = Infinity;
    for (const rank of order) {
      late.push(...this.#expire(rank, now));
      let { best, soonest } = this.#best(rank, now);
      if (best >= 0) soonest = pace.until(rank === KNOWN, now);
      if (best >= 0 && soonest === 0) {
        const item = this.#remove(rank, best);
        this.#served.set(item.client, (this.#served.get(item.client) ?? 0) + 1);
        this.#turns++;
        pace.spend(now);
        return { item, late, wait: 0 };
      }
      wait = Math.min(wait, soonest);
    }
    return { late, wait };
  }

  #expire(rank, now) {
    const late = [];
    for (let i = this.#lists[rank].length - 1; i >= 0; i--) {
      if (now >= this.#lists[rank][i].expires) late.push(this.#remove(rank, i));
    }
    return late;
  }

  // The index of the REQUEST of a rank to answer next, or -1 and the time until the first retry. The client with the
  // fewest turns comes first. Among equals, it is one of the new REQUESTs at random, because to pick the newest would
  // favour a client that floods the queue. If none is new, it is the newest.
  #best(rank, now) {
    const list = this.#lists[rank], turns = (item) => this.#served.get(item.client) ?? 0;
    let best = -1, soonest = Infinity, fresh = 0;
    list.forEach((item, i) => {
      const wait = (item.notBefore ?? 0) - now;
      if (wait > 0) {
        soonest = Math.min(soonest, wait);
        return;
      }
      const isNew = now - item.arrived < NEW_AGE;
      if (best < 0 || turns(item) < turns(list[best])) {
        best = i;
        fresh = 0;
      } else if (turns(item) > turns(list[best])) return;
      else if (isNew && fresh > 0) {
        if (Math.random() * (fresh + 1) < 1) best = i;
      } else if (item.sequence > list[best].sequence) best = i;
      if (isNew) fresh++;
    });
    return { best, soonest };
  }

  /** Waits until a REQUEST is added, for ms milliseconds at most. Throws the signal's reason once it is aborted. */
  async changed(ms, signal) {
    const woken = new AbortController(), end = () => woken.abort();
    this.#wake = end;
    signal.addEventListener('abort', end);
    try { await pause(ms, woken.signal); } catch { signal.throwIfAborted(); } finally {
      signal.removeEventListener('abort', end);
    }
  }
}

/** Slots that clients share. A free slot goes to the waiting client that holds the fewest slots; among equals, to the
 *  one that has waited longest. */
export class Slots {
  #free;
  #held = new Map();
  #waiting = [];

  constructor(free) { this.#free = free; }

  /** Waits for a slot. Call release later. Throws the signal's reason. */
  async acquire(signal, client = '') {
    signal.throwIfAborted();
    await new Promise((resolve, reject) => {
      const waiter = { client, grant: () => { signal.removeEventListener('abort', end); resolve(); } };
      const end = () => {
        this.#waiting.splice(this.#waiting.indexOf(waiter), 1);
        reject(signal.reason);
      };
      signal.addEventListener('abort', end, { once: true });
      this.#waiting.push(waiter);
      this.#assign();
    });
  }

  release(client = '') {
    const held = this.#held.get(client) - 1;
    if (held > 0) this.#held.set(client, held);
    else this.#held.delete(client);
    this.#free++;
    this.#assign();
  }

  #assign() {
    const held = ({ client }) => this.#held.get(client) ?? 0;
    while (this.#free > 0 && this.#waiting.length > 0) {
      const next = this.#waiting.reduce((best, waiter) => held(waiter) < held(best) ? waiter : best);
      this.#waiting.splice(this.#waiting.indexOf(next), 1);
      this.#held.set(next.client, held(next) + 1);
      this.#free--;
      next.grant();
    }
  }
}

/** Delays an agent's offers so that they stay below the relay's limit, and the agent can always post a RESULT. It is a
 *  copy of the relay's token bucket for this sender. It delays offers only after the relay has refused a post because
 *  of the rate: a relay on the same machine may have no limit. A rate is { perSecond, burst }. */
export class Pace {
  #rate;
  #tokens = 0; // how many posts the relay would accept at once at the time #counted; negative: too many were made
  #counted = 0;
  #closed = 0; // no offers before this time

  /** The relay has refused a post because the agent posts too often. */
  limited(rate, retryAfter, now) {
    this.#refill(now);
    this.#tokens = Math.min(this.#tokens, 0);
    this.#rate = rate;
    this.#closed = now + retryAfter;
  }

  /** Stops all offers for ms milliseconds. */
  close(ms, now) { this.#closed = Math.max(this.#closed, now + ms); }

  /** How long an offer has to wait; 0: it can be made now. Some tokens are reserved for other messages: an eighth of
   *  the burst for a known client, a quarter for others. */
  until(isKnown, now) {
    const wait = Math.max(this.#closed - now, 0);
    if (!this.#rate) return wait;
    this.#refill(now);
    const { perSecond, burst } = this.#rate, need = Math.min(1 + burst / (isKnown ? 8 : 4), burst);
    return need > this.#tokens ? Math.max(wait, (need - this.#tokens) / perSecond * 1000 + 1) : wait;
  }

  spend(now) { this.#add(-1, now); }

  /** Undoes a spend whose post was not made. */
  refund(now) { this.#add(1, now); }

  #add(n, now) {
    this.#refill(now);
    this.#tokens = Math.max(this.#tokens + n, -(this.#rate?.burst ?? 0));
  }

  #refill(now) {
    const { perSecond, burst } = this.#rate ?? { perSecond: 0, burst: 0 };
    this.#tokens = Math.min(this.#tokens + Math.max(now - this.#counted, 0) / 1000 * perSecond, burst);
    this.#counted = now;
  }
}

/** Saves the cursor of the last page up to which all events are handled. Pages can finish in any order. */
export class Progress {
  #store;
  #failed; // is called with an error of the store
  #pages = []; // those whose cursor is not saved yet, oldest first; adjacent finished pages are merged
  #due; // the cursor to save next
  #saving = Promise.resolve();

  constructor(store, failed) {
    this.#store = store;
    this.#failed = failed;
  }

  /** Adds a page with one hold. A page is finished when it has no hold. */
  begin(cursor) {
    const page = { cursor, holds: 1 };
    this.#pages.push(page);
    return page;
  }

  hold(page) { page.holds++; }

  release(page) {
    if (--page.holds > 0) return;
    this.#pages = this.#pages.filter((p, i, all) => p.holds > 0 || all[i + 1]?.holds !== 0);
    if (this.#pages[0].holds > 0) return;
    const isIdle = this.#due === undefined;
    this.#due = this.#pages.shift().cursor;
    if (isIdle) this.#saving = this.#saving.then(() => this.#save());
  }

  async #save() {
    const cursor = this.#due;
    this.#due = undefined;
    try { await this.#store?.save(cursor); } catch (err) { this.#failed(err); }
  }

  /** Waits until the last cursor is saved. */
  saved() { return this.#saving; }
}
