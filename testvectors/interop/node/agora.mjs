// Agora v1.0 for Node: identities, strict parsing, signing, and the relay's HTTP API. You may copy this file.
// All input from other parties is parsed strictly and verified before it is used.
import { createHash, randomBytes, randomUUID } from 'node:crypto';
import { setTimeout as pause } from 'node:timers/promises';
import * as ed from '@noble/ed25519';
import jcs from 'canonicalize';
import { base58btc } from 'multiformats/bases/base58';

const sha512 = (...parts) => parts.reduce((h, part) => h.update(part), createHash('sha512')).digest();
ed.hashes.sha512 = (message) => new Uint8Array(sha512(message));

/** A refusal by this code or by the relay. code is one of the protocol's codes. */
export class Refused extends Error {
  constructor(code, message) { super(`${code}: ${message}`); this.code = code; }
}
const must = (ok, code, message) => { if (!ok) throw new Refused(code, message); };
const isObject = (v) => typeof v === 'object' && v !== null && !Array.isArray(v);

// --- Identities: did:key of an Ed25519 key (PROTOCOL §2)

/** The identity of a 32-byte seed. Without a seed, a new identity. Keep the seed secret: it signs as you. */
export function identity(seed = ed.utils.randomSecretKey()) {
  return { seed, did: didOf(ed.getPublicKey(seed)) };
}

export const didOf = (key) => 'did:key:' + base58btc.encode(Uint8Array.of(0xed, 0x01, ...key));

/** The 32 key bytes of a did:key. The form is checked before base58 is decoded, because that takes quadratic time. */
export function keyOf(did) {
  const form = typeof did === 'string' && /^did:key:z6Mk[1-9A-HJ-NP-Za-km-z]{44}$/.test(did);
  must(form, 'INVALID_DID', 'not a did:key of Ed25519');
  let key, point;
  try {
    key = base58btc.decode(did.slice('did:key:'.length)).slice(2);
    point = ed.Point.fromBytes(key); // refuses y ≥ p, and bytes that are not a point
  } catch { throw new Refused('INVALID_DID', 'not the encoding of a point'); }
  must(!point.isSmallOrder(), 'INVALID_DID', 'a key under which anybody can sign');
  must(didOf(key) === did, 'INVALID_DID', 'not the spelling of its own key');
  return key;
}

// --- JSON: only I-JSON is accepted, because all parsers agree about its meaning (PROTOCOL §1)

/** Parses bytes as one I-JSON value. */
export function parse(bytes) {
  let text, value;
  try {
    // ignoreBOM keeps a byte order mark in the text, so JSON.parse refuses it.
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
    value = JSON.parse(text);
    jcs(value); // throws for half a surrogate pair, and for Infinity, which JSON.parse returns for 1e400
  } catch { throw new Refused('INVALID_REQUEST', 'not I-JSON in UTF-8'); }
  must(!hasDuplicates(text), 'INVALID_REQUEST', 'a member occurs twice in one object');
  must(costlyNumbers(text) <= 1000, 'INVALID_REQUEST', 'too many numbers with many digits or below 1e-307');
  return value;
}

// The number of numbers that have more than 17 significant digits, or are not zero and below 1e-307. text is valid JSON.
function costlyNumbers(text) {
  let count = 0;
  for (const [, digits, exponent] of text.matchAll(/"(?:[^"\\]|\\.)*"|-?([0-9.]+)(?:[eE]([+-]?[0-9]+))?/g)) {
    const significant = (digits ?? '').replace('.', '').replace(/^0+/, '').replace(/0+$/, '');
    if (!significant) continue; // a string, or zero
    const [whole, fraction = ''] = digits.split('.'), at = whole.replace(/^0+/, '').length || -fraction.search(/[1-9]/);
    if (significant.length > 17 || Number(exponent ?? 0) + at - 1 < -307) count++;
  }
  return count;
}

/** The RFC 8785 form of a value. */
export const canonicalize = (value) => Buffer.from(jcs(value));

