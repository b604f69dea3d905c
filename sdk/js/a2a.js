// An agent that answers A2A callers (docs/A2A.md). The relay's gateway hands each message of a caller to the agent as a
// REQUEST. While the agent works, it sends status messages and artifacts to the gateway.
import { backoff, canonicalize, canonicalText, encode64, pause, Refused, RelayError, sha256, signature }
  from './agora.js';
import { AgentError } from './errors.js';
import { isObject } from './reading.js';
import { Result } from './run.js';

const INTENT = 'a2a.message';
const EVERY = 100; // milliseconds between two requests
const MAX_EVENTS = 64, MAX_BODY = 240 << 10; // events of a request, and bytes of what waits
const MAX_TASK = 4 << 20, MAX_RESULT = 80 << 10, MAX_PROOF = 32 << 10; // bytes
const ATTEMPTS = 5;
const SKEW = 300_000; // milliseconds by which the relay's clock can differ from ours
const STATUS = {
  TASK_STATE_COMPLETED: 'success', TASK_STATE_INPUT_REQUIRED: 'input-required',
  TASK_STATE_AUTH_REQUIRED: 'auth-required', TASK_STATE_REJECTED: 'rejected', TASK_STATE_FAILED: 'failed',
};

const sizeOf = (value) => canonicalize(value).length;
const ended = () => new Refused('TURN_ENDED', 'this turn has ended, so its agent can send nothing more');

// Parts of the program in the form of messages: a text is a text part.
const partsOf = (parts) => parts.flat().map((part) => typeof part === 'string' ? { text: part } : part);

/** See Client.serveA2A. clients returns the clients of the relays whose gateways are served. */
export function serveA2A(client, clients, handler, { intents = [], work, quote, ...options } = {}) {
  if (typeof handler !== 'function') throw new TypeError('serveA2A needs a function that answers a turn');
  const others = [intents].flat(), started = client.now();
  if (others.length > 0 && typeof work !== 'function') throw new TypeError('other intents need a function work');
  return client.serve([INTENT, ...others], { ...options,
    async quote(job, context) {
      if (job.intent !== INTENT) return quote ? quote(job, context) : options.price ?? 0;
      await find(clients, job, context);
      return 0;
    },
    async work(job, context) {
      if (job.intent !== INTENT) return work(job, context);
      return run(await Turn.of(await find(clients, job, context), job, context, started), handler);
    } });
}

// The client of the relay whose gateway has sent a turn, and that gateway. Throws AgentError. Anybody can send params.
async function find(clients, { params, envelope }, { signal }) {
  const fits = isObject(params) && ['task', 'context', 'work'].every((name) => typeof params[name] === 'string') &&
    Number.isSafeInteger(params.turn) && params.turn > 0 && isObject(params.message) && isObject(params.caller);
  if (!fits) throw new AgentError('INVALID_REQUEST', 'params are not those of a turn');
  const id = params.work.slice(params.work.lastIndexOf('/') + 1);
  for (const client of clients) {
    if (await client.gateway({ signal }) !== envelope.sender.id) continue;
    const { origin, url } = await client.gatewayOf('a2a', { signal });
    if (/^[\w:~-]+$/.test(id) && params.work === `${url}/work/${id}`) return { client, origin }; // it gets signed calls
  }
  throw new AgentError('INVALID_REQUEST', 'params.work is not a URL of this relay');
}

async function run(turn, handler) {
  try {
    let end;
    try { end = await handler(turn, { signal: turn.signal }); } catch (err) {
      await turn.finish().catch(() => {}); // the answer says what has failed
      throw err;
    }
    await turn.finish();
    return await turn.result(end);
  } finally { turn.stop(); }
}

/** One message of a caller. */
class Turn {
  #client;
  #origin;
  #again; // an earlier run may have sent artifacts
  #sender;
  #messages = 0;
  #artifacts = 0;

  constructor({ client, origin }, job, { signal }, started) {
    Object.assign(this, { ...job.params, history: job.params.history ?? [], job, signal });
    this.#client = client;
    this.#origin = origin;
    this.#again = Date.parse(job.envelope.ts) < started + SKEW;
    const post = (events) => client.call(origin, `${this.work}/events`, { body: { events }, signal });
    this.#sender = new Sender(post, signal);
  }

  /** The turn, with everything that did not fit into the REQUEST. */
  static async of(at, job, context, started) {
    const turn = new Turn(at, job, context, started);
    if (turn.partial) {
      const { message, history } = await turn.#all();
      Object.assign(turn, { message, history, partial: false });
    }
    return turn;
  }

  // All of the turn, as the relay has it now.
  #all() {
    const { signal } = this;
    return patiently(() => this.#client.call(this.#origin, this.work, { signal }), signal);
  }

