// What a client of several relays remembers (RELAYS ), in memory. State of node.js keeps it in a file.
import { Book } from './book.js';

const MAX_EVENTS = 65_536, SURPLUS = 4096; // SURPLUS are forgotten at once, because finding them takes time

export class Memory {
  #cursors = new Map(); // by the DID of a relay
  #events = new Map(); // those that were handled: when each expires, in seconds since 1970
  #caught = new Map(); // why a relay is not used any more, by its DID
  #places = new Map(); // where the agent can be reached through other protocols, by relay and protocol
  #old; // what agora work 0.1.0 had, for the program in Go
  book = new Book((job, isForgotten) => {
    const { client, root, payload } = job;
    if (isForgotten) this.append('nojob', { client, root, payload });
    else this.append('job', job);
  });

  /** Whether this is kept when the program ends. */
  get isDurable() { return false; }

  /** Reads what was saved, once. did is the identity whose memory this is. */
  async load() {}

  /** Saves evidence against a relay. */
  async keep() {}

  /** Saves an entry after those before it. */
  append() {}

  /** Waits until all entries are saved durably. */
  async sync() {}

  /** Applies an entry that was saved. Returns false if it has another form. */
  apply([kind, a, b, c]) {
    if (kind === 'cursor') this.#cursors.set(a, b);
    else if (kind === 'e') this.#events.set(a, b);
    else if (kind === 'caught') this.#caught.set(a, b);
    else if (kind === 'uncaught') this.#caught.delete(a);
    else if (kind === 'job') this.book.restore(a);
    else if (kind === 'nojob') this.book.drop(a);
    else if (kind === 'joined') this.#places.set(`${a} ${b}`, c);
    else if (kind === 'old') this.#old = a;
    else return false;
    return true;
  }

  /** All that counts, as entries. */
  * entries() {
    for (const cursor of this.#cursors) yield ['cursor', ...cursor];
    for (const caught of this.#caught) yield ['caught', ...caught];
    for (const event of this.#events) yield ['e', ...event];
    for (const job of this.book.jobs) yield ['job', job];
    for (const [key, place] of this.#places) if (place) yield ['joined', ...key.split(' '), place];
    if (this.#old) yield ['old', this.#old];
  }

  #put(...entry) {
    this.apply(entry);
    this.append(...entry);
  }

  /** The store of the cursor at a relay. */
  cursor(relay) {
    return {
      load: () => this.#cursors.get(relay),
      save: async (cursor) => {
        this.#put('cursor', relay, cursor);
        await this.sync();
      },
    };
  }

  /** Whether an event with this mark, 16 bytes of its hash in base64url, was handled. now is in milliseconds. */
  isHandled(mark, now) { return this.#events.get(mark) * 1000 > now; }

  /** Records that an event was handled. expires is in milliseconds. */
  handle(mark, expires, now) {
    if (this.#events.has(mark)) return;
    this.#put('e', mark, Math.ceil(expires / 1000));
    if (this.#events.size <= MAX_EVENTS) return;
    for (const [other, end] of this.#events) if (end * 1000 <= now) this.#events.delete(other);
    if (this.#events.size <= MAX_EVENTS) return;
    const first = [...this.#events].sort(([, a], [, b]) => a - b).slice(0, SURPLUS);
    for (const [other] of first) this.#events.delete(other);
  }

  /** Where the agent can be reached through a protocol of the relay, as join() has kept it; undefined: it has not
   *  joined. */
  place(relay, protocol) { return this.#places.get(`${relay} ${protocol}`) ?? undefined; }

  /** Records where the agent can be reached. null: the agent has left. */
  async setPlace(relay, protocol, place) {
    this.#put('joined', relay, protocol, place);
    await this.sync();
  }

  /** Why a relay is not used any more; undefined: it is used. */
  caught(relay) { return this.#caught.get(relay); }

  /** Records why a relay is not used any more; with reason undefined, it is used again. */
  async setCaught(relay, reason) {
    if (reason === undefined) this.#put('uncaught', relay);
    else this.#put('caught', relay, reason);
    await this.sync();
  }
}
