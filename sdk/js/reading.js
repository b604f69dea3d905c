// Reads events that can be trusted: each one is verified, was asked for, and is new. Payloads that are sealed to the
// reader are opened.
import { backoff, isSealed, open, pause, Refused, RelayError, threadOf, Unavailable,
  verify } from './agora.js';
import { Recent } from './queue.js';

const MAX_CURSOR = 1024; // characters
const POLL = 30; // seconds that a relay waits for events
const QUICK = 2000; // milliseconds; a poll that ends sooner without news is followed by a pause
const HOUR = 3_600_000;
const OLDEST = '0'; // the cursor before the oldest event
const SEEN = 4096; // how many events a reader remembers, to recognize repeats

export const isObject = (v) => typeof v === 'object' && v !== null && !Array.isArray(v);

/** The error for an answer that has another form than the protocol says. */
export const malformed = (what) => new RelayError('INVALID_ANSWER', what, { status: 200 });

/** The name of a message: messages of different senders may have the same id (§3). */
export const nameOf = (e) => `${e.sender.id} ${e.id}`;

/** A memory of the messages that were seen. */
export const newSeen = () => new Recent(SEEN);

const signedForms = new WeakMap(); // by the envelope that was opened

/** The envelope as it was signed. It differs from e only if the payload of e was opened. */
export const signedForm = (e) => signedForms.get(e) ?? e;

/** Whether the payload of e is or was sealed. */
export const wasSealed = (e) => isSealed(signedForm(e));

/** Whether the payload is sealed and was not opened. */
export const isClosed = (e) => !signedForms.has(e) && isSealed(e);

// Returns e with its payload opened, or e itself if it is not sealed to client's identity, or cannot be opened.
async function opened(client, e) {
  if (!client.me || !isSealed(e) || e.recipient?.id !== client.me.did) return e;
  try {
    const readable = { ...e, payload: await open(e, client.me) };
    signedForms.set(readable, e);
    return readable;
  } catch (err) {
    if (err instanceof Unavailable) throw err;
    return e;
  }
}

/** Takes the elements of an answer one by one, so only one of them is in memory before it is checked. take returns the
 *  verified event, with its payload opened, or undefined if it is not valid or not wanted. find gets the envelope from
 *  an element, and make gets what to keep. log writes one line about those that were left out. */
export function checker(client, wanted, { find = (element) => element, make = (event) => event } = {}) {
  let skipped = 0, first;
  return {
    async take(read) {
      try {
        const { element, e } = read(find);
        if (!wanted(e, element)) throw new Refused('INVALID_REQUEST', 'it was not asked for');
        await verify(e);
        return make(await opened(client, e), element);
      } catch (err) {
        if (err instanceof Unavailable) throw err; // any other error makes the event invalid, whatever it is
        first ??= err;
        skipped++;
        return undefined;
      }
    },
    log() {
      if (skipped > 0) client.log(`${skipped} events were left out, because they are not valid; the first`, first);
    },
  };
}

const matches = ({ recipient, broadcast, sender, type, thread }, e) =>
  (!recipient || e.recipient?.id === recipient || broadcast && !e.recipient) &&
  (!sender || e.sender.id === sender) && (!type || e.type === type) && (!thread || threadOf(e) === thread);

/** Reads page after page, and yields { events, cursor, moved } for each answer: the new events, and the place after
 *  them. moved says whether this is another place than before. It waits and retries as Client.follow says. */
export async function* pages(client, { filter = {}, store, from, limit = 100, seen = newSeen(), signal, heard }) {
  const { recipient, broadcast, sender, type, thread } = filter, since = new Date(from ?? client.now());
  const query = { recipient, broadcast: recipient && broadcast ? true : undefined, sender, type, thread };
  let cursor = await loadCursor(store) ?? (from === 'oldest' ? OLDEST : undefined), failures = 0, size = limit;
  for (;;) {
    signal?.throwIfAborted();
    const began = performance.now(), first = cursor === undefined;
    const isQuick = () => performance.now() - began < QUICK;
    const { take, log } = checker(client, (e) => matches(filter, e));
    const place = first ? { since: since.toISOString(), timeout: 0 } : { cursor, timeout: POLL };
    let answer;
    try { answer = await client.page({ ...query, limit: size, ...place }, { signal, take }); } catch (err) {
      signal?.throwIfAborted();
      heard?.(err);
      if (err?.details?.reason === 'too_long') size = Math.max(size >> 1, 1); // a smaller page may fit
      if (!isQuick()) failures = 0;
      cursor = recover(client, err, cursor);
      await pause(backoff(failures++, Math.min(err.retryAfter, HOUR)), signal);
      continue;
    }
    if (!isQuick()) failures = 0;
    heard?.();
    size = Math.min(size * 2, limit);
    log();
    const events = answer.events.filter((e) => seen.add(nameOf(e)));
    const moved = answer.cursor !== cursor;
    yield { events, cursor: answer.cursor, moved };
    cursor = answer.cursor;
    if (events.length > 0) failures = 0;
    else if (!first && isQuick()) { // whatever the reason is, no relay makes us poll in a hot loop
      await pause(backoff(failures++, 0, moved && answer.events.length > 0 ? 1000 : undefined), signal);
    }
  }
}

async function loadCursor(store) {
  const cursor = await store?.load() || undefined;
  if (cursor !== undefined && (typeof cursor !== 'string' || cursor.length > MAX_CURSOR)) {
    throw new Refused('INVALID_REQUEST', 'the store returned something that is not a cursor');
  }
  return cursor;
}

// The cursor after a poll has failed. Throws the error if a retry would not help.
function recover(client, err, cursor) {
  if (err instanceof Unavailable) throw err;
  if (!(err instanceof Refused)) { // a defect of this package: what a relay sends must not end a reader
    client.log('reading an answer of the relay failed, will be retried', err);
    return cursor;
  }
  if (err.details.reason === 'unknown_cursor') {
    client.log('the relay does not know the saved cursor, so it has probably lost its data; reading again from its ' +
      'oldest event');
    client.forgetRule(); // the cursor is unknown as well if the relay has changed between open and private
    return OLDEST;
  }
  if (!err.retryable && err.code !== 'INVALID_ANSWER') throw err;
  client.log('reading events failed, will be retried', err);
  return cursor;
}

// By signal: the controllers that are aborted with it. So a signal has one listener, however many controllers there
// are: Node warns if there are many.
const followers = new WeakMap();

/** An AbortController that is also aborted with the given signal. Call unlink when it is not needed any more. */
export function linked(signal) {
  const controller = new AbortController();
  controller.unlink = () => {};
  if (!signal) return controller;
  if (!followers.has(signal)) {
    const all = new Set();
    followers.set(signal, all);
    signal.addEventListener('abort', () => { for (const each of all) each.abort(signal.reason); }, { once: true });
  }
  if (signal.aborted) controller.abort(signal.reason);
  else followers.get(signal).add(controller);
  controller.unlink = () => followers.get(signal).delete(controller);
  return controller;
}
