// Agora v1.0 for browsers and for Node 20 or later: identities, strict parsing, signatures, sealed payloads, and the
// API of a relay. It is one module without dependencies. It uses only globals that both have, such as WebCrypto and
// fetch. All input from others is parsed strictly and verified before it is used. agora.d.ts documents the types.
//
// Section numbers (§) refer to docs/PROTOCOL.md.

/** A refusal by the rules of the protocol. code is one of its codes. The message has no text of the input. */
export class Refused extends Error {
  constructor(code, message, details = {}) {
    super(`${code}: ${message}`);
    Object.assign(this, { name: 'Refused', code, details, retryable: false });
  }
}

/** A request without a successful answer: the relay has refused it, or there was no usable answer. retryAfter is in
 *  milliseconds. Without an answer, status is 0 and code is NO_ANSWER. */
export class RelayError extends Refused {
  constructor(code, message, { details, ...rest }) {
    super(code, message, details);
    const defaults = { status: 0, retryable: true, retryAfter: 0, challenged: false, notSent: false };
    Object.assign(this, { name: 'RelayError' }, defaults, rest);
  }

  /** Whether the request had certainly no effect. */
  get noEffect() {
    return this.notSent || this.status >= 400 && this.status < 500 || this.details.stored === false;
  }

  /** Whether the relay asks for a longer delay than a post waits. */
  get waitsTooLong() { return this.noEffect && this.retryAfter > POST_PATIENCE; }
}

/** The error of a post if the relay may or may not have stored the message. envelope is the message; it is safe to post
 *  the same envelope again with postEnvelope. cause is the last failure. */
export class UnknownOutcome extends Error {
  constructor(envelope, cause, why = cause.message) {
    super(`UNKNOWN_OUTCOME: it is unknown whether the relay has stored the message (${why})`, { cause });
    Object.assign(this, { name: new.target.name, code: 'UNKNOWN_OUTCOME', retryable: true, details: {}, envelope });
  }
}

/** The error where WebCrypto, or an algorithm of it, is missing. Nothing is known then about a signature.
 *  Browsers offer WebCrypto only to pages that came over https or from this machine. */
export class Unavailable extends Error {
  constructor(cause) {
    super('NO_WEBCRYPTO: signatures cannot be checked here, because WebCrypto with Ed25519 and X25519 is missing. ' +
      'Use https or a loopback address, and a current browser', { cause });
    Object.assign(this, { name: 'Unavailable', code: 'NO_WEBCRYPTO', retryable: false });
  }
}

const must = (ok, code, message) => { if (!ok) throw new Refused(code, message); };
const isObject = (v) => typeof v === 'object' && v !== null && !Array.isArray(v);

// WebCrypto gets only valid keys here. So if it fails with anything but OperationError, it lacks the algorithm.
async function withCrypto(use) {
  const subtle = globalThis.crypto?.subtle;
  if (!subtle) throw new Unavailable();
  try { return await use(subtle); } catch (err) { throw err?.name === 'OperationError' ? err : new Unavailable(err); }
}
const digest = async (name, ...parts) => new Uint8Array(await withCrypto((s) => s.digest(name, concat(...parts))));
/** The SHA-256 hash of bytes, 32 bytes. */
export const sha256 = (bytes) => digest('SHA-256', bytes);
const random = (length) => crypto.getRandomValues(new Uint8Array(length));

// --- Bytes

const encoder = new TextEncoder();
const utf8 = (text) => encoder.encode(text);

