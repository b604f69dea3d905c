// Reading: one reader for all requests of the page, and feeds, which follow the relay's messages.

const SPACING = 275; // ms between the starts of two polls; must stay above 250 even if the network delays the first one
const POLL_SECONDS = 30;
const MAX_BACKOFF = 30_000;
const FIRST_PAGE = 100;
const PAGE = 500;
const MAX_MESSAGES = 10_000;
const MAX_BYTES = 24 << 20; // of one feed
const JOINED = 250; // pages of new messages are joined while they have at most so many messages

/** Waits. Ends early with an error if the signal is aborted. wake can end it early without an error. */
function pause(ms, signal, wake) {
  return new Promise((resolve, reject) => {
    const end = (act, value) => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', stopped);
      wake?.removeEventListener('online', woken);
      act(value);
    };
    const stopped = () => end(reject, signal.reason);
    const woken = () => end(resolve);
    const timer = setTimeout(woken, ms);
    if (signal?.aborted) return stopped();
    signal?.addEventListener('abort', stopped);
    wake?.addEventListener('online', woken);
  });
}

/** Reads from the relay. It obeys 429 and 503 for all requests of the page, and reports the state of the connection. */
export class Reader {
  #relay;
  #until = 0; // no request before this time, by performance.now
  #nextPoll = 0; // no poll before this time
  #report;

  /** relay is an agora.Relay. report(state, text) is called when the state of the connection changes. */
  constructor(relay, report) {
    this.#relay = relay;
    this.#report = report;
  }

  /** Reads from another relay, or with another key. */
  set relay(relay) {
    this.#relay = relay;
  }

  /** Reads path with parameters, once. While the relay refuses requests of this address, it waits first. */
  async get(path, params = {}, signal) {
    const polls = params.timeout !== undefined;
    for (let wait; (wait = (polls ? Math.max(this.#until, this.#nextPoll) : this.#until) - performance.now()) > 0;) {
      await pause(wait, signal);
    }
    if (polls) this.#nextPoll = performance.now() + SPACING;
    const query = new URLSearchParams(Object.entries(params).filter(([, v]) => v !== undefined && v !== ''));
    try {
      const wait = polls ? params.timeout * 1000 : 0;
      const answer = await this.#relay.get(query.size > 0 ? `${path}?${query}` : path, { signal, wait });
      signal?.throwIfAborted();
      this.#report('live');
      return answer;
    } catch (err) {
      if (signal?.aborted) throw err;
      this.#note(err);
      throw err;
    }
  }

  // Remembers until when the relay refuses requests.
  #note(err) {
    const limited = err.status === 429 || err.status === 503;
    if (limited) this.#until = Math.max(this.#until, performance.now() + Math.max(err.retryAfter ?? 0, 1000));
    if (limited) this.#report('limited', err.status === 429 ? 'The relay limits this address' : 'The relay is busy');
    else if (!err.status || err.status >= 500) this.#report('lost', 'The relay does not answer');
  }
}

/** Whether another attempt can succeed: the relay has not refused the request for good. */
export const isTemporary = (err) => !err.status || err.status >= 500 || err.status === 429;

/**
 * A feed has the messages that match a filter, the newest first. It reads a first page of the newest, then follows new
 * ones by long poll, and reads older ones when it is asked to. Its messages lie in pages. Each page knows the cursor
 * before which older messages are, so the oldest pages can be forgotten and read again.
 */
export class Feed {
  filter;
  hasOlder = false;
  began = false; // the first page was read
  note = ''; // why messages may be missing
  #model;
  #reader;
  #keeps; // whether the model keeps the messages
  #known = new Set(); // the keys of the messages
  // The newest page first: {messages, end, next, size}. end and next are cursors for the parameter before: a read with
  // end begins with the page's messages, and a read with next begins with older ones. Only the last page needs next.
  #pages = [];
  #cursor; // where following continues
  #lowest = 0; // the order of the oldest message
  #highest = 0;
  #reading; // the promise of an older page that is being read
  #onChange;

  /** filter has parameters of GET /events. Without a filter, the model keeps the messages. onChange is called after
   *  each change. */
  constructor(model, reader, filter, onChange) {
    this.#model = model;
    this.#reader = reader;
    this.filter = filter;
    this.#keeps = Object.keys(filter).length === 0;
    this.#onChange = onChange;
  }

  /** The newest message. */
  get newest() {
    return this.#pages.find((p) => p.messages.length > 0)?.messages[0];
  }

  /** Yields the messages after m, the newest first. */
  *since(m) {
    for (const p of this.#pages) {
      for (const other of p.messages) {
        if (other === m) return;
        yield other;
      }
    }
  }

  /** The messages, the newest first. */
  get messages() {
    return this.#pages.flatMap((p) => p.messages);
  }

  /** Follows the relay until the signal is aborted. */
  async run(signal) {
    for (let failures = 0; !signal.aborted;) {
      try {
        // The first poll after a failure does not wait, so that the page soon knows that the relay answers again.
        const timeout = failures > 0 ? 0 : POLL_SECONDS;
        await (this.#cursor === undefined ? this.#first(signal) : this.#next(timeout, signal));
        failures = 0;
      } catch (err) {
        if (signal.aborted) return;
        if (err.details?.reason === 'unknown_cursor') {
          this.#restart();
        } else if (!isTemporary(err)) {
          this.note = err.message;
          this.began = true;
          this.#onChange();
          if (!this.#keeps) return; // the filter is not valid
        }
        failures++;
        const backoff = Math.min(MAX_BACKOFF, 500 * 2 ** Math.min(failures, 8));
        await pause(backoff * (0.75 + Math.random() / 2), signal, window).catch(() => {});
      }
    }
  }

  async #first(signal) {
    const answer = await this.#reader.get('/events', { ...this.filter, before: 'end', limit: FIRST_PAGE }, signal);
    this.#cursor = answer.after;
    this.#append(answer);
    this.began = true;
    this.#onChange();
  }

  async #next(timeout, signal) {
    const answer = await this.#reader.get(
      '/events',
      { ...this.filter, cursor: this.#cursor, timeout, limit: 1000 },
      signal,
    );
    const messages = answer.events
      .map((e) => this.#take(e, ++this.#highest))
      .filter(Boolean)
      .reverse();
    this.#cursor = answer.cursor;
    if (messages.length === 0) return;
    this.#prepend({ messages, end: answer.cursor, size: sizeOf(answer.events) });
    this.#trim();
    this.#onChange();
  }

  #prepend(page) {
    const [first] = this.#pages;
    if (first?.isNew && first.messages.length + page.messages.length <= JOINED) {
      first.messages.unshift(...page.messages);
      first.size += page.size;
      first.end = page.end;
    } else this.#pages.unshift({ ...page, isNew: true });
  }

  // Returns the message of an envelope, or undefined if the feed has this message already.
  #take(envelope, order) {
    const m = this.#keeps ? this.#model.keep(envelope, order) : this.#model.message(envelope);
    if (!m || this.#known.has(m.key)) return undefined;
    this.#known.add(m.key);
    return m;
  }

  #drop(messages) {
    for (const m of messages) this.#known.delete(m.key);
    if (this.#keeps) this.#model.forget(messages);
  }

  /** Reads the next older page. Calls at the same time share one read. */
  older(signal) {
    if (!this.hasOlder) return Promise.resolve();
    this.#reading ??= this.#readOlder(signal).finally(() => {
      this.#reading = undefined;
    });
    return this.#reading;
  }