  get text() {
    return (this.message.parts ?? []).filter(({ text }) => typeof text === 'string').map(({ text }) => text).join('\n');
  }

  reply(...parts) {
    if (parts.flat().length === 0) return undefined;
    return { messageId: `${this.job.thread}.${++this.#messages}`, role: 'ROLE_AGENT', parts: partsOf(parts) };
  }

  ask(...parts) { return { state: 'TASK_STATE_INPUT_REQUIRED', message: this.reply(...parts) }; }

  done(...parts) { return { message: this.reply(...parts) }; }

  update(...parts) {
    return this.#sender.send({ statusUpdate: { state: 'TASK_STATE_WORKING', message: this.reply(...parts) } });
  }

  artifact({ artifactId = `${this.turn}.${++this.#artifacts}`, ...about } = {}) {
    let begun = false;
    const write = (parts, lastChunk) => {
      if (parts.length === 0) return Promise.resolve();
      const artifact = { artifactId, ...!begun && about, parts }, append = begun;
      begun = true;
      return this.#sender.send({ artifactUpdate: { artifact, append, lastChunk } });
    };
    return {
      write: (...parts) => write(partsOf(parts), false),
      close: (...parts) => write(parts.flat().length > 0 ? partsOf(parts) : [{ text: '' }], true),
    };
  }