function concat(...parts) {
  const all = new Uint8Array(parts.reduce((length, part) => length + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
const fromHex = (text) => Uint8Array.from(text.match(/../g) ?? [], (pair) => parseInt(pair, 16));
// A number of 32 bytes, with the lowest byte first.
const number = (bytes) => BigInt('0x' + hex(bytes.slice().reverse()));
const bytesOf = (n) => fromHex(n.toString(16).padStart(64, '0')).reverse();

/** Unpadded base64url of bytes. */
export function encode64(bytes) {
  let text = '';
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text).replace(/\+/g, '-').replace(/\//g, '_').replace(/=+$/, '');
}

/** The bytes of unpadded base64url, or undefined if text is not the one spelling of them. */
export function decode64(text) {
  let raw;
  try { raw = atob(text.replace(/-/g, '+').replace(/_/g, '/')); } catch { return undefined; }
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  return encode64(bytes) === text ? bytes : undefined; // atob skips white space and ignores unused bits
}

// --- The curve of Ed25519 (RFC 8032 §5.1). All inputs of this code are public, so it need not run in constant time.

const P = 2n ** 255n - 19n, ORDER = 2n ** 252n + 27742317777372353535851937790883648493n;
const mod = (n) => (n %= P) < 0n ? n + P : n;
const inverse = (n) => power(n, P - 2n);

function power(base, exponent) {
  let result = 1n;
  for (; exponent > 0n; exponent >>= 1n, base = base * base % P) if (exponent & 1n) result = result * base % P;
  return result;
}

const D = mod(-121665n * inverse(121666n)), ROOT = power(2n, (P - 1n) / 4n); // ROOT² = -1

// The y coordinates of the eight points of small order. Under a key of small order anybody can sign.
const Y8 = number(fromHex('c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a'));
const SMALL = new Set([0n, 1n, P - 1n, Y8, P - Y8]);
const yOf = (bytes) => number(bytes) & (1n << 255n) - 1n; // without the sign of x, which is the highest bit

// A point is [X, Y, Z, T] with x = X/Z, y = Y/Z and xy = T/Z. decompress returns undefined if bytes encode no point.
function decompress(bytes) {
  const y = yOf(bytes), odd = BigInt(bytes[31] >> 7);
  if (y >= P) return undefined;
  const u = mod(y * y - 1n), v = mod(D * y * y + 1n), v3 = v * v % P * v % P;
  let x = u * v3 % P * power(u * v3 % P * v3 % P * v % P, (P - 5n) / 8n) % P;
  const square = v * x % P * x % P;
  if (square === P - u) x = x * ROOT % P;
  else if (square !== u) return undefined;
  if (x === 0n && odd) return undefined;
  if ((x & 1n) !== odd) x = P - x;
  return [x, y, 1n, x * y % P];
}

function compress([X, Y, Z]) {
  const z = inverse(Z), x = X * z % P, bytes = bytesOf(Y * z % P);
  bytes[31] |= Number(x & 1n) << 7;
  return bytes;
}

// The sum of two points. The formula is complete: it is also right for equal points.
function add([X1, Y1, Z1, T1], [X2, Y2, Z2, T2]) {
  const a = mod((Y1 - X1) * (Y2 - X2)), b = (Y1 + X1) * (Y2 + X2) % P;
  const c = 2n * D * T1 % P * T2 % P, d = 2n * Z1 * Z2 % P;
  const e = b - a, f = d - c, g = d + c, h = b + a;
  return [mod(e * f), mod(g * h), mod(f * g), mod(e * h)];
}

function multiply(point, scalar) {
  let sum = [0n, 1n, 1n, 0n];
  for (; scalar > 0n; scalar >>= 1n, point = add(point, point)) if (scalar & 1n) sum = add(sum, point);
  return sum;
}

const BASE = decompress(bytesOf(4n * inverse(5n) % P));

// The R that a signature must have: S·B - k·A.
function expectedR(S, k, key) {
  const [X, Y, Z, T] = decompress(key);
  return compress(add(multiply(BASE, S), multiply([P - X, Y, Z, P - T], k)));
}

// --- Identities: did:key of an Ed25519 key (§2)

const ALPHABET = '123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz';
const CODEC = 0xed01n; // the multicodec of Ed25519 public keys
const MAX_KEYS = 1000;
const known = new Map(); // by DID: the key and, once it is needed, WebCrypto's form of it; the last used ones are last

/** The 32 key bytes of a did:key. Throws Refused with INVALID_DID unless did is the one spelling of a usable key. */
export const keyOf = (did) => lookup(did).key.slice();

function lookup(did) {
  let entry = known.get(did);
  if (entry) known.delete(did);
  else entry = { key: decodeDid(did) };
  known.set(did, entry);
  if (known.size > MAX_KEYS) known.delete(known.keys().next().value);
  return entry;
}

// The form is checked before base58 is decoded. In this form every key has only one spelling.
function decodeDid(did) {
  const form = typeof did === 'string' && /^did:key:z6Mk[1-9A-HJ-NP-Za-km-z]{44}$/.test(did);
  must(form, 'INVALID_DID', 'not a did:key of an Ed25519 key');
  let n = 0n;
  for (const c of did.slice('did:key:z'.length)) n = n * 58n + BigInt(ALPHABET.indexOf(c));
  must(n >> 256n === CODEC, 'INVALID_DID', 'not a did:key of an Ed25519 key');
  const key = bytesOf(n & (1n << 256n) - 1n).reverse();
  checkKey(key);
  return key;
}

function checkKey(key) {
  must(key.length === 32, 'INVALID_DID', 'a key must have 32 bytes');
  must(decompress(key), 'INVALID_DID', 'the key is not the encoding of a point');
  must(!SMALL.has(yOf(key)), 'INVALID_DID', 'a key under which anybody can sign');
}

/** The did:key of 32 key bytes. Throws what keyOf throws. */
export function didOf(key) {
  checkKey(key);
  let text = '', n = BigInt('0xed01' + hex(key));
  for (; n > 0n; n /= 58n) text = ALPHABET[Number(n % 58n)] + text;
  return `did:key:z${text}`;
}

const PKCS8 = { // what comes before the 32 bytes of a private key (RFC 8410)
  Ed25519: fromHex('302e020100300506032b657004220420'), X25519: fromHex('302e020100300506032b656e04220420'),
};
const importPrivate = (algorithm, raw, extractable, usage) => withCrypto((s) =>
  s.importKey('pkcs8', concat(PKCS8[algorithm], raw), algorithm, extractable, [usage]));

/** The identity of a 32-byte seed; without a seed, a new identity. Keep the seed secret: it signs as you. */
export async function identity(seed = random(32)) {
  must(seed instanceof Uint8Array && seed.length === 32, 'INVALID_KEY', 'a seed must have 32 bytes');
  const pair = await importPrivate('Ed25519', seed, true, 'sign');
  const { x } = await withCrypto((s) => s.exportKey('jwk', pair)); // has the public key too
  return { did: didOf(decode64(x)), seed: seed.slice() };
}

/** The identity in a key file, as agora keygen writes it. The errors hold nothing of the file. */
export async function readKeyFile(text) {
  let file;
  try { file = parse(utf8(text.slice(0, 65_536))); } catch { file = undefined; }
  must(isObject(file) && file.kty === 'OKP' && file.crv === 'Ed25519', 'INVALID_KEY',
    'not an Ed25519 key file (a JSON Web Key with kty OKP); make one with: agora keygen');
  const seed = typeof file.d === 'string' ? decode64(file.d) : undefined;
  must(seed?.length === 32, 'INVALID_KEY', 'the member d of the key file is not a seed of 32 bytes in base64url');
  const me = await identity(seed);
  must(file.kid === me.did && file.x === encode64(keyOf(me.did)), 'INVALID_KEY',
    'the key file is damaged: its private key does not match kid and x; restore it from a backup');
  return me;
}

/** The text of a key file. Save it so that only its owner can read it. */
export const formatKeyFile = ({ did, seed }) =>
  JSON.stringify({ kty: 'OKP', crv: 'Ed25519', kid: did, x: encode64(keyOf(did)), d: encode64(seed) }, null, 2) + '\n';

// --- JSON: only I-JSON is accepted, because all parsers agree about its meaning (§1)

const MAX_DEPTH = 64, MAX_COSTLY = 1000, STRICT = { depth: MAX_DEPTH, costly: MAX_COSTLY };
const LONE_SURROGATE = /\p{Surrogate}/u;

/** Parses bytes as one I-JSON value. */
export function parse(bytes, { depth = MAX_DEPTH, costly = MAX_COSTLY } = {}) {
  let text;
  try {
    // ignoreBOM keeps a byte order mark in the text, so JSON.parse refuses it.
    text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch { throw new Refused('INVALID_REQUEST', 'not UTF-8'); }
  return parseText(text, { depth, costly });
}

function parseText(text, limits) {
  const found = scan(text, limits);
  let value;
  try { value = JSON.parse(text); } catch { throw new Refused('INVALID_REQUEST', 'not JSON'); }
  must(countMembers(value) === found.members, 'INVALID_REQUEST', 'a member occurs twice in one object');
  return value;
}

// Reads a JSON text without parsing it, and refuses it as soon as it is nested deeper than depth, or has more costly
// numbers than costly. Returns how many members its objects have. JSON.parse keeps only the last of two equal members,
// so the parsed value then has fewer members.
function scan(text, { depth, costly }) {
  const numbers = /-?(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d+))?/y;
  let level = 0, members = 0, found = 0;
  for (let i = 0; i < text.length; i++) {
    const c = text.charCodeAt(i);
    if (c === 0x22) i = endOfString(text, i);
    else if (c === 0x7b || c === 0x5b) { // { [
      must(++level <= depth, 'INVALID_REQUEST', 'the JSON is nested too deep');
    } else if (c === 0x7d || c === 0x5d) level--; // } ]
    else if (c === 0x3a) members++; // :
    else if (c === 0x2d || isDigit(c)) {
      const end = endOfDigits(text, i + 1), next = text.charCodeAt(end) | 0x20;
      const isShort = end - i <= 17 && next !== 0x2e && next !== 0x65; // a whole number without . or e: not costly
      if (isShort) {
        i = end - 1;
        continue;
      }
      numbers.lastIndex = i;
      const [match, whole, fraction = '', exponent = 0] = numbers.exec(text) ?? [];
      if (!match) continue;
      if (isCostly(whole, fraction, Number(exponent))) found++;
      must(found <= costly, 'INVALID_REQUEST', 'too many numbers with many digits or below 1e-307');
      i += match.length - 1;
    }
  }
  return { members };
}

const isDigit = (c) => c >= 0x30 && c <= 0x39;

function endOfDigits(text, i) {
  while (isDigit(text.charCodeAt(i))) i++;
  return i;
}

// The index of the quote that ends the string whose first quote is at start; without one, the end of the text.
function endOfString(text, start) {
  for (let i = start + 1; i < text.length; i++) {
    const c = text.charCodeAt(i);
    if (c === 0x22) return i;
    if (c === 0x5c) i++; // a backslash
  }
  return text.length;
}

// Whether a number has more than 17 significant digits, or is not zero and below 1e-307.
function isCostly(whole, fraction, exponent) {
  const digits = whole + fraction, first = digits.search(/[1-9]/);
  if (first < 0) return false;
  let last = digits.length - 1;
  while (digits[last] === '0') last--;
  return last - first >= 17 || exponent + whole.length - 1 - first < -307;
}

// The number of members of all objects in a parsed value. It also refuses what JSON.parse lets through: half of a
// surrogate pair, and Infinity, which JSON.parse returns for 1e400.
function countMembers(value) {
  if (typeof value === 'string') must(!LONE_SURROGATE.test(value), 'INVALID_REQUEST', 'half of a surrogate pair');
  if (typeof value === 'number') must(Number.isFinite(value), 'INVALID_REQUEST', 'a number is too large for a double');
  if (typeof value !== 'object' || value === null) return 0;
  if (Array.isArray(value)) return value.reduce((count, element) => count + countMembers(element), 0);
  let count = 0;
  for (const name of Object.keys(value)) count += 1 + countMembers(name) + countMembers(value[name]);
  return count;
}

/** The RFC 8785 form of a value, as text. A member with the value undefined is left out. */
export function canonicalText(value) { return write(value, 0); }

/** The RFC 8785 form of a value, as bytes. */
export const canonicalize = (value) => utf8(canonicalText(value));

function write(value, level) {
  switch (typeof value) {
    case 'string':
      must(!LONE_SURROGATE.test(value), 'INVALID_REQUEST', 'half of a surrogate pair');
      return JSON.stringify(value);
    case 'number':
      must(Number.isFinite(value), 'INVALID_REQUEST', 'a number is not finite');
      return JSON.stringify(value); // writes -0 as 0
    case 'boolean': return String(value);
  }
  must(typeof value === 'object', 'INVALID_REQUEST', 'a value that JSON does not have');
  must(level < 1000, 'INVALID_REQUEST', 'the value is nested too deep');
  if (value === null) return 'null';
  if (Array.isArray(value)) return `[${Array.from(value, (element) => write(element, level + 1)).join()}]`;
  const prototype = Object.getPrototypeOf(value); // such as the prototype of Date or Map, which JSON does not have
  const plain = prototype === null || Object.getPrototypeOf(prototype) === null;
  must(plain, 'INVALID_REQUEST', 'a value that JSON does not have');
  const names = Object.keys(value).filter((name) => value[name] !== undefined).sort(); // by UTF-16 code units
  return `{${names.map((name) => `${write(name, level)}:${write(value[name], level + 1)}`).join()}}`;
}

// --- Tables of the protocol. The command testvectors/protocol writes them.

// <protocol: protocol>
export const protocol = {
  types: {
    REQUEST: { by: 'opener', clear: ['request_id', 'intent'] },
    OFFER: { by: 'offerer', clear: ['request_id'] },
    ACCEPT: { by: 'client', clear: ['request_id'] },
    RESULT: { by: 'agent', clear: ['request_id', 'status'] },
    ERROR: { by: 'party', clear: ['request_id', 'code'] },
    CANCEL: { by: 'client', clear: ['request_id'] },
    MANIFEST: { by: 'anyone', clear: [] },
  },
  states: ['OPEN', 'PENDING', 'ACTIVE', 'COMPLETED', 'ERROR'],
  settles: ['INVALID_REQUEST', 'FORBIDDEN', 'THREAD_NOT_FOUND', 'DUPLICATE_ID', 'INVALID_TRANSITION'],
  movedOn: ['FORBIDDEN', 'THREAD_NOT_FOUND', 'DUPLICATE_ID', 'INVALID_TRANSITION'],
  agentRetryable: ['INSUFFICIENT_BUDGET', 'TIMEOUT', 'UNAVAILABLE', 'INTERNAL_ERROR'],
  status: {
    INVALID_REQUEST: 400,
    UNSUPPORTED_VERSION: 400,
    INVALID_DID: 400,
    STALE_TIMESTAMP: 400,
    EXPIRED: 400,
    INVALID_SIGNATURE: 403,
    FORBIDDEN: 403,
    UNAUTHORIZED: 401,
    THREAD_NOT_FOUND: 404,
    AGENT_NOT_FOUND: 404,
    NOT_FOUND: 404,
    METHOD_NOT_ALLOWED: 405,
    DUPLICATE_ID: 409,
    INVALID_TRANSITION: 409,
    PAYLOAD_TOO_LARGE: 413,
    UNSUPPORTED_MEDIA_TYPE: 415,
    RATE_LIMITED: 429,
    INTERNAL_ERROR: 500,
    UNAVAILABLE: 503,
  },
  defaultTtl: 300,
  draftTtl: 86400,
};
// </protocol>

// --- Envelopes (§1)

const FIELDS = ['version', 'id', 'ts', 'type', 'sender', 'recipient', 'payload', 'thread', 'meta', 'sig'];
const FOLDED = new RegExp(`^(${FIELDS.join('|')})$`, 'iu'); // iu: Unicode case folding, so ſig equals sig
const MAX_BYTES = 128 * 1024, MAX_TTL = 9_223_372_036; // MAX_TTL in nanoseconds fits into 64 bits
const MAX_EVENT = 1 << 20; // bytes of an event; the limit of a relay may be above MAX_BYTES

/** Whether v has the form of the id of a message or a thread. */
export const isId = (v) => typeof v === 'string' && /^[A-Za-z0-9][A-Za-z0-9._:~-]{0,127}$/.test(v);
const isOptional = (v, type) => v === undefined || typeof v === type;
const isWhole = (v, min, max) => Number.isInteger(v) && v >= min && v <= max;

const checkSize = (size, most) =>
  must(size <= most, 'PAYLOAD_TOO_LARGE', `the message has ${size} bytes, and the limit is ${most}`);

/** Parses a body: an envelope, or {"envelope": …} around one. Checks all that needs neither a clock nor a key. */
export function readEnvelope(bytes, { maxBytes = MAX_BYTES } = {}) {
  checkSize(bytes.byteLength, maxBytes);
  let e = parse(bytes);
  if (isObject(e) && isObject(e.envelope) && Object.keys(e).length === 1) e = e.envelope;
  return checkEnvelope(e, { maxBytes });
}

/** Checks what readEnvelope checks, for an envelope that is parsed already, such as an event of a page. Returns it. */
export function checkEnvelope(e, { maxBytes = MAX_BYTES } = {}) {
  must(isObject(e), 'INVALID_REQUEST', 'no JSON object');
  const text = canonicalText(e);
  checkSize(utf8(text).length, maxBytes);
  scan(text, STRICT);
  checkParts(e);
  return e;
}

function checkParts(e) {
  must(isObject(e), 'INVALID_REQUEST', 'no JSON object');
  checkHead(e);
  checkRest(e);
}

function checkHead(e) {
  const isParty = (v) => isObject(v) && typeof v.id === 'string' && v.id !== '';
  for (const name of Object.keys(e)) {
    must(FIELDS.includes(name) || !FOLDED.test(name), 'INVALID_REQUEST', 'the name of a member differs only in case');
  }
  must(e.version === '1.0', 'UNSUPPORTED_VERSION', 'version must be the string 1.0');
  must(isId(e.id), 'INVALID_REQUEST', 'id');
  must(typeof e.type === 'string' && Object.hasOwn(protocol.types, e.type), 'INVALID_REQUEST', 'type');
  instant(e.ts);
  must(isParty(e.sender), 'INVALID_DID', 'sender must be an object whose id is a did:key');
  must(isOptional(e.sender.name, 'string'), 'INVALID_DID', 'sender.name must be a string');
  must(isOptional(e.sender.url, 'string'), 'INVALID_DID', 'sender.url must be a string');
  const toOne = e.recipient === undefined || isParty(e.recipient);
  must(toOne, 'INVALID_DID', 'recipient must be an object whose id is a did:key');
}

function checkRest({ type, payload, thread, meta = {} }) {
  const valid = (ok, what) => must(ok, 'INVALID_REQUEST', what);
  valid(isObject(payload), 'payload must be an object');
  if (type === 'MANIFEST') valid(thread === undefined, 'a MANIFEST has no thread');
  else {
    const { request_id = '' } = payload;
    valid(typeof request_id === 'string' && utf8(request_id).length <= 128, 'payload.request_id');
    valid(thread === undefined || isObject(thread), 'thread must be an object');
    valid(isId(threadOf({ thread, payload })), 'thread.id');
  }
  valid(isObject(meta), 'meta must be an object');
  valid(meta.ttl === undefined || isWhole(meta.ttl, 1, MAX_TTL), 'meta.ttl');
  valid(meta.hop === undefined || isWhole(meta.hop, 0, 16), 'meta.hop');
  const origins = Array.isArray(meta.relay) ? meta.relay : [meta.relay ?? ''];
  checkLinks(type, meta, valid);
  must(meta.relay !== null && origins.every((o) => typeof o === 'string'), 'FORBIDDEN', 'meta.relay must be an origin');
}

const isHash = (v) => typeof v === 'string' && /^[0-9a-f]{64}$/.test(v);
const ORIGIN = /^https?:\/\/(\[[\da-fA-F:.]+\]|[^\s/?#@:[\]%\\^`{|}]+)(:\d*)?$/;

// The relay that decides the thread, the message that this one answers, and the job that a REQUEST continues.
function checkLinks(type, { home, re, continues }, valid) {
  valid(home === undefined || isHome(home), 'meta.home must have exactly the did of a relay and its url, an origin');
  valid(re === undefined || isHash(re), 'meta.re must be the hash of a message');
  valid(continues === undefined || type === 'REQUEST' && isHash(continues), 'meta.continues');
}

/** Whether v is the home of a thread: the did of a relay, and its url, an origin (RELAYS R-1). */
export function isHome(v) {
  if (!isObject(v) || Object.keys(v).sort().join() !== 'did,url' || !ORIGIN.test(v.url)) return false;
  try { return typeof v.url === 'string' && Boolean(keyOf(v.did)); } catch { return false; }
}

/** The id of the message's thread. Some clients leave thread out; then it is request_id. */
export const threadOf = (e) => e.thread === undefined ? e.payload.request_id : e.thread.id;

const TIME = '([01]\\d|2[0-3]):([0-5]\\d)';
const DATE_TIME = new RegExp(`^(\\d{4})-(\\d\\d)-(\\d\\d)T${TIME}:([0-5]\\d)(?:\\.(\\d{1,9}))?(?:Z|([+-])${TIME})$`);

const CROCKFORD = '0123456789abcdefghjkmnpqrstvwxyz';

/** prefix, an underscore and a ULID in lower case: 48 bits of milliseconds and 80 random bits. */
export function newId(prefix, ms = Date.now()) {
  let n = BigInt(Math.max(Math.trunc(ms), 0)) % 2n ** 48n << 80n | number(random(10)), text = '';
  for (let i = 0; i < 26; i++, n >>= 5n) text = CROCKFORD[Number(n & 31n)] + text;
  return `${prefix}_${text}`;
}

/** Converts an RFC 3339 date-time to nanoseconds since 1970. Date has only milliseconds and accepts invalid dates. */
export function instant(text) {
  must(typeof text === 'string', 'INVALID_REQUEST', 'ts must be an RFC 3339 date-time'); // exec would convert it
  const [, year, month, day, h, m, s, fraction = '', sign, oh = 0, om = 0] = DATE_TIME.exec(text) ?? [];
  const date = new Date(0);
  date.setUTCFullYear(year, month - 1, day); // becomes a day of the next month if the day does not exist
  const exists = date.getUTCMonth() === month - 1 && date.getUTCDate() === Number(day);
  must(exists, 'INVALID_REQUEST', 'ts must be an RFC 3339 date-time');
  const offset = (Number(oh) * 60 + Number(om)) * (sign === '-' ? -60 : 60);
  const seconds = date.getTime() / 1000 + Number(h) * 3600 + Number(m) * 60 + Number(s) - offset;
  return BigInt(seconds) * 1_000_000_000n + BigInt(fraction.padEnd(9, '0'));
}

// --- Signatures: Ed25519 over the canonical form without sig (§1)

/** The bytes that the signature of e covers. */
export function covered({ sig, ...rest }) { return canonicalize(rest); }

const signingKeys = new WeakMap(); // by identity

/** The signature of the identity me over bytes, in base64url. */
export async function signature(message, me) {
  if (!signingKeys.has(me)) signingKeys.set(me, await importPrivate('Ed25519', me.seed, false, 'sign'));
  return encode64(new Uint8Array(await withCrypto((s) => s.sign('Ed25519', signingKeys.get(me), message))));
}

/** Returns e with the signature of the identity me. */
export async function sign(e, me) { return { ...e, sig: await signature(covered(e), me) }; }

/** Throws Refused unless the sender and the recipient are valid did:keys and the signature is the sender's. */
export async function verify(e) {
  lookup(e?.sender?.id);
  if (e.recipient !== undefined) lookup(e.recipient?.id);
  must(await verifies(readSig(e.sig), covered(e), e.sender.id), 'INVALID_SIGNATURE', 'not signed by its sender');
}

function readSig(sig) {
  const bytes = typeof sig === 'string' && sig.length === 86 ? decode64(sig) : undefined;
  must(bytes, 'INVALID_SIGNATURE', 'sig is not 86 characters of base64url');
  return bytes;
}

/** Whether sig, 64 bytes, is the signature of did over message. Throws what keyOf throws. It accepts what Go and
 *  OpenSSL accept: S is below the order, and R has the same bytes as S·B - k·A. */
export async function verifies(sig, message, did) {
  const entry = lookup(did), R = sig.subarray(0, 32);
  if (sig.length !== 64) return false;
  const S = number(sig.subarray(32));
  if (S >= ORDER) return false;
  // The specification of WebCrypto refuses every R of small order. Only some browsers follow it, and Go does not.
  if (SMALL.has(yOf(R))) return hex(R) === hex(expectedR(S, await challenge(R, entry.key, message), entry.key));
  entry.imported ??= withCrypto((s) => s.importKey('raw', entry.key, 'Ed25519', false, ['verify']));
  try {
    const key = await entry.imported;
    return await withCrypto((s) => s.verify('Ed25519', key, sig, message));
  } catch (err) {
    entry.imported = undefined;
    throw err;
  }
}

const challenge = async (R, key, message) => wide(await digest('SHA-512', R, key, message)) % ORDER;
const wide = (bytes) => number(bytes.subarray(0, 32)) + (number(bytes.subarray(32)) << 256n);

/** What verification checks, one step after the other, for people. Returns the steps up to the first that fails. It
 *  never throws. ok is null where WebCrypto is missing. See agora.d.ts for the values of each step. */
export async function explain(e) {
  const steps = [], names = ['form', 'canonical', 'sender', 'recipient', 'signature', 'equation'];
  for (const name of names) {
    let found;
    try {
      found = await EXPLAIN[name](e);
    } catch (err) {
      const missing = err instanceof Unavailable, ours = missing || err instanceof Refused;
      found = { ok: missing ? null : false, detail: ours ? err.message : 'the value cannot be read' };
    }
    if (!found) continue; // a broadcast has no recipient
    steps.push({ step: steps.length + 1, name, ...found });
    if (found.ok !== true) break;
  }
  return steps;
}

const EXPLAIN = {
  form(e) {
    checkEnvelope(e, { maxBytes: MAX_EVENT });
    return { ok: true, detail: 'All members have the form that the protocol demands.', id: e.id, type: e.type };
  },
  async canonical(e) {
    const bytes = covered(e), text = new TextDecoder().decode(bytes);
    const sha256 = await digest('SHA-256', bytes).then(hex, () => null);
    return { ok: true, detail: `The signature covers these ${bytes.length} bytes.`, bytes: bytes.length, sha256, text };
  },
  sender: (e) => explainKey('sender', e.sender.id),
  recipient: (e) => e.recipient && explainKey('recipient', e.recipient.id),
  signature({ sig }) {
    const bytes = readSig(sig), R = hex(bytes.subarray(0, 32)), S = hex(bytes.subarray(32));
    const ok = number(bytes.subarray(32)) < ORDER;
    const detail = ok ? 'The signature is the point R and the number S.' : 'S is not below the order of the group.';
    return { ok, detail, sig, R, S };
  },
  async equation(e) {
    const sig = readSig(e.sig), message = covered(e), did = e.sender.id, key = keyOf(did), R = sig.subarray(0, 32);
    const k = await challenge(R, key, message), computed = hex(expectedR(number(sig.subarray(32)), k, key));
    const ok = await verifies(sig, message, did);
    const detail = ok ? 'S·B - k·A is R: the sender has signed these bytes.'
      : 'S·B - k·A is not R: the sender has not signed these bytes.';
    return { ok, detail, k: hex(bytesOf(k)), R: hex(R), computed };
  },
};

function explainKey(party, did) {
  const key = hex(keyOf(did));
  return { ok: true, detail: `The identifier of the ${party} is an Ed25519 key.`, did, multicodec: 'ed01', key };
}

// --- Signed reads (§8)

const MEMBERS = 'aud,did,method,nonce,sig,target,ts,typ', MAX_TOKEN = 8192, MINUTE = 60_000_000_000n;

/** Makes a token for one GET of target (path and query as sent) from the relay whose origin is aud. */
export async function readToken(aud, target, me, ts = new Date().toISOString(), nonce = encode64(random(16))) {
  const members = { typ: 'agora-read', did: me.did, aud, method: 'GET', target, ts, nonce };
  return encode64(canonicalize(await sign(members, me)));
}

/** Makes a token for one request to a gateway of the relay (GATEWAYS §3). body has the bytes that are sent. */
export async function callToken(aud, { method, target, body }, me, ts = new Date().toISOString()) {
  const rest = { method, target, body: encode64(await sha256(body)), ts, nonce: encode64(random(16)) };
  return encode64(canonicalize(await sign({ typ: 'agora-call', did: me.did, aud, ...rest }, me)));
}

/** Returns the signer of a token for this request. now is in nanoseconds, as in instant. details.reason of the error
 *  says why a token is refused. Only a relay needs to check that a token is used once. */
export async function checkRead(token, { origin, method, target }, now) {
  const valid = (ok, reason, what) => { if (!ok) throw new Refused('UNAUTHORIZED', what, { reason }); };
  valid(typeof token === 'string' && token.length <= MAX_TOKEN, 'malformed', 'the token is too long');
  try {
    const t = parse(decode64(token) ?? new Uint8Array());
    const members = isObject(t) && Object.keys(t).sort().join() === MEMBERS;
    valid(members && Object.values(t).every((v) => typeof v === 'string'), 'malformed', 'the members of the token');
    valid(t.typ === 'agora-read' && /^[A-Za-z0-9_-]{16,64}$/.test(t.nonce), 'malformed', 'typ or nonce');
    const age = now - instant(t.ts);
    valid(t.aud === origin, 'audience', 'the token is for another relay');
    valid(t.method === method && t.target === target, 'request', 'the token is for another request');
    valid(-MINUTE < age && age < MINUTE, 'time', 'ts is not within a minute of the clock');
    valid(await verifies(readSig(t.sig), covered(t), t.did), 'malformed', 'not signed by did');
    return t.did;
  } catch (err) {
    if (!(err instanceof Refused) || err.code === 'UNAUTHORIZED') throw err;
    throw new Refused('UNAUTHORIZED', 'the token is malformed', { reason: 'malformed' });
  }
}

// --- Sealed payloads (docs/SEALING.md): HPKE (RFC 9180) in base mode, the first message

const isClear = (type, name) => protocol.types[type].clear.includes(name);
const STAND_IN = 'sealed'; // replaces the message of a sealed ERROR
const UNIT = 256; // plaintexts are filled up to a multiple of it

/** Whether the payload of e is sealed. */
export const isSealed = (e) => e.type !== 'MANIFEST' && Object.hasOwn(e.payload, 'sealed');

/** Opens e, which is sealed to the identity me, and returns the payload. All failures throw the same Refused. */
export async function open(e, me) {
  try { return await opened(e, me); } catch (err) {
    if (err instanceof Unavailable) throw err;
    throw new Refused('INVALID_REQUEST', 'the sealed payload cannot be opened');
  }
}

async function opened(e, me) {
  const valid = (ok) => must(ok, 'INVALID_REQUEST', '');
  checkEnvelope(e, { maxBytes: MAX_EVENT });
  valid(isSealed(e) && e.recipient?.id === me.did);
  await verify(e);
  const { sealed, ...clear } = e.payload;
  if (e.type === 'ERROR') {
    valid(clear.message === STAND_IN);
    delete clear.message;
  }
  valid(Object.keys(clear).every((name) => isClear(e.type, name)));
  valid(typeof sealed === 'string' && sealed.startsWith('v1.'));
  const raw = decode64(sealed.slice(3));
  valid(raw?.length >= 32 + 16);

  const enc = raw.subarray(0, 32), shared = await exchange(await x25519Private(me.seed), enc);
  const { key, nonce } = await schedule(shared, enc, x25519Public(keyOf(me.did)), place(e));
  const secret = parse(chacha20poly1305.open(key, nonce, raw.subarray(32)));
  valid(isObject(secret) && isSecret(e.type, secret));
  return { ...clear, ...secret };
}

// Whether an opener accepts these members as the secret ones.
const isSecret = (type, secret) => !Object.keys(secret).some((name) => name === 'sealed' || isClear(type, name)) &&
  (type !== 'ERROR' || typeof secret.message === 'string' && secret.message !== '');

/** Returns e with its payload sealed to its recipient, to be signed. Only tests pass an ephemeral key of 32 bytes. */
export async function seal(e, ephemeral = random(32)) {
  const valid = (ok, what) => must(ok, 'INVALID_REQUEST', what);
  valid(e.type !== 'MANIFEST', 'a MANIFEST is public and cannot be sealed');
  valid(e.recipient !== undefined, 'a broadcast cannot be sealed; name a recipient');
  const part = (wanted) =>
    Object.fromEntries(Object.entries(e.payload).filter(([name]) => isClear(e.type, name) === wanted));
  const clear = part(true), secret = part(false), text = canonicalize(secret);
  valid(isSecret(e.type, secret), 'the payload is sealed already, or an ERROR without a message');
  parse(text); // refuses what the recipient would refuse
  if (e.type === 'ERROR') clear.message = STAND_IN;

  const theirs = x25519Public(keyOf(e.recipient.id)), enc = await exchange(ephemeral, BASE_U);
  const { key, nonce } = await schedule(await exchange(ephemeral, theirs), enc, theirs, place(e));
  const plaintext = concat(text, new Uint8Array(-text.length & UNIT - 1).fill(0x20));
  const sealed = `v1.${encode64(concat(enc, chacha20poly1305.seal(key, nonce, plaintext)))}`;
  return { ...e, payload: { ...clear, sealed } };
}

/** The info of the sealing: the members of e that the ciphertext is bound to, in RFC 8785 form. */
export const place = (e) => canonicalize({
  sender: e.sender.id, recipient: e.recipient.id, id: e.id, type: e.type, thread: threadOf(e),
  request_id: e.payload.request_id,
});

/** The X25519 public key, 32 bytes, of an Ed25519 public key that keyOf has returned: u = (1+y)/(1-y). */
export function x25519Public(key) {
  const y = yOf(key);
  return bytesOf((1n + y) * inverse(mod(1n - y)) % P);
}

/** The X25519 private key, 32 bytes, of an Ed25519 seed. */
export async function x25519Private(seed) {
  const scalar = (await digest('SHA-512', seed)).slice(0, 32);
  scalar[0] &= 248;
  scalar[31] = scalar[31] & 127 | 64;
  return scalar;
}

const BASE_U = bytesOf(9n); // the base point: the exchange with it gives a public key

// WebCrypto refuses a result of 32 zero bytes, as RFC 9180 §7.1.4 demands.
async function exchange(secret, theirs) {
  const mine = await importPrivate('X25519', secret, false, 'deriveBits');
  return new Uint8Array(await withCrypto(async (s) =>
    s.deriveBits({ name: 'X25519', public: await s.importKey('raw', theirs, 'X25519', false, []) }, mine, 256)));
}

// DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305
const KEM = utf8('KEM\x00\x20'), SUITE = utf8('HPKE\x00\x20\x00\x01\x00\x03'), NONE = new Uint8Array();

async function hmac(key, ...parts) {
  const salt = key.length ? key : new Uint8Array(32); // the same key for HMAC; WebCrypto refuses an empty one
  const algorithm = { name: 'HMAC', hash: 'SHA-256' };
  return new Uint8Array(await withCrypto(async (s) =>
    s.sign('HMAC', await s.importKey('raw', salt, algorithm, false, ['sign']), concat(...parts))));
}

const extract = (suite, salt, label, input) => hmac(salt, utf8('HPKE-v1'), suite, utf8(label), input);

// One block of HKDF-Expand is enough for all lengths in this file.
async function expand(suite, secret, label, info, length) {
  const input = concat(Uint8Array.of(0, length), utf8('HPKE-v1'), suite, utf8(label), info, Uint8Array.of(1));
  return (await hmac(secret, input)).subarray(0, length);
}

async function schedule(dh, enc, recipient, info) {
  const prk = await extract(KEM, NONE, 'eae_prk', dh);
  const shared = await expand(KEM, prk, 'shared_secret', concat(enc, recipient), 32);
  const hashes = [await extract(SUITE, NONE, 'psk_id_hash', NONE), await extract(SUITE, NONE, 'info_hash', info)];
  const context = concat(Uint8Array.of(0), ...hashes), secret = await extract(SUITE, shared, 'secret', NONE);
  return {
    key: await expand(SUITE, secret, 'key', context, 32), nonce: await expand(SUITE, secret, 'base_nonce', context, 12),
  };
}

// --- ChaCha20-Poly1305 (RFC 8439), which WebCrypto lacks

/** seal returns the ciphertext with its tag of 16 bytes; open returns the plaintext, or throws Refused. The key has 32
 *  bytes, the nonce 12. Never use a nonce twice with the same key. */
export const chacha20poly1305 = {
  seal(key, nonce, plaintext, aad = NONE) {
    checkSizes(key, nonce);
    const text = chacha20(key, nonce, 1, plaintext);
    return concat(text, tagOf(key, nonce, text, aad));
  },
  open(key, nonce, sealed, aad = NONE) {
    checkSizes(key, nonce);
    must(sealed.length >= 16, 'INVALID_REQUEST', 'the ciphertext is shorter than its tag');
    const text = sealed.subarray(0, -16), tag = sealed.subarray(-16);
    // The loop has no early exit, so its time does not show how many bytes of a forged tag are right.
    let difference = 0;
    tagOf(key, nonce, text, aad).forEach((byte, i) => { difference |= byte ^ tag[i]; });
    must(difference === 0, 'INVALID_REQUEST', 'the tag is wrong');
    return chacha20(key, nonce, 1, text);
  },
};

const checkSizes = (key, nonce) =>
  must(key.length === 32 && nonce.length === 12, 'INVALID_REQUEST', 'a key has 32 bytes, a nonce 12');

const viewOf = (bytes) => new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
const wordsOf = (bytes) => Array.from({ length: bytes.length / 4 }, (_, i) => viewOf(bytes).getUint32(4 * i, true));

// Encrypts or decrypts data. counter is the number of the first block.
function chacha20(key, nonce, counter, data) {
  const start = Uint32Array.from([...wordsOf(utf8('expand 32-byte k')), ...wordsOf(key), counter, ...wordsOf(nonce)]);
  const state = new Uint32Array(16), block = new Uint8Array(64), view = viewOf(block);
  const out = new Uint8Array(data.length);
  for (let at = 0; at < data.length; at += 64, start[12]++) {
    state.set(start);
    for (let round = 0; round < 10; round++) doubleRound(state);
    for (let i = 0; i < 16; i++) view.setUint32(4 * i, state[i] + start[i], true);
    const length = Math.min(64, data.length - at);
    for (let i = 0; i < length; i++) out[at + i] = data[at + i] ^ block[i];
  }
  return out;
}

function doubleRound(s) {
  for (let i = 0; i < 4; i++) quarterRound(s, i, i + 4, i + 8, i + 12); // columns
  for (let i = 0; i < 4; i++) quarterRound(s, i, (i + 1) % 4 + 4, (i + 2) % 4 + 8, (i + 3) % 4 + 12); // diagonals
}

function quarterRound(s, a, b, c, d) {
  let x;
  s[a] += s[b]; x = s[d] ^ s[a]; s[d] = x << 16 | x >>> 16;
  s[c] += s[d]; x = s[b] ^ s[c]; s[b] = x << 12 | x >>> 20;
  s[a] += s[b]; x = s[d] ^ s[a]; s[d] = x << 8 | x >>> 24;
  s[c] += s[d]; x = s[b] ^ s[c]; s[b] = x << 7 | x >>> 25;
}

function tagOf(key, nonce, text, aad) {
  const padded = (bytes) => concat(bytes, new Uint8Array(-bytes.length & 15));
  const lengths = new Uint8Array(16), view = viewOf(lengths);
  view.setBigUint64(0, BigInt(aad.length), true);
  view.setBigUint64(8, BigInt(text.length), true);
  return poly1305(chacha20(key, nonce, 0, new Uint8Array(32)), concat(padded(aad), padded(text), lengths));
}

// The numbers of Poly1305 have six limbs of 22 bits, lowest first. 2^132 is 20 modulo 2^130-5. So what a product has
// above the sixth limb is multiplied by 20 and added at the bottom. All sums stay below 2^53, so doubles are exact.
const LIMB = 2 ** 22, TOP = 2 ** 20; // TOP: the sixth limb of 2^130

// The length of message is a multiple of 16: the caller has padded it.
function poly1305(key, message) {
  const [k0, k1, k2, k3, ...s] = wordsOf(key), view = viewOf(message);
  const h = new Float64Array(6), r = new Float64Array(6), product = new Float64Array(6);
  addWords(r, k0 & 0x0fffffff, k1 & 0x0ffffffc, k2 & 0x0ffffffc, k3 & 0x0ffffffc);
  for (let at = 0; at < message.length; at += 16) {
    const word = (i) => view.getUint32(at + 4 * i, true);
    addWords(h, word(0), word(1), word(2), word(3));
    h[5] += 2 ** 18; // the bit after the 128 bits of the block
    for (let i = 0; i < 6; i++) {
      let low = 0, high = 0;
      for (let j = 0; j <= i; j++) low += h[j] * r[i - j];
      for (let j = i + 1; j < 6; j++) high += h[j] * r[i - j + 6];
      product[i] = low + 20 * high;
    }
    h.set(product);
    const over = carry(h, LIMB);
    h[0] += 20 * over; // below 2^30, because the highest limb of r has only 14 bits
  }
  return finish(h, s);
}

function addWords(limbs, a, b, c, d) {
  limbs[0] += a & LIMB - 1;
  limbs[1] += (a >>> 22 | b << 10) & LIMB - 1;
  limbs[2] += (b >>> 12 | c << 20) & LIMB - 1;
  limbs[3] += c >>> 2 & LIMB - 1;
  limbs[4] += (c >>> 24 | d << 8) & LIMB - 1;
  limbs[5] += d >>> 14;
}

// Carries from each limb to the next one. The sixth limb stays below top. Returns what it carries.
function carry(limbs, top) {
  let over = 0;
  for (let i = 0; i < 6; i++) {
    const sum = limbs[i] + over, size = i < 5 ? LIMB : top;
    over = Math.floor(sum / size);
    limbs[i] = sum - over * size;
  }
  return over;
}

// Reduces h modulo 2^130-5 and adds s modulo 2^128. It has no branch that depends on the numbers.
function finish(h, s) {
  for (let i = 0; i < 2; i++) {
    const above = carry(h, TOP);
    h[0] += 5 * above;
  }
  const reduced = h.slice();
  reduced[0] += 5;
  const over = carry(reduced, TOP); // 1 if h is 2^130-5 or more; then h + 5 - 2^130 is right
  const [a, b, c, d, e, f] = h.map((limb, i) => limb + over * (reduced[i] - limb));
  const tag = new Uint8Array(16), view = viewOf(tag);
  let sum = 0;
  [a | b << 22, b >>> 10 | c << 12, c >>> 20 | d << 2 | e << 24, e >>> 8 | f << 14].forEach((word, i) => {
    sum = Math.floor(sum / 2 ** 32) + (word >>> 0) + s[i];
    view.setUint32(4 * i, sum, true);
  });
  return tag;
}

// --- The API of a relay (§5 to §8)

// Bounds of an answer, in bytes. Relays end a page of events at 4 MiB, and one of agents at 256 KiB.
const MAX_POLL = 8 << 20, MAX_AGENTS = 8 << 20, MAX_DOCUMENT = 256 << 10, MAX_SHORT = 64 << 10, MAX_OTHER = 8 << 20;
const MAX_BULK = 4 << 20; // the answer to a bulk request
const MAX_SINCE = 16 << 20; // a page of a read with since, which may exceed the 4 MiB (§7)
const MAX_THREAD = 32 << 20; // a thread, which may have 100 offers
const MAX_REST = 512 << 10; // all of an answer except its list
const MAX_ELEMENT = 4 << 20; // an element of a list, in characters; the largest event that is verified is MAX_EVENT
// How many elements a list may have: the limit that was asked for, or one of these.
const MAX_ROWS = 1000, MAX_THREAD_EVENTS = 10_000, MAX_SINCE_EVENTS = 100_000, DEFAULT_LIMIT = 100;
const MAX_TEXT = 1000; // characters of a relay's text
const DOCUMENT = '/.well-known/agora.json', BULK = '/events/bulk';
/** How often a message is sent before a post gives up. */
export const POST_ATTEMPTS = 8;
/** How long a post waits at most before it is repeated, in milliseconds. */
export const POST_PATIENCE = 120_000;
const READ_ATTEMPTS = 3;
const EXCHANGE = 30_000, BULK_TIME = 60_000; // milliseconds
const FIVE_MINUTES = 300_000, QUARTER = 900_000, DAY = 86_400_000; // milliseconds
const MAX_KEPT = 30 * DAY; // the longest time that a relay keeps a message
const UNSAFE = /[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\u{E0000}-\u{E0FFF}]/gu;

// The codes of errors of fetch that prove that there was no connection. Browsers do not tell.
const NO_CONNECTION = ['ECONNREFUSED', 'ENOTFOUND', 'EAI_AGAIN', 'EHOSTUNREACH', 'ENETUNREACH',
  'UND_ERR_CONNECT_TIMEOUT', 'ConnectionRefused'];
const TOKEN_REFUSALS = [401, 403, 431]; // the statuses with which a proxy may refuse a token

/** Waits, or throws the signal's reason as soon as it is aborted. */
export function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    signal?.throwIfAborted();
    const end = () => { clearTimeout(timer); reject(signal.reason); };
    const done = () => { signal?.removeEventListener('abort', end); resolve(); };
    const timer = setTimeout(done, Math.min(ms, 2 ** 31 - 1)); // a longer timer would end at once
    signal?.addEventListener('abort', end, { once: true });
  });
}

/** The pause in milliseconds before the next attempt, after this number of earlier failures. It is partly random, so
 *  that clients that failed together do not retry together. */
export function backoff(failures, atLeast = 0, limit = 30_000) {
  const span = Math.min(500 * 2 ** Math.min(failures, 10), limit) / 2;
  return (atLeast || span) + Math.random() * span;
}

// A path with a query of those members that are not undefined.
function withQuery(path, query) {
  const text = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== undefined)).toString();
  return text ? `${path}?${text}` : path;
}

