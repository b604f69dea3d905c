// The errors of Client and Call. Like all errors of this package, each has a code, and retryable says whether a new try
// may succeed.
import { printable, protocol, UnknownOutcome } from './agora.js';

class ClientError extends Error {
  constructor(code, message, { retryable = false, cause } = {}) {
    super(`${code}: ${message}`, cause && { cause });
    Object.assign(this, { name: new.target.name, code, retryable });
  }
}

// Texts of others may have any type, and converting an object may throw: {"toString":1}.
const textOf = (v) => typeof v === 'object' && v !== null ? JSON.stringify(v) : String(v);

/** The ERROR of an agent. A handler of serve throws it to send an ERROR to its client. reason is the text as it was
 *  sent; message is safe to print. */
export class AgentError extends ClientError {
  constructor(code, reason = code, { details, from } = {}) {
    const texts = { code: textOf(code), reason: textOf(reason) };
    super(printable(texts.code), printable(texts.reason), { retryable: protocol.agentRetryable.includes(code) });
    Object.assign(this, { ...texts, details, from });
  }
}

/** The error of a call that its own client has cancelled. It is also the reason of the signal of work whose client has
 *  ended the thread. */
export class Cancelled extends ClientError {
  constructor() { super('CANCELLED', 'the client has cancelled the call'); }
}

/** Why an agent does nothing more in a thread: its client has continued the job in a newer one. */
export class Moved extends ClientError {
  constructor() { super('MOVED', 'the client has continued the job in another thread'); }
}

/** Why an offer cannot be accepted, or that there is none which can. */
export class Unacceptable extends ClientError {
  constructor(message, options) { super('UNACCEPTABLE', message, options); }

  /** The error when no offer was acceptable. isOpen says whether the request is still open, or was cancelled. */
  static none(why, isOpen) {
    const state = isOpen ? 'is still open: wait again, or end it with cancel()' : 'was cancelled';
    return Object.assign(new Unacceptable(`${why}. The request ${state}`, { retryable: true }), { why });
  }
}

/** The agent has answered a sealed request in plaintext. */
export class Plain extends ClientError {
  constructor(type, cause) {
    super('PLAIN', `the agent has answered a sealed request with a plaintext ${type}; to accept such answers, pass ` +
      'allowPlain', { cause });
  }
}

/** The agent's answer is sealed and cannot be opened with this client's key. */
export class Closed extends ClientError {
  constructor(type) { super('CLOSED', `the agent's ${type} is sealed and cannot be opened with this client's key`); }
}

/** The thread has ended, but the relay does not show the message that ended it. */
export class Gone extends ClientError {
  constructor() {
    super('GONE', 'the thread has ended, but the relay does not show the message that ended it; it has probably ' +
      'expired');
  }
}

/** The relay shows no message of this client that proves what the thread is about. */
export class Unproven extends ClientError {
  constructor() {
    super('UNPROVEN', 'the relay shows no message of this client that proves its request; pass requestId to resume, ' +
      'if you have saved it');
  }
}

/** The relay says that it has stored a message, but gives no proof that holds. With isMissing, it gives none at all. */
export class NoProof extends UnknownOutcome {
  constructor(envelope, cause, isMissing = false) {
    super(envelope, cause, isMissing
      ? "the relay gave no proof; use proofs: 'prefer', or a relay whose well-known document has the feature proofs"
      : `the relay gave no proof that holds: ${cause.message}`);
  }
}

/** The relay's directory does not end. */
export class Endless extends ClientError {
  constructor() {
    super('ENDLESS', 'the relay claims to have more agents, but sends no new ones');
  }
}

/** Whether the relay would refuse the same again, now and later. The time may be corrected, and a home may come back
 *  to its address, so errors because of those do not count. */
export const isPermanent = (err) => err?.name !== 'UnknownOutcome' && typeof err?.code === 'string' &&
  err.retryable === false && !['INVALID_ANSWER', 'OTHER_RELAY', 'STALE_TIMESTAMP', 'EXPIRED'].includes(err.code);