// Reports whether an object has two equal names; JSON.parse silently takes the last one. text is valid JSON, so this
// reads only strings, braces and colons.
function hasDuplicates(text) {
  const open = []; // for each enclosing object, the names so far
  let last;
  for (const [token] of text.matchAll(/"[^"\\]*(?:\\.[^"\\]*)*"|[{}:]/g)) {
    if (token === '{') open.push(new Set());
    else if (token === '}') open.pop();
    else if (token !== ':') last = token;
    else {
      const names = open.at(-1), name = JSON.parse(last);
      if (names.has(name)) return true;
      names.add(name);
    }
  }
  return false;
}

/** The nesting depth of arrays and objects in bytes. */
export function depth(bytes) {
  let level = 0, deepest = 0;
  for (const [token] of bytes.toString('latin1').matchAll(/"[^"\\]*(?:\\.[^"\\]*)*"?|[{}[\]]/gs)) {
    if (token === '{' || token === '[') deepest = Math.max(deepest, ++level);
    else if (token === '}' || token === ']') level--;
  }
  return deepest;
}

// --- Envelopes

const FIELDS = ['version', 'id', 'ts', 'type', 'sender', 'recipient', 'payload', 'thread', 'meta', 'sig'];
const FOLDED = new RegExp(`^(${FIELDS.join('|')})$`, 'iu'); // iu: Unicode case folding, so ſig equals sig
const TYPES = ['REQUEST', 'OFFER', 'ACCEPT', 'RESULT', 'ERROR', 'CANCEL', 'MANIFEST'];
const MAX_BYTES = 128 * 1024, MAX_DEPTH = 64, MAX_TTL = 9223372036; // MAX_TTL: fits into 64 bits of nanoseconds
const isId = (v) => typeof v === 'string' && /^[A-Za-z0-9][A-Za-z0-9._:~-]{0,127}$/.test(v);
const isOptional = (v, type) => v === undefined || typeof v === type;
const isWhole = (v, min, max) => Number.isInteger(v) && v >= min && v <= max;

/** Parses a body: an envelope, or {"envelope": …} around one. Checks all that needs neither a clock nor a key. */
export function readEnvelope(body) {
  must(body.length <= MAX_BYTES, 'PAYLOAD_TOO_LARGE', 'too many bytes');
  must(depth(Buffer.from(body)) <= MAX_DEPTH, 'INVALID_REQUEST', 'nested too deep');
  let e = parse(body);
  must(isObject(e), 'INVALID_REQUEST', 'no JSON object');
  if (isObject(e.envelope) && Object.keys(e).length === 1) e = e.envelope;
  must(canonicalize(e).length <= MAX_BYTES, 'PAYLOAD_TOO_LARGE', 'too many bytes');
  checkFields(e);
  return e;
}

function checkFields(e) {
  const valid = (ok, what) => must(ok, 'INVALID_REQUEST', what);
  valid(isObject(e), 'no JSON object');
  for (const name of Object.keys(e)) valid(FIELDS.includes(name) || !FOLDED.test(name), 'a name differs only in case');
  must(e.version === '1.0', 'UNSUPPORTED_VERSION', 'version');
  valid(isId(e.id), 'id');
  valid(TYPES.includes(e.type), 'type');
  instant(e.ts);
  must(isObject(e.sender) && typeof e.sender.id === 'string', 'INVALID_DID', 'sender');
  must(isOptional(e.sender.name, 'string') && isOptional(e.sender.url, 'string'), 'INVALID_DID', 'sender');
  must(e.recipient === undefined || isObject(e.recipient) && typeof e.recipient.id === 'string', 'INVALID_DID', 'recipient');
  valid(isObject(e.payload), 'payload');
  if (e.type === 'MANIFEST') valid(e.thread === undefined, 'thread');
  else {
    const { request_id = '' } = e.payload;
    valid(typeof request_id === 'string' && Buffer.byteLength(request_id) <= 128, 'payload.request_id');
    valid(e.thread === undefined || isObject(e.thread), 'thread');
    valid(isId(threadOf(e)), 'thread.id');
  }
  const meta = e.meta === undefined ? {} : e.meta;
  valid(isObject(meta), 'meta');
  valid(meta.ttl === undefined || isWhole(meta.ttl, 1, MAX_TTL), 'meta.ttl');
  valid(meta.hop === undefined || isWhole(meta.hop, 0, 16), 'meta.hop');
}

/** The id of the message's thread. Some clients leave thread out; then it is request_id. */
export const threadOf = (e) => e.thread === undefined ? e.payload.request_id : e.thread.id;

/** Converts an RFC 3339 date-time to nanoseconds since 1970. Date has only milliseconds and accepts invalid dates. */
export function instant(text) {
  const time = '([01]\\d|2[0-3]):([0-5]\\d)';
  const form = new RegExp(`^(\\d{4})-(\\d\\d)-(\\d\\d)T${time}:([0-5]\\d)(?:\\.(\\d{1,9}))?(?:Z|([+-])${time})$`);
  const [, year, month, day, h, m, s, fraction = '', sign, oh = 0, om = 0] = form.exec(text) ?? [];
  const date = new Date(0);
  date.setUTCFullYear(year, month - 1, day); // becomes a day of the next month if the day does not exist
  must(typeof text === 'string' && date.getUTCMonth() === month - 1 && date.getUTCDate() === +day, 'INVALID_REQUEST', 'ts');
  const offset = (oh * 60 + +om) * (sign === '-' ? -60 : 60);
  return BigInt(date.getTime() / 1000 + h * 3600 + m * 60 + +s - offset) * 1_000_000_000n + BigInt(fraction.padEnd(9, '0'));
}

/** The bytes that a signature covers: the canonical form without sig. */
export function covered({ sig, ...rest }) { return canonicalize(rest); }

export function sign(envelope, { seed }) {
  return { ...envelope, sig: Buffer.from(ed.sign(covered(envelope), seed)).toString('base64url') };
}

/** Throws unless sender and recipient are valid did:keys and the signature is the sender's. */
export function verify(e, signed = e) {
  const key = keyOf(e.sender.id);
  if (e.recipient !== undefined) keyOf(e.recipient.id);
  const sig = Buffer.from(typeof e.sig === 'string' ? e.sig : '', 'base64url'); // ignores invalid characters
  must(sig.length === 64 && sig.toString('base64url') === e.sig, 'INVALID_SIGNATURE', 'sig is not 86 characters of base64url');
  must(verifies(sig, covered(signed), key), 'INVALID_SIGNATURE', 'not signed by its sender');
}

// noble multiplies the verification equation by the cofactor 8. Go and OpenSSL do not, and compare the bytes of R. The
// results differ for specially made keys and signatures. This function agrees with Go, so that all readers see the same
// messages.
function verifies(sig, message, key) {
  if (!ed.verify(sig, message, key, { zip215: false })) return false;
  const number = (bytes) => BigInt('0x' + Buffer.from(bytes).reverse().toString('hex'));
  const R = sig.subarray(0, 32), k = number(sha512(R, key, message)) % ed.Point.CURVE().n;
  const kA = ed.Point.fromBytes(key).multiply(k, false), sB = ed.Point.BASE.multiply(number(sig.subarray(32)), false);
  return R.equals(sB.subtract(kA).toBytes());
}

// --- Signed reads (PROTOCOL §8)

/** Makes a token for one GET of target (path and query as sent) from the relay whose origin is aud. */
export function readToken(aud, target, me, ts = new Date().toISOString(), nonce = randomBytes(16).toString('base64url')) {
  return canonicalize(sign({ typ: 'agora-read', did: me.did, aud, method: 'GET', target, ts, nonce }, me)).toString('base64url');
}

const MEMBERS = 'aud,did,method,nonce,sig,target,ts,typ';

/** Returns the signer of a token for this request. now is in nanoseconds, as in instant. Only a relay needs to check that
 *  a token is used once. */
export function checkRead(token, { origin, method, target }, now) {
  const valid = (ok, what) => must(ok, 'UNAUTHORIZED', what);
  valid(token.length <= 8192 && Buffer.from(token, 'base64url').toString('base64url') === token, 'not one spelling of base64url');
  try {
    const t = parse(Buffer.from(token, 'base64url'));
    valid(isObject(t) && Object.keys(t).sort().join() === MEMBERS && Object.values(t).every((v) => typeof v === 'string'), 'members');
    valid(t.typ === 'agora-read' && /^[A-Za-z0-9_-]{16,64}$/.test(t.nonce), 'typ or nonce');
    valid(t.aud === origin && t.method === method && t.target === target, 'for another relay or request');
    const age = now - instant(t.ts), minute = 60_000_000_000n;
    valid(-minute < age && age < minute, 'ts');
    verify({ ...t, sender: { id: t.did } }, t);
    return t.did;
  } catch (err) {
    throw err instanceof Refused ? new Refused('UNAUTHORIZED', err.message) : err;
  }
}

// The scheme, host and port of a URL. All names of this machine count as the same host.
const place = ({ protocol, hostname, port }) => [protocol, /^(localhost|127\..*|\[::1\])$/.test(hostname) ? 'here' : hostname, port].join();

// --- The relay

export class Relay {
  constructor(url, me = identity()) { this.url = url.replace(/\/$/, ''); this.me = me; }

  /** Signs and posts a message; to and thread are optional. If there is no response, it sends the same bytes again, which
   *  is safe. */
  async post(type, payload, { to, thread, ttl = 86400 } = {}) {
    const e = sign({
      version: '1.0', id: `msg_${randomUUID()}`, ts: new Date().toISOString(), type, payload, meta: { ttl },
      sender: { id: this.me.did }, ...(to && { recipient: { id: to } }), ...(thread && { thread: { id: thread } }),
    }, this.me);
    for (let attempt = 1; ; attempt++) {
      try { return await this.call('/events', canonicalize(e)); } catch (err) {
        if (err.final || attempt === 5) throw err;
        await pause(250 * 2 ** attempt);
      }
    }
  }

  /** Yields verified events that match filter (recipient, sender, type, thread, broadcast), and waits for more.
   *  place.cursor advances after each page. Store it, so that the next process can continue there. */
  async *follow(filter, place = { cursor: '0' }) {
    for (;;) {
      const query = new URLSearchParams({ ...filter, cursor: place.cursor, timeout: 30 });
      let page;
      try { page = await this.call(`/events?${query}`); } catch (err) {
        if (err.final) throw err;
        await pause(2000);
        continue;
      }
      for (const event of page.events) {
        try { checkFields(event); verify(event); } catch (err) {
          console.error('an event was left out:', err.message);
          continue;
        }
        yield event;
      }
      place.cursor = page.cursor;
    }
  }

  /** The position after all stored events, to follow only new events. */
  async newest(filter) {
    const query = new URLSearchParams({ ...filter, since: new Date().toISOString(), timeout: 0 });
    return { cursor: (await this.call(`/events?${query}`)).cursor };
  }

  /** Asks the relay once who may read messages. If only their parties may, all further reads are signed. A token is for
   *  the address that we use, not for another address that the relay claims to have. */
  async authorization(path) {
    this.about ??= await this.exchange('/.well-known/agora.json');
    const { reads, url } = this.about, here = new URL(this.url + path);
    if (reads !== 'parties') return {};
    must(place(new URL(url)) === place(here), 'UNAUTHORIZED', `this relay is to be reached at ${url}`);
    return { authorization: `Agora ${readToken(url, here.pathname + here.search, this.me)}` };
  }

  async call(path, body) {
    return this.exchange(path, body, body ? { 'content-type': 'application/json' } : await this.authorization(path));
  }

  async exchange(path, body, headers) {
    const response = await fetch(this.url + path, {
      method: body ? 'POST' : 'GET', body, headers,
      redirect: 'error', signal: AbortSignal.timeout(60_000),
    });
    const answer = parse(await response.arrayBuffer());
    if (answer.ok === true) return answer;
    throw Object.assign(new Refused(answer.error, answer.message), { final: !answer.retryable });
  }
}