  async #readOlder(signal) {
    if (this.isFull) return;
    const before = this.#pages.at(-1).next;
    this.#append(await this.#reader.get('/events', { ...this.filter, before, limit: PAGE }, signal));
    this.#onChange();
  }

  /** Whether the feed has as many messages or bytes as it may have. */
  get isFull() {
    return this.#size().messages >= MAX_MESSAGES || this.#size().bytes >= MAX_BYTES;
  }

  #size() {
    return this.#pages.reduce((sum, p) => ({ messages: sum.messages + p.messages.length, bytes: sum.bytes + p.size }), {
      messages: 0,
      bytes: 0,
    });
  }

  // Adds an answer with older messages at the end.
  #append(answer) {
    const messages = answer.events.map((e) => this.#take(e, --this.#lowest)).filter(Boolean);
    this.#pages.push({ messages, end: answer.after, next: answer.cursor, size: sizeOf(answer.events) });
    this.hasOlder = answer.hasMore;
  }

  // Forgets the oldest pages while there is too much.
  #trim() {
    while (this.#pages.length > 1) {
      const { messages, bytes } = this.#size();
      if (messages <= MAX_MESSAGES && bytes <= MAX_BYTES) return;
      const dropped = this.#pages.pop();
      this.#drop(dropped.messages);
      this.#pages.at(-1).next = dropped.end;
      this.hasOlder = true;
    }
  }

  // Begins again, because the relay does not know the cursor: its database is another one.
  #restart() {
    this.clear();
    this.#lowest = this.#highest = 0;
    this.note = 'The relay has another database than before, for example from a backup. This page has begun again.';
    this.#onChange();
  }

  /** Forgets all messages of the feed. */
  clear() {
    for (const p of this.#pages) this.#drop(p.messages);
    this.#pages = [];
    this.#cursor = undefined;
    this.hasOlder = false;
    this.began = false;
  }
}

const sizeOf = (events) => events.reduce((sum, e) => sum + JSON.stringify(e).length, 0);