/** A relay, used as the identity me. Without me, it only reads, and unsigned. It does not verify what it reads. */
export class Relay {
  #fetch;
  #clock;
  #sender;
  #own; // the relay's own address, if url has another one
  #requireParties;
  #correction = 0; // milliseconds to add to the clock for messages
  // What the relay's document, read at the time at, says about reads. audience is for all tokens; '': the relay is
  // open. presence is the audience of tokens that only show that we are online; '': there are none.
  #rule;
  #tokensCorrection = 0; // milliseconds to add to the clock for tokens
  #tokensCorrectedAt = -Infinity;
  #absentSince = -Infinity; // when an open relay refused a read with a token

  /** clock returns the time in milliseconds since 1970. origin is the relay's own address, if url is the address of a
   *  proxy that you trust. Reads are then signed for origin. With requireParties, nothing is sent to a relay that shows
   *  directed messages to others than their parties. */
  constructor(url, { me, name, home, origin: own, requireParties = false,
    fetch = (...args) => globalThis.fetch(...args), clock = Date.now } = {}) {
    const isURL = /^https?:\/\//i.test(url) && URL.canParse(url), isIdentity = me?.did && me.seed?.length === 32;
    if (!isURL) throw new TypeError('url must begin with http:// or https://, such as http://127.0.0.1:8789');
    if (me !== undefined && me !== null && !isIdentity) {
      throw new TypeError('me must be an identity; did you forget await before loadOrCreateKey?');
    }
    const { origin, pathname } = new URL(url);
    this.url = origin + pathname.replace(/\/+$/, '');
    this.me = me;
    this.#sender = { ...(name && { name }), ...(home && { url: home }) };
    this.#own = own;
    this.#requireParties = requireParties;
    this.#fetch = fetch;
    this.#clock = clock;
  }