  finish() { return this.#sender.finish(); }

  stop() { this.#sender.close(); }

  /** The RESULT. The relay writes the message of a turn that has failed, so only other ends are proved. */
  async result(end) {
    const { state = 'TASK_STATE_COMPLETED', message, direct } = typeof end === 'string' ? this.done(end) : end ?? {};
    if (!Object.hasOwn(STATUS, state)) throw new TypeError(`a turn cannot end with the state ${state}`);
    const a2a = { message, ...direct && { direct } };
    if (state !== 'TASK_STATE_FAILED') a2a.proof = await this.#prove(state, message);
    if (sizeOf({ a2a }) > MAX_RESULT) {
      throw new AgentError('INTERNAL_ERROR',
        `the agent's last message has more than ${MAX_RESULT} bytes; it should send an artifact`);
    }
    return new Result({ a2a }, { status: STATUS[state] });
  }

  // The agent's signature over the turn, with all artifacts of the task (A2A §7); undefined: it is too large.
  async #prove(state, message) {
    const { me } = this.#client, all = new Map();
    if (this.turn > 1 || this.#again) for (const a of (await this.#all()).artifacts) all.set(a.artifactId, a);
    for (const a of this.#sender.kept()) all.set(a.artifactId, a);
    const artifacts = {};
    for (const [id, artifact] of all) artifacts[id] = await hash(artifact);
    const request = await hashOfMessage(this.message), said = message && await hashOfMessage(message);
    const { task } = this, turn = String(this.turn);
    const proven = canonicalize({ artifacts, request, state, task, turn, message: said });
    const proof = { turn, payload: encode64(proven), ...await jws(proven, me) };
    return sizeOf(proof) <= MAX_PROOF ? proof : undefined;
  }
}

/** The signature of an identity over bytes, as a JWS (RFC 7515) without its payload. more is what its header has beside
 *  alg, kid and typ. */
export async function jws(bytes, me, more = {}) {
  const header = { alg: 'EdDSA', kid: `${me.did}#${me.did.slice('did:key:'.length)}`, typ: 'JOSE', ...more };
  const signed = encode64(canonicalize(header));
  const text = new TextEncoder().encode(`${signed}.${encode64(bytes)}`);
  return { protected: signed, signature: await signature(text, me) };
}

const hash = async (value) => encode64(await sha256(canonicalize(value)));
const hashOfMessage = ({ contextId, taskId, referenceTaskIds, ...rest }) => hash(rest);

/** Repeats a call after temporary failures, if again says that a repeat does no harm. */
export async function patiently(act, signal, again = () => true) {
  for (let failures = 0; ; failures++) {
    try { return await act(); } catch (err) {
      if (!(err instanceof RelayError) || !err.retryable || !again(err) || failures === ATTEMPTS - 1) throw err;
      await pause(backoff(failures, err.retryAfter), signal);
    }
  }
}

// Sends the progress of one turn. What was sent may be lost or sent twice if the relay does not answer. So the sender
// keeps the artifacts, and then begins each of them again, which replaces what the relay has.
class Sender {
  #post;
  #signal;
  #waiting = []; // { event, size }
  #size = 0; // of what waits, in bytes
  #kept = new Map(); // by artifactId: { artifact, size }
  #room = []; // resolve those that wait for room
  #loop; // the promise of the requests; undefined: nothing waits
  #next = -Infinity; // when the next request may be sent
  #failed;
  #closed = false;

  constructor(post, signal) {
    this.#post = post;
    this.#signal = signal;
  }

  kept() { return [...this.#kept.values()].map(({ artifact }) => artifact); }

  /** Takes an event. It resolves at once, or when there is room. */
  async send(event) {
    event = JSON.parse(canonicalText(event)); // the program may change its objects
    const pieces = piecesOf(event), size = pieces.reduce((sum, piece) => sum + piece.size, 0);
    if (pieces.some((piece) => piece.size > MAX_BODY)) {
      throw new TypeError(`a part or a message has more than ${MAX_BODY} bytes of JSON; send a text in several ` +
        'parts, and other content as a URL');
    }
    this.#check();
    if (event.artifactUpdate) this.#keep(event.artifactUpdate, size);
    this.#add(event, pieces, size);
    this.#loop ??= this.#run();
    while (this.#size > MAX_BODY && !this.#failed) await new Promise((resolve) => { this.#room.push(resolve); });
    if (this.#failed) throw this.#failed;
  }

  #check() {
    this.#signal.throwIfAborted();
    if (this.#failed) throw this.#failed;
    if (this.#closed) throw ended();
  }

  #keep({ artifact, append }, size) {
    const before = append && this.#kept.get(artifact.artifactId);
    const kept = before || { artifact: { ...artifact, parts: [] }, size: 0 };
    kept.artifact.parts.push(...artifact.parts);
    kept.size += size;
    this.#kept.set(artifact.artifactId, kept);
    const all = [...this.#kept.values()].reduce((sum, each) => sum + each.size, 0);
    if (all > MAX_TASK) throw new RangeError(`the agent has sent more than the ${MAX_TASK} bytes that a task keeps`);
  }

  // A chunk is joined with the one before, if that still waits.
  #add(event, pieces, size) {
    const chunk = event.artifactUpdate, last = this.#waiting.at(-1), before = last?.event.artifactUpdate;
    this.#size += size;
    if (chunk?.append && before && !before.lastChunk && before.artifact.artifactId === chunk.artifact.artifactId &&
      last.size + size <= MAX_BODY / 2) {
      before.artifact.parts.push(...chunk.artifact.parts);
      before.lastChunk = chunk.lastChunk;
      last.size += size;
    } else this.#waiting.push(...pieces);
  }

  async #run() {
    let failures = 0;
    try {
      while (this.#waiting.length > 0) {
        await pause(Math.max(this.#next - performance.now(), 0), this.#signal);
        this.#next = performance.now() + EVERY;
        const batch = this.#take();
        try {
          await this.#post(batch);
          failures = 0;
        } catch (err) {
          if (err?.code === 'CONFLICT') throw ended();
          if (!(err instanceof RelayError) || !err.retryable || ++failures === ATTEMPTS) throw err;
          this.#again(batch);
          await pause(backoff(failures - 1, err.retryAfter), this.#signal);
        }
      }
    } catch (err) { this.#failed = err; } finally {
      this.#loop = undefined;
      this.#release();
    }
  }

  #take() {
    const batch = [];
    for (let size = 0; batch.length < MAX_EVENTS && this.#waiting.length > 0;) {
      const [first] = this.#waiting;
      if ((size += first.size) > MAX_BODY && batch.length > 0) break;
      this.#size -= first.size;
      batch.push(this.#waiting.shift().event);
    }
    this.#release();
    return batch;
  }

  #release() { for (const resolve of this.#room.splice(0)) resolve(); }

  // Begins all artifacts again. Status messages that wait or were in the batch follow.
  #again(batch) {
    const statuses = [...batch, ...this.#waiting.map(({ event }) => event)].filter(({ statusUpdate }) => statusUpdate);
    const whole = this.kept().map(({ parts, ...about }) =>
      ({ artifactUpdate: { artifact: { ...about, parts: [...parts] } } }));
    this.#waiting = [...whole, ...statuses].flatMap(piecesOf);
    this.#size = this.#waiting.reduce((sum, { size }) => sum + size, 0);
  }

  close() { this.#closed = true; }

  /** Sends what still waits. Nothing can be sent after it. */
  async finish() {
    this.close();
    await this.#loop;
    if (this.#failed) throw this.#failed;
  }
}

// An event in pieces that fit into a request. Only an artifact with several parts can be divided.
function piecesOf(event) {
  const size = sizeOf(event) + 1, update = event.artifactUpdate;
  if (!update || size <= MAX_BODY / 2 || update.artifact.parts.length < 2) return [{ event, size }];
  const { artifact: { parts, ...about }, lastChunk, append } = update, half = parts.length >> 1;
  const first = { artifact: { ...about, parts: parts.slice(0, half) }, append };
  const rest = { artifact: { artifactId: about.artifactId, parts: parts.slice(half) }, append: true, lastChunk };
  return [first, rest].flatMap((each) => piecesOf(JSON.parse(canonicalText({ artifactUpdate: each }))));
}
