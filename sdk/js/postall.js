// Posts many signed messages with few requests. At a relay without bulk requests it posts them one by one. client.d.ts
// documents it.
import { backoff, canonicalize, pause, POST_ATTEMPTS, POST_PATIENCE, protocol, Refused, RelayError, UnknownOutcome }
  from './agora.js';
import { asks, proved } from './proving.js';

// A request has at most this many messages and bytes. A relay takes more. But a failure of a small request makes the
// client repeat less.
const MESSAGES = 1000, BYTES = 4 << 20;

/** What became of each of the envelopes, in the form of Promise.allSettled. */
export async function postAll(client, envelopes, { signal } = {}) {
  const call = new PostAll(client, envelopes);
  await call.run(signal);
  return call.results;
}

class PostAll {
  #client;
  #envelopes;
  #lines = []; // canonical forms; undefined: the message has a result
  #pending = []; // the numbers of the messages without a result, in order
  #unknown = new Set(); // the messages that an earlier attempt may have stored
  #refusals = new Map(); // the last refusal of each message
  #size = MESSAGES; // how many messages to send in the next request

  constructor(client, envelopes) {
    this.#client = client;
    this.#envelopes = [...envelopes];
    this.results = new Array(this.#envelopes.length);
    this.#envelopes.forEach((e, i) => {
      try { this.#lines[i] = canonicalize(e); } catch (err) {
        if (!(err instanceof Refused)) throw err;
        this.#fail(i, err);
        return;
      }
      this.#pending.push(i);
    });
  }

  async run(signal) {
    // If the relay's document cannot be read now, the receipts come without proofs.
    const proofs = this.#pending.length > 0 && await asks(this.#client, { signal }).catch(() => false);
    await this.#leaveOut(signal);
    for (let attempt = 1; this.#pending.length > 0; attempt++) {
      const sent = this.#chunk();
      let settled = 0, failed;
      try {
        const answer = await this.#client.postBulk(sent.map((i) => this.#envelopes[i]),
          sent.map((i) => this.#lines[i]), { signal, proofs });
        await this.#prove(sent, answer, signal);
        [settled, failed] = this.#settle(sent, answer);
        if (settled > 0) attempt = 0;
        // After a refusal the relay takes no more at the moment.
        this.#size = failed ? Math.max(settled, 1) : Math.min(2 * this.#size, MESSAGES);
      } catch (err) {
        if (!(err instanceof RelayError) && !signal?.aborted) throw err;
        failed = err;
        if (signal?.aborted || !err.noEffect) sent.forEach((i) => this.#unknown.add(i));
        if (signal?.aborted) return this.#giveUp(err, Infinity);
      }
      if (!failed || this.#pending.length === 0) continue;
      if (failed.status === 404 || failed.status === 405) return this.#oneByOne(signal);
      if (failed.status === 413 && sent.length > 1) this.#size = sent.length >> 1;
      else if (failed.status === 413) this.#giveUp(failed, 1); // the relay takes this message in no request
      else if (!failed.retryable || failed.waitsTooLong || attempt >= POST_ATTEMPTS) this.#giveUp(failed, Infinity);
      else {
        this.#client.log(`posting ${this.#pending.length} messages will be continued`, failed);
        const ms = backoff(Math.max(attempt - 1, 0), Math.min(failed.retryAfter, POST_PATIENCE));
        try { await pause(ms, signal); } catch (err) { return this.#giveUp(err, Infinity); } // the signal is aborted
      }
    }
  }

  // Ends the messages whose home is another relay (RELAYS R-4).
  async #leaveOut(signal) {
    const pending = [];
    for (const i of this.#pending) {
      try {
        await this.#client.assureHome(this.#envelopes[i], { signal });
        pending.push(i);
      } catch (err) { this.#fail(i, err); }
    }
    this.#pending = pending;
  }

  // The messages of the next request.
  #chunk() {
    let size = 0, n = 0;
    for (const i of this.#pending.slice(0, this.#size)) {
      size += this.#lines[i].length + 1;
      if (size > BYTES && n > 0) break;
      n++;
    }
    return this.#pending.slice(0, n);
  }

  // Checks the proofs of the receipts. A receipt whose proof does not hold becomes an UnknownOutcome.
  async #prove(sent, { results }, signal) {
    for (const [n, result] of results.entries()) {
      if (result instanceof RelayError) continue;
      try { results[n] = await proved(this.#client, this.#envelopes[sent[n]], result, { signal }); } catch (err) {
        if (!(err instanceof UnknownOutcome)) throw err;
        results[n] = err;
      }
    }
  }

  // Records the results of a request. Returns how many messages have a result now, and why the next one has none.
  #settle(sent, { results, stopped }) {
    const left = [];
    let failed;
    sent.forEach((i, n) => {
      const result = results[n], reason = result ?? stopped;
      if (result && !(result instanceof RelayError)) {
        this.results[i] = result instanceof UnknownOutcome ? { status: 'rejected', reason: result }
          : { status: 'fulfilled', value: result };
        return;
      }
      if (!reason.noEffect) this.#unknown.add(i);
      if (result) {
        this.#refusals.set(i, result);
        if (result.retryable && !result.waitsTooLong) failed ??= result;
      }
      // A message behind one that is refused for the moment may depend on it. So it is sent again too.
      if (result && !failed) this.#fail(i, result);
      else left.push(i);
    });
    this.#pending = [...left, ...this.#pending.slice(sent.length)];
    let settled = sent.length - left.length;
    if (stopped && !stopped.retryable && results.length === 0) {
      this.#giveUp(stopped, 1); // the relay takes this message in no request
      settled++;
    }
    return [settled, failed ?? (stopped?.retryable ? stopped : undefined)];
  }

  // Ends message i with an error.
  #fail(i, err) {
    const isUnknown = this.#unknown.has(i) && !(err instanceof UnknownOutcome) && !protocol.settles.includes(err.code);
    this.results[i] = { status: 'rejected', reason: isUnknown ? new UnknownOutcome(this.#envelopes[i], err) : err };
  }

  // Ends the first n pending messages. A message that was refused keeps its own error.
  #giveUp(err, n) {
    for (const i of this.#pending.splice(0, n)) this.#fail(i, this.#refusals.get(i) ?? err);
  }

  // Posts the pending messages each in its own request, until the relay does not answer any more.
  async #oneByOne(signal) {
    while (this.#pending.length > 0) {
      const [i] = this.#pending;
      try {
        const value = await this.#client.postEnvelope(this.#envelopes[i], { signal });
        this.#pending.shift();
        this.results[i] = { status: 'fulfilled', value };
      } catch (err) {
        const last = err instanceof UnknownOutcome ? err.cause : err;
        if (!(last instanceof Refused) && !signal?.aborted) throw err;
        if (signal?.aborted) this.#unknown.add(i);
        this.#pending.shift();
        this.#fail(i, err);
        if (signal?.aborted || last.retryable) this.#giveUp(last, Infinity);
      }
    }
  }
}