  /** Gets a line before each retry of a post. Client has an option for it. */
  log() {}

  /** Is called before a message is sent. Client throws an error here if the relay is not the home of the message. */
  async assureHome() {}

  /** The time in milliseconds since 1970, by the clock. If the relay has refused a message because of its time, this is
   *  the relay's time. */
  now() { return this.#clock() + this.#correction; }

  /** Whether the relay is known to show directed messages to their parties only. */
  get isPrivate() { return Boolean(this.#rule?.audience); }

  /** The relay's document: who it is, its limits, and who may read. */
  about({ signal } = {}) { return this.#exchange(DOCUMENT, { signal }); }

  /** Whether the relay accepts messages, and the version of the protocol. */
  health({ signal } = {}) { return this.#exchange('/health', { signal }); }

  /** One page of events, which are not verified. query has the parameters of GET /events. */
  async page(query = {}, { signal, take } = {}) {
    const seconds = Math.min(Number(query.timeout ?? 30) || 0, 60);
    const how = { signal, take, wait: seconds * 1000, presence: true };
    const answer = await this.#read(withQuery('/events', query), how);
    const { events, cursor } = answer;
    if (!Array.isArray(events) || typeof cursor !== 'string' || cursor === '' || cursor.length > 1024) {
      throw invalidAnswer(200);
    }
    return answer;
  }

  /** Signs and posts a message and returns the receipt. to, thread and ttl (seconds) are optional, and so are home, re
   *  and continues, members of meta. With seal, only the recipient can read the payload. signed gets the message before
   *  it is sent. If there is no answer, it sends the same bytes again, which is safe. If the relay says that our clock
   *  is wrong, it corrects the clock and signs once more, with the same id. */
  async post(type, payload, draft = {}, { signed, ...options } = {}) {
    const { to, thread, ttl = protocol.draftTtl, seal: sealed = false, home, re, continues } = draft;
    must(this.me, 'INVALID_REQUEST', 'posting needs an identity: new Client(url, { me })');
    const id = newId('msg', this.now());
    const make = async () => {
      const e = {
        version: '1.0', id, ts: new Date(this.now()).toISOString(), type, payload,
        meta: { ttl, ...(home && { home }), ...(re && { re }), ...(continues && { continues }) },
        sender: { ...this.#sender, id: this.me.did },
        ...(to && { recipient: { id: to } }), ...(thread && { thread: { id: thread } }),
      };
      const message = checkEnvelope(await sign(sealed ? await seal(e) : e, this.me));
      await signed?.(message);
      return message;
    };
    try { return await this.postEnvelope(await make(), options); } catch (err) {
      const unknown = err instanceof UnknownOutcome, refusal = unknown ? err.cause : err;
      if (refusal?.code !== 'STALE_TIMESTAMP' || !this.#correct(millis(refusal.details.now))) throw err;
      const again = await make();
      return this.postEnvelope(again, options).catch((failed) => {
        const settled = failed.code !== 'DUPLICATE_ID' && protocol.settles.includes(failed.code);
        throw unknown && failed instanceof Refused && !settled ? new UnknownOutcome(again, failed) : failed;
      });
    }
  }

  /** Posts a signed message, and repeats it until the relay has answered, eight times at most. Returns the receipt.
   *  Without retryLimited it does not repeat a message that the relay refuses with 429. failed gets the error of each
   *  attempt that is repeated. */
  async postEnvelope(e, { signal, retryLimited = true, failed } = {}) {
    const body = canonicalize(e);
    let maybeStored = false; // by an earlier attempt
    for (let attempt = 1; ; attempt++) {
      try { return await this.#postOnce(e, body, signal); } catch (err) {
        if (!(err instanceof RelayError)) throw err;
        const harmless = err.noEffect, waits = !err.waitsTooLong && (retryLimited || err.status !== 429);
        if (!err.retryable || !waits || attempt === POST_ATTEMPTS) {
          throw harmless && !(maybeStored && !protocol.settles.includes(err.code)) ? err : new UnknownOutcome(e, err);
        }
        maybeStored ||= !harmless;
        this.log('posting a message failed, will be retried', err);
        failed?.(err);
        await pause(backoff(attempt - 1, Math.min(err.retryAfter, POST_PATIENCE)), signal);
      }
    }
  }

  async #postOnce(e, body, signal) {
    if (this.#requireParties) await this.#reads(signal);
    await this.assureHome(e, { signal });
    return checkReceipt(await this.#exchange('/events', { body, signal }), e);
  }

  /** Posts signed messages, whose canonical forms are the lines, in one request. Returns results, each a receipt or
   *  a RelayError. If the relay stopped before the last line, stopped is the RelayError that says why. With proofs,
   *  it asks for proofs in the receipts. */
  async postBulk(messages, lines, { signal, proofs } = {}) {
    if (this.#requireParties) await this.#reads(signal);
    const body = concat(...lines.flatMap((line) => [line, [10]])), path = proofs ? `${BULK}?proofs=true` : BULK;
    const { results, stopped } = await this.#exchange(path, { body, signal, wait: BULK_TIME });
    const count = Array.isArray(results) ? results.length : Infinity;
    if (count > lines.length || count < lines.length && !stopped) throw invalidAnswer(200);
    const found = results.map((result, i) =>
      result?.error === undefined ? checkReceipt(result, messages[i]) : bulkError(result));
    return { results: found, stopped: stopped && bulkError(stopped) };
  }

  // Sets the clock to the relay's time, unless that differs by more than a day.
  #correct(relayNow) {
    const correction = relayNow - this.#clock();
    if (!(Math.abs(correction) <= DAY)) return false;
    this.#correction = correction;
    return true;
  }

  /** A thread and its envelopes, which are not verified. client selects one of several threads with this id. */
  thread(id, client, { signal, take } = {}) {
    return this.#read(withQuery(`/threads/${encodeURIComponent(id)}`, { client }), { signal, take });
  }

  /** A page of the directory. query may have intent, q, online, limit and cursor. The envelopes are not verified. */
  agents(query = {}, { signal, take } = {}) { return this.#read(withQuery('/agents', query), { signal, take }); }

  /** Any answer of the relay to a GET of path, which has the query too. The answer of /proofs is a text. wait is how
   *  long the relay may hold the request, in milliseconds. */
  get(path, { signal, wait = 0, take } = {}) { return this.#read(path, { signal, wait, take }); }

  // With presence, a read of an open relay is signed too, which shows there that we are online. take gets the elements
  // of the answer's list one by one.
  async #read(path, { signal, wait = 0, take, presence = false }) {
    for (let attempt = 1; ; attempt++) {
      const { audience = '', presence: shown } = await this.#reads(signal);
      const present = presence && !audience && Math.abs(this.#clock() - this.#absentSince) >= FIVE_MINUTES;
      const token = await this.#token(audience || present && shown, path);
      try { return await this.#exchange(path, { token, signal, wait, take }); } catch (err) {
        if (!(err instanceof RelayError)) throw err;
        const again = token && !audience ? this.#hide(err) : this.#recovers(err, token);
        if (!again) throw err;
        if (attempt === READ_ATTEMPTS) throw Object.assign(err, { retryable: true });
      }
    }
  }

  // Whether a read of an open relay may be repeated without a token, because a proxy may have refused the token.
  #hide(err) {
    if (!TOKEN_REFUSALS.includes(err.status)) return false;
    this.#absentSince = this.#clock();
    if (err.challenged) this.forgetRule();
    return true;
  }

  // Whether a read that was refused may be signed again (§8 "Readers"). It corrects the clock for tokens, once in five
  // minutes, by at most 15 minutes forward and a day back. Otherwise an impostor could ask for a token that is good
  // later.
  #recovers(err, token) {
    if (!this.me || err.status !== 401 || !err.challenged) return false;
    if (!token) this.forgetRule(); // the relay shows messages only to their parties by now
    if (!token || err.details.reason === 'used') return true;
    if (err.details.reason !== 'time') return false;
    const now = this.#clock(), difference = millis(err.details.now) - now;
    if (!(difference <= QUARTER && difference >= -DAY)) return false;
    if (now - this.#tokensCorrectedAt < FIVE_MINUTES) {
      err.retryable = true;
      return false;
    }
    this.#tokensCorrection = difference;
    this.#tokensCorrectedAt = now;
    return true;
  }

  /** Makes the next read ask the relay again who may read, unless the relay has said already that only parties may. */
  forgetRule() { if (this.#rule) this.#rule.at = -Infinity; }

  #token(audience, path) {
    if (!this.me || !audience) return undefined;
    const { pathname, search } = new URL(this.url + path), time = new Date(this.#clock() + this.#tokensCorrection);
    return readToken(audience, pathname + search, this.me, time.toISOString());
  }

  /** A signed call to a gateway of the relay, and its answer. url begins with the gateway's URL. The relay's document
   *  has that URL and the origin. body is a JSON value; without it, this is a GET by default. status is the status of a
   *  successful answer. sister says that the gateway is the hub or the registry of jobs, whose answers have other forms
   *  (GATEWAYS §4), and may also have the status 201 or 202. */
  async call(origin, url, { body, method = body === undefined ? 'GET' : 'POST', status = 200, sister, signal } = {}) {
    must(origin === (this.#own ?? new URL(this.url).origin) && url.startsWith(`${origin}/`), 'UNAUTHORIZED',
      'this relay must be reached at the url in its document');
    if (this.#requireParties) await this.#reads(signal);
    const { pathname, search } = new URL(url), success = sister ? [200, 201, 202] : [status];
    const bytes = body === undefined ? undefined : canonicalize(body), at = { method, target: pathname + search };
    const bounds = { limit: MAX_OTHER, success, sister };
    for (let attempt = 1; ; attempt++) {
      const ts = new Date(this.#clock() + this.#tokensCorrection).toISOString();
      const token = await callToken(origin, { ...at, body: bytes ?? new Uint8Array() }, this.me, ts);
      try { return await this.#exchange(pathname, { body: bytes, method, token, signal, url, bounds }); }
      catch (err) {
        if (!(err instanceof RelayError) || attempt === READ_ATTEMPTS || !this.#recovers(err, token)) throw err;
      }
    }
  }

  /** Continues at the address that the relay's document names, if that is another loopback address. Returns whether
   *  it does. */
  moveTo(claimed) {
    if (this.#own || !isOtherLoopback(claimed, this.url)) return false;
    this.url = claimed + new URL(this.url).pathname.replace(/\/+$/, '');
    return true;
  }

  // The rule for reads. A relay that was private once gets signed reads from then on, whatever it says later.
  async #reads(signal) {
    if (!this.me && !this.#requireParties) return {};
    const known = this.#rule, fresh = known && Math.abs(this.#clock() - known.at) < FIVE_MINUTES;
    if (!fresh && !(known?.audience && !this.#requireParties)) this.#rule = await this.#findRule(signal);
    return this.#rule;
  }

  // The origin for tokens is the one that we use, not another one that the relay claims to have.
  async #findRule(signal) {
    const at = this.#clock(), about = await this.about({ signal }).catch((err) => this.#withoutDocument(err, signal));
    const { url, reads } = about, { origin, pathname } = new URL(this.url);
    const unauthorized = (ok, what) => must(ok, 'UNAUTHORIZED', what);
    if (reads === undefined || reads === 'open') {
      unauthorized(!this.#requireParties, 'the relay shows messages to everybody, or does not say who can read them; ' +
        'nothing was sent to it, because private reads are required');
      return { at, audience: '', presence: reads && url === (this.#own ?? origin) ? url : '' };
    }
    unauthorized(reads === 'parties', 'the relay has a rule for reads that this client does not know');
    if (this.#own) {
      unauthorized(url === this.#own, 'the relay says that it has another address than the one that was given');
    } else if (this.moveTo(url)) { // another process may listen there, so ask again
      return this.#findRule(signal);
    } else unauthorized(url === origin, 'this relay must be reached at the url in its document');
    return { at, audience: url };
  }

  // A relay without a document is open if it answers an unsigned read of our own inbox.
  async #withoutDocument(err, signal) {
    if (err.status === 404 && this.me && !this.isPrivate) {
      const inbox = { recipient: this.me.did, since: new Date(this.now()).toISOString(), timeout: 0 };
      err = await this.#exchange(withQuery('/events', inbox), { signal }).then(() => undefined, (failed) => failed);
      if (!err) return {};
    }
    throw err instanceof RelayError ? Object.assign(err, { retryable: true }) : err;
  }

  async #exchange(path, { body, method = body ? 'POST' : 'GET', token, signal, wait = 0, take = takeAll,
    url = this.url + path, bounds = boundsOf(path, body) }) {
    const headers = { accept: 'application/json' };
    if (body) headers['content-type'] = 'application/json';
    if (token) headers.authorization = `Agora ${token}`;
    signal?.throwIfAborted();
    const ours = new AbortController(), abort = () => ours.abort(signal.reason);
    const timer = setTimeout(() => ours.abort(), EXCHANGE + wait);
    signal?.addEventListener('abort', abort);
    try {
      const response = await this.#fetch(url, {
        method, headers, body, signal: ours.signal,
        redirect: 'error', credentials: 'omit', cache: 'no-store', referrerPolicy: 'no-referrer',
      });
      return await readAnswer(response, bounds, take, this);
    } catch (err) {
      signal?.throwIfAborted();
      if (err instanceof Refused || err instanceof Unavailable) throw err;
      const code = err?.cause?.code ?? err?.code, seconds = (EXCHANGE + wait) / 1000;
      const why = ours.signal.aborted ? `: it has not answered within ${seconds} s` : causeOf(code, this.url);
      throw new RelayError('NO_ANSWER', `${this.url} cannot be reached, or its answer was cut off${why}`,
        { notSent: NO_CONNECTION.includes(code), cause: err });
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener('abort', abort);
    }
  }
}

const isHTTP = (url) => url.startsWith('http:');

// What the codes of errors of fetch mean. Bun has other names for some.
const CAUSES = [
  [/^(ECONNREFUSED|ConnectionRefused)$/, 'no relay answers there; is it running?'],
  [/^(ENOTFOUND|EAI_AGAIN|FailedToOpenSocket)$/, 'the name of the host has no address; check the URL, and this ' +
    "machine's network"],
  [/^(EHOSTUNREACH|ENETUNREACH)$/, 'there is no way to this host; check the network'],
  [/TIMEOUT|^ETIMEDOUT$/, 'it does not answer in time; check the URL, and whether a firewall is between'],
  [/^(ERR_SSL_WRONG_VERSION_NUMBER|ERR_SSL_PACKET_LENGTH_TOO_LONG|EPROTO)$/, 'what answers there does not speak ' +
    'https; if this is a relay without TLS, write http://'],
  [/^HPE_/, 'what answers there does not speak http; if the relay has TLS, write https://'],
  [/CERT|SELF_SIGNED|UNABLE_TO_VERIFY/, 'its certificate is not valid here'],
  [/^(ECONNRESET|EPIPE|UND_ERR_SOCKET|ConnectionClosed)$/, 'the connection was closed before the end of the answer; ' +
    'if it always is, check whether the URL needs https:// or http://'],
];

// What to add to a message about an error of fetch with this code of the system. Browsers have no codes: they tell a
// page nothing about an answer that it may not read.
function causeOf(code, url) {
  if (typeof code === 'string') {
    const [, words] = CAUSES.find(([pattern]) => pattern.test(code)) ?? [];
    return ` (${printable(code)}${words ? `: ${words}` : ''})`;
  }
  const { origin } = globalThis.location ?? {};
  if (typeof origin !== 'string' || origin === new URL(url).origin) return '';
  if (origin.startsWith('https:') && isHTTP(url)) return '. A page that came over https needs a relay with https';
  return `. If the relay is running, the browser may not let this page read its answers (CORS). The operator of the ` +
    `relay allows it with: agora serve --cors-origin ${origin === 'null' ? "'*'" : origin}`;
}

// A server of https may answer a request over http with 400.
const invalidAnswer = (status, url = '') => new RelayError('INVALID_ANSWER',
  `the answer, with status ${status}, is not that of an Agora relay; check its URL` +
  (status === 400 && isHTTP(url) ? ', which may need https://' : ''), { status, retryable: isTemporary(status) });
const tooLong = (status) => new RelayError('INVALID_ANSWER', 'the answer is too long',
  { status, retryable: false, details: { reason: 'too_long' } });
// The error of one message of a bulk request. A code that is not known here is no reason to try again.
function bulkError({ error, message, details, retryAfter: seconds }) {
  if (typeof error !== 'string' || error === '') throw invalidAnswer(200);
  const status = Object.hasOwn(protocol.status, error) ? protocol.status[error] : 400;
  const delay = typeof seconds === 'number' ? Math.min(Math.max(seconds, 0) * 1000, DAY) : 0;
  return new RelayError(printable(error), typeof message === 'string' ? printable(message) : '',
    { status, retryable: isTemporary(status), details: isObject(details) ? details : {}, retryAfter: delay });
}

// The receipt of a message. It ends with the ttl at the latest, because no relay keeps a message longer.
function checkReceipt(receipt, e) {
  if (receipt?.id !== e.id) throw invalidAnswer(200);
  const end = millis(e.ts) + Math.min((e.meta?.ttl ?? protocol.defaultTtl) * 1000, MAX_KEPT);
  if (!(millis(receipt.expiresAt) <= end)) receipt.expiresAt = new Date(end).toISOString();
  return receipt;
}

const isTemporary = (status) => status < 300 || status === 408 || status === 429 || status >= 500;


// What the answer to a request may cost: its bytes; the place of the list whose elements are read one by one, and their
// number. isText says that it is a text, not JSON.
function boundsOf(path, body) {
  const [name, query = ''] = path.split('?');
  if (name === BULK) return { limit: MAX_BULK };
  if (body || name === '/health') return { limit: MAX_SHORT };
  if (name === DOCUMENT) return { limit: MAX_DOCUMENT };
  if (name === '/proofs') return { limit: MAX_SHORT, isText: true };
  if (name === '/agents') return { limit: MAX_AGENTS, list: ['agents'], most: MAX_ROWS };
  if (name.startsWith('/agents/')) return { limit: MAX_AGENTS, list: ['agent', 'manifests'], most: MAX_ROWS };
  if (name.startsWith('/threads/')) return { limit: MAX_THREAD, list: ['events'], most: MAX_THREAD_EVENTS };
  if (/^\/log\/[^/]+\/checkpoint$/.test(name)) return { limit: MAX_SHORT, isText: true };
  if (name !== '/events') return { limit: MAX_OTHER };
  const asked = new URLSearchParams(query), limit = Number(asked.get('limit') ?? DEFAULT_LIMIT) || DEFAULT_LIMIT;
  return asked.has('since') ? { limit: MAX_SINCE, list: ['events'], most: MAX_SINCE_EVENTS }
    : { limit: MAX_POLL, list: ['events'], most: limit };
}

// Splits the text of a JSON object, as it arrives, into the elements of one of its lists and the rest, which has an
// empty list then. So no answer is parsed whole: a parsed value may take many times as much memory as its text. The
// splitter only looks at brackets, commas and strings. All that it returns is parsed strictly later.
class Splitter {
  #path; // the names of the members that lead to the list; empty: there is none
  #most; // elements
  #count = 0;
  #rest = [];
  #restSize = 0;
  #element = '';
  #isOversize = false;
  #level = 0; // of nesting
  #entered = 0; // how many members of the path the present object is in
  #name = ''; // the last string outside of the list; it may be the name of a member
  #inList = false;
  #inString = false;
  #isEscaped = false;

  constructor(path = [], most = 0) {
    this.#path = path;
    this.#most = most;
  }

  /** The texts of the elements that end in this part of the text; undefined for one of more than MAX_ELEMENT. */
  feed(text) {
    const done = [];
    let from = 0; // what comes before was kept already
    for (let i = 0; i < text.length; i++) {
      const c = text.charCodeAt(i);
      if (this.#inString) {
        if (this.#isEscaped) this.#isEscaped = false;
        else if (c === 0x5c) this.#isEscaped = true; // a backslash
        else if (c === 0x22) {
          this.#inString = false;
          if (this.#isAtNames) this.#name += text.slice(from, from = this.#keep(text, from, i + 1));
        }
      } else if (c === 0x22) {
        this.#inString = true;
        if (this.#isAtNames) from = this.#keep(text, from, i);
        this.#name = '';
      } else if (c === 0x7b || c === 0x5b) { // { [
        if (this.#open(c === 0x5b)) from = this.#keep(text, from, i + 1, true);
      } else if (c === 0x7d || c === 0x5d) { // } ]
        this.#level--;
        this.#entered = Math.min(this.#entered, Math.max(this.#level - 1, 0));
        if (this.#inList && this.#level === this.#path.length) {
          from = this.#keep(text, from, i);
          this.#end(done, true);
          this.#inList = false;
        }
      } else if (c === 0x2c && this.#inList && this.#level === this.#path.length + 1) { // a comma
        this.#keep(text, from, i);
        from = i + 1;
        this.#end(done);
      }
    }
    if (this.#inString && this.#isAtNames) this.#name += text.slice(from);
    this.#keep(text, from, text.length);
    return done;
  }

  // Whether a string here may be the name of a member on the path.
  get #isAtNames() { return !this.#inList && this.#level <= this.#path.length && this.#path.length > 0; }

  // Enters an object or a list. Returns whether it is the list.
  #open(isList) {
    const level = this.#level++, isNext = level > 0 && this.#entered === level - 1 && !this.#inList &&
      level <= this.#path.length && this.#name === JSON.stringify(this.#path[level - 1]);
    if (!isNext) return false;
    if (level < this.#path.length) this.#entered = level;
    else this.#inList = isList;
    return this.#inList;
  }

  // Keeps a part of the text: as the rest, or as part of an element. Returns its end.
  #keep(text, from, end, isRest = !this.#inList) {
    if (isRest) {
      this.#rest.push(text.slice(from, end));
      this.#restSize += end - from;
    } else if (this.#element.length + end - from <= MAX_ELEMENT) this.#element += text.slice(from, end);
    else {
      this.#element = '';
      this.#isOversize = true;
    }
    return end;
  }

  #end(done, isLast = false) {
    const text = this.#element, isEmpty = isLast && this.#count === 0 && !this.#isOversize && text.trim() === '';
    if (!isEmpty) {
      this.#count++;
      done.push(this.#isOversize ? undefined : text);
    }
    this.#element = '';
    this.#isOversize = false;
  }

  get tooMany() { return this.#count > this.#most; }
  get restSize() { return this.#restSize; }
  get rest() { return this.#rest.join(''); }
}

// Reads an answer within the bounds: a refusal has at most MAX_SHORT. For each element of the list, as soon as it has
// arrived, take gets a function that reads the element. take returns what the list gets in its place; undefined:
// nothing.
async function readAnswer(response, bounds, take, relay) {
  const { limit, list, most, isText } = bounds;
  const { status, ok } = response, splitter = new Splitter(ok ? list : [], most), kept = [];
  const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });
  const maxBytes = ok ? limit : MAX_SHORT, maxRest = list ? MAX_REST : maxBytes, isRow = list?.[0] === 'agents';
  const feed = async (text) => {
    const elements = splitter.feed(text);
    if (splitter.tooMany || splitter.restSize > maxRest) throw tooLong(status);
    for (const element of elements) {
      const value = await take((find) => readElement(element, isRow, find), status);
      if (value !== undefined) kept.push(value);
    }
  };
  await eachChunk(response, maxBytes, (chunk) => feed(decode(decoder, status, chunk)));
  await feed(decode(decoder, status));
  if (isText && status === 200) return splitter.rest;
  return checkAnswer(response, splitter.rest, bounds, kept, relay);
}

function decode(decoder, status, bytes) {
  try { return decoder.decode(bytes, { stream: bytes !== undefined }); } catch { throw invalidAnswer(status); }
}

// Passes the parts of the body on. It ends the connection if there are more than limit bytes, or use throws.
async function eachChunk(response, limit, use) {
  const reader = response.body?.getReader();
  try {
    for (let size = 0; reader;) {
      const { done, value } = await reader.read();
      if (done) break;
      size += value.length;
      if (size > limit) throw tooLong(response.status);
      await use(value);
    }
  } catch (err) {
    await reader.cancel().catch(() => {});
    throw err;
  }
}

// The answer of a relay, whose list has the kept elements. Throws RelayError for every other answer than a success.
function checkAnswer({ status, headers }, text, { list, success = [200], sister }, kept, relay) {
  let answer;
  const isSuccess = success.includes(status);
  try { answer = parseText(text, STRICT); } catch { throw invalidAnswer(status, relay.url); }
  if (sister && isObject(answer)) {
    if (isSuccess) return answer;
    answer = sisterRefusal(answer, status);
  }
  if (answer?.ok === true && isSuccess) {
    const holder = list?.slice(0, -1).reduce((value, name) => isObject(value) ? value[name] : undefined, answer);
    if (isObject(holder) && Array.isArray(holder[list.at(-1)])) holder[list.at(-1)] = kept;
    return answer;
  }
  if (typeof answer?.error !== 'string' || isSuccess) throw invalidAnswer(status);
  const { error, message, details } = answer;
  throw new RelayError(printable(error), typeof message === 'string' ? printable(message) : '', {
    status, retryable: isTemporary(status) && details?.maxOffers === undefined, // a full thread stays full
    details: isObject(details) ? details : {}, retryAfter: retryAfter(headers.get('retry-after') ?? '', relay.now()),
    challenged: /^Agora\b/i.test(headers.get('www-authenticate') ?? '') || sister && status === 401,
  });
}

// Puts a refusal of the hub or of the registry of jobs into the form of a relay's refusal. The hub has its details in
// the member error. If there is no code, the code is the number of the status.
function sisterRefusal(answer, status) {
  const { error, detail, error_code: named } = answer;
  if (isObject(error)) return { error: String(error.code ?? status), message: error.message, details: error };
  const message = Array.isArray(detail) ? detail.map((each) => each?.msg).join('; ') : detail;
  return { error: String(named ?? status), message, details: answer };
}

// The value of an element of an answer. Throws Refused if the element breaks the rules of §1. With find, which returns
// the envelope in it, that is checked too. The text was measured and scanned, so it needs no canonical form for that.
// An envelope in a row of the directory is one level deeper.
function readElement(text, isRow, find) {
  const isSmall = text !== undefined && (!find || utf8(text).length <= MAX_EVENT);
  must(isSmall, 'PAYLOAD_TOO_LARGE', `a part of the answer is too large; an event has at most ${MAX_EVENT} bytes`);
  const element = parseText(text, { depth: MAX_DEPTH + (isRow ? 1 : 0), costly: MAX_COSTLY });
  const e = find?.(element);
  if (find) checkParts(e);
  return { element, e };
}

// Reads without verification take an answer whole or not at all.
function takeAll(read, status) {
  try { return read().element; } catch { throw invalidAnswer(status); }
}

/** A text of others that is safe to print: at most max characters, and \uXXXX in place of characters that control a
 *  terminal, are invisible, or change the direction of writing, except those in keep. */
export const printable = (text, { max = MAX_TEXT, keep = '' } = {}) => text.slice(0, max).replace(UNSAFE, (found) =>
  keep.includes(found) ? found :
    Array.from({ length: found.length }, (_, i) => `\\u${found.charCodeAt(i).toString(16).padStart(4, '0')}`).join(''));

// The header Retry-After in milliseconds: it has seconds, or a date.
const retryAfter = (text, now) => Math.max(/^\d+$/.test(text) ? Number(text) * 1000 : Date.parse(text) - now, 0) || 0;

// The milliseconds since 1970 of an RFC 3339 date-time; NaN if it is none.
function millis(text) {
  try { return Number(instant(text) / 1_000_000n); } catch { return NaN; }
}

// Whether claimed is the origin of another loopback address, with the same scheme and port. It must be an address,
// because a name such as localhost may stand for two addresses.
function isOtherLoopback(claimed, url) {
  if (typeof claimed !== 'string' || !URL.canParse(claimed)) return false;
  const theirs = new URL(claimed), ours = new URL(url), address = /^(127\.\d+\.\d+\.\d+|\[::1\])$/;
  return theirs.origin === claimed && address.test(theirs.hostname) && theirs.hostname !== ours.hostname &&
    (address.test(ours.hostname) || ours.hostname === 'localhost') &&
    theirs.protocol === ours.protocol && theirs.port === ours.port;
}
