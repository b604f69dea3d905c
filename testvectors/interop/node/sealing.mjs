// Sealed payloads for Node (docs/SEALING.md): HPKE (RFC 9180) in base mode, with node:crypto. You may copy this file.
import { createCipheriv, createDecipheriv, createHash, createHmac, createPrivateKey, createPublicKey, diffieHellman, randomBytes } from 'node:crypto';
import { canonicalize, depth, keyOf, parse, Refused, threadOf, verify } from './agora.mjs';

const CLEAR = { REQUEST: ['intent'], RESULT: ['status'], ERROR: ['code'] };
const clearNames = (type) => ['request_id', ...(CLEAR[type] ?? [])];
const STAND_IN = 'sealed'; // replaces the message of a sealed ERROR
const UNIT = 256, MAX_DEPTH = 64;

/** Whether the payload of e is sealed. */
export const isSealed = (e) => e.type !== 'MANIFEST' && Object.hasOwn(e.payload, 'sealed');

/** Opens e, which is sealed to the identity me, and returns the payload. All failures throw the same error. */
export function open(e, me) {
  try { return opened(e, me); } catch { throw new Refused('INVALID_REQUEST', 'the sealed payload cannot be opened'); }
}

function opened(e, me) {
  const must = (ok) => { if (!ok) throw new Error(); };
  must(isSealed(e) && e.recipient?.id === me.did);
  verify(e);
  const { sealed, ...clear } = e.payload;
  if (e.type === 'ERROR') {
    must(clear.message === STAND_IN);
    delete clear.message;
  }
  must(Object.keys(clear).every((name) => clearNames(e.type).includes(name)));
  must(typeof sealed === 'string' && sealed.startsWith('v1.'));
  const raw = Buffer.from(sealed.slice(3), 'base64url'); // ignores invalid characters
  must(raw.toString('base64url') === sealed.slice(3) && raw.length >= 32 + 16);

  const enc = raw.subarray(0, 32), tag = raw.subarray(-16), mine = privateOf(me.seed);
  const { key, nonce } = schedule(diffieHellman({ privateKey: mine, publicKey: publicKey(enc) }), enc, rawOf(mine), place(e));
  const decipher = createDecipheriv('chacha20-poly1305', key, nonce, { authTagLength: 16 }).setAuthTag(tag);
  const plaintext = Buffer.concat([decipher.update(raw.subarray(32, -16)), decipher.final()]);

  must(depth(plaintext) <= MAX_DEPTH);
  const secret = parse(plaintext);
  must(typeof secret === 'object' && secret !== null && !Array.isArray(secret));
  must(!Object.keys(secret).some((name) => name === 'sealed' || clearNames(e.type).includes(name)));
  must(e.type !== 'ERROR' || typeof secret.message === 'string' && secret.message !== '');
  return { ...clear, ...secret };
}

/** Returns e with its payload sealed to its recipient, to be signed. Only tests pass an ephemeral key, 32 bytes. */
export function seal(e, ephemeral = randomBytes(32)) {
  const names = clearNames(e.type), clear = {}, secret = {};
  for (const [name, value] of Object.entries(e.payload)) (names.includes(name) ? clear : secret)[name] = value;
  if (e.type === 'ERROR') clear.message = STAND_IN;
  const text = canonicalize(secret), plaintext = Buffer.concat([text, Buffer.alloc(-text.length & UNIT - 1, ' ')]);

  const mine = privateKey(ephemeral), enc = rawOf(mine), theirs = convert(keyOf(e.recipient.id));
  const { key, nonce } = schedule(diffieHellman({ privateKey: mine, publicKey: publicKey(theirs) }), enc, theirs, place(e));
  const cipher = createCipheriv('chacha20-poly1305', key, nonce, { authTagLength: 16 });
  const sealed = Buffer.concat([enc, cipher.update(plaintext), cipher.final(), cipher.getAuthTag()]);
  return { ...e, payload: { ...clear, sealed: 'v1.' + sealed.toString('base64url') } };
}

/** The info of the sealing: the members of e that the ciphertext is bound to, in RFC 8785 form. */
export const place = (e) => canonicalize({
  sender: e.sender.id, recipient: e.recipient.id, id: e.id, type: e.type, thread: threadOf(e),
  ...(Object.hasOwn(e.payload, 'request_id') && { request_id: e.payload.request_id }),
});

// --- Keys: conversion of Ed25519 keys to X25519 keys

const P = 2n ** 255n - 19n;
const number = (bytes) => BigInt('0x' + Buffer.from(bytes).reverse().toString('hex'));

/** The X25519 public key, 32 bytes, of an Ed25519 public key that keyOf has returned: u = (1+y)/(1-y). */
export function convert(key) {
  const y = number(key) & (1n << 255n) - 1n; // remove the sign of x
  const u = (1n + y) * power((P + 1n - y) % P, P - 2n) % P;
  return Buffer.from(u.toString(16).padStart(64, '0'), 'hex').reverse();
}

function power(base, exponent) {
  let result = 1n;
  for (; exponent > 0n; exponent >>= 1n, base = base * base % P) if (exponent & 1n) result = result * base % P;
  return result;
}

/** The X25519 private key, 32 bytes, of an Ed25519 seed. */
export function scalarOf(seed) {
  const scalar = createHash('sha512').update(seed).digest().subarray(0, 32);
  scalar[0] &= 248;
  scalar[31] = scalar[31] & 127 | 64;
  return scalar;
}

const der = (prefix, key) => ({ key: Buffer.concat([Buffer.from(prefix, 'hex'), key]), format: 'der' });
const privateKey = (raw) => createPrivateKey({ ...der('302e020100300506032b656e04220420', raw), type: 'pkcs8' });
const publicKey = (raw) => createPublicKey({ ...der('302a300506032b656e032100', raw), type: 'spki' });
const privateOf = (seed) => privateKey(scalarOf(seed));
const rawOf = (key) => createPublicKey(key).export({ format: 'der', type: 'spki' }).subarray(-32);

// --- HPKE: DHKEM(X25519, HKDF-SHA256), HKDF-SHA256, ChaCha20-Poly1305, base mode, the first message

const KEM = Buffer.from('KEM\x00\x20', 'latin1'), HPKE = Buffer.from('HPKE\x00\x20\x00\x01\x00\x03', 'latin1');
const hmac = (key, ...parts) => parts.reduce((h, part) => h.update(part), createHmac('sha256', key)).digest();
const extract = (suite, salt, label, input) => hmac(salt, 'HPKE-v1', suite, label, input);
// One block of HKDF-Expand is enough for all lengths in this file.
const expand = (suite, prk, label, info, length) =>
  hmac(prk, Buffer.from([0, length]), 'HPKE-v1', suite, label, info, Buffer.from([1])).subarray(0, length);

function schedule(dh, enc, recipient, info) { // dh is not all zeros: OpenSSL refuses that
  const shared = expand(KEM, extract(KEM, '', 'eae_prk', dh), 'shared_secret', Buffer.concat([enc, recipient]), 32);
  const context = Buffer.concat([Buffer.from([0]), extract(HPKE, '', 'psk_id_hash', ''), extract(HPKE, '', 'info_hash', info)]);
  const secret = extract(HPKE, shared, 'secret', '');
  return { shared, key: expand(HPKE, secret, 'key', context, 32), nonce: expand(HPKE, secret, 'base_nonce', context, 12) };
}
