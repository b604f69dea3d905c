// Proofs and evidence of transparency logs (LOG). Everything here is checked offline.
import { checkEnvelope, decode64, didOf, instant, keyOf, parse, Refused, sha256, verifies, verify } from './agora.js';
import { checkAccepts, contentHash, hex } from './chain.js';

const HEADER = 'c2sp.org/tlog-proof@v1', MARK = '— ';
const NOTE = 1, COSIGNATURE = 4; // types of signatures
const MAX_PROOF = 64 << 10, MAX_EVIDENCE = 1 << 20, MAX_PATH = 63, MAX_SIGNATURES = 100, MAX_NUMBER = 2n ** 63n - 1n;
const MAX_SIZE = BigInt(Number.MAX_SAFE_INTEGER); // of a log
const MINUTE = 60_000;
const MAX_SKEW = 5 * MINUTE; // between the ts of a message and its arrival
const MAX_DATING = 20 * MINUTE; // how much earlier the time of a leaf may be than the time of a leaf before it

const utf8 = (text) => new TextEncoder().encode(text);
const same = (a, b) => hex(a) === hex(b);
const join = (...parts) => Uint8Array.from(parts.flatMap((part) => [...part]));
const node = (left, right) => sha256(join([1], left, right));
const base64 = (bytes) => btoa(String.fromCharCode(...bytes));

function must(ok, message) {
  if (!ok) throw new Refused('INVALID_PROOF', message);
}

/** Checks the proof text: that a leaf is in the log of a relay, that the relay has signed this, and that signatures by
 *  the witnesses, if there are any, are valid. With message, the proof must be for this message, and by this relay. The
 *  caller must verify the message first. Throws Refused with INVALID_PROOF. */
export async function verifyProof(text, { message, relay, witnesses = [] } = {}) {
  const proof = readProof(text), { checkpoint, index } = proof;
  const known = await Promise.all(witnesses.map(readWitness));
  const { cosigned, unchecked } = await checkSignatures(checkpoint, known);
  const hash = await sha256(join([0], proof.extra));
  must(index < checkpoint.size, 'the log has no leaf with this index');
  const path = await climb(hash, index, checkpoint, proof.path);
  must(path !== undefined, 'the path does not lead from the leaf to the root');
  const leaf = readLeaf(proof.extra, index === 0n);
  const found = {
    relay: checkpoint.did, epoch: checkpoint.epoch, index: Number(index), size: Number(checkpoint.size), leaf,
    hash: base64(hash), path, cosigned, unchecked,
  };
  if (message !== undefined) await checkMessage(found, message, relay);
  return found;
}

/** Checks the text of a checkpoint: that a relay has signed it. Throws Refused with INVALID_PROOF. */
export async function verifyCheckpoint(text) {
  const checkpoint = readCheckpoint(text), { origin, did, epoch, size, root } = checkpoint;
  await checkSignatures(checkpoint, []);
  return { origin, relay: did, epoch, size: Number(size), root: base64(root) };
}

async function checkMessage({ relay: by, leaf }, message, relay) {
  must(by === relay, 'the proof is by another relay');
  must(leaf.event !== undefined, 'the proof is that of the start of the log, not of a message');
  must(leaf.event === await contentHash(message), 'the proof is that of another message');
  const late = BigInt(timeOf(leaf.received)) * 1_000_000n - instant(message.ts);
  const limit = BigInt(MAX_SKEW) * 1_000_000n;
  must(late <= limit && late >= -limit, 'the proof has another time than the message');
}

// --- Texts

function lineReader(rest) {
  const next = () => {
    const at = rest.indexOf('\n'), line = at < 0 ? '' : rest.slice(0, at);
    rest = at < 0 ? '' : rest.slice(at + 1);
    return line;
  };
  const after = (beginning) => {
    const line = next();
    return line.startsWith(beginning) ? line.slice(beginning.length) : '';
  };
  return { next, after, rest: () => rest };
}

// The bytes of standard base64 with padding, in its one spelling; not empty.
function bytesOf(text) {
  let raw = '';
  try { raw = atob(text); } catch { /* it stays empty */ }
  must(raw !== '' && btoa(raw) === text, 'a text is not base64 with padding');
  return Uint8Array.from(raw, (c) => c.charCodeAt(0));
}

function hashOf(text) {
  const bytes = bytesOf(text);
  must(bytes.length === 32, 'a hash does not have 32 bytes');
  return bytes;
}

function numberOf(text) {
  must(/^(0|[1-9]\d{0,18})$/.test(text) && BigInt(text) <= MAX_NUMBER, 'a text is not a number');
  return BigInt(text);
}

const TIME = /^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$/;

function timeOf(text) {
  must(TIME.test(text), 'a time has not the form with milliseconds and Z');
  return Number(instant(text) / 1_000_000n);
}

function readProof(text) {
  must(typeof text === 'string' && utf8(text).length <= MAX_PROOF, 'the proof is too large');
  const lines = lineReader(text);
  must(lines.next() === HEADER, 'the first line of a proof names its format');
  const extra = bytesOf(lines.after('extra ')), index = numberOf(lines.after('index ')), path = [];
  for (let line = lines.next(); line !== ''; line = lines.next()) {
    must(path.push(hashOf(line)) <= MAX_PATH, 'the path is too long');
  }
  return { extra, index, path, checkpoint: readCheckpoint(lines.rest()) };
}

function readOrigin(text) {
  const [, did, epoch] = /^([^/]*)\/([0-9a-f]{8})$/.exec(text) ?? [];
  must(did !== undefined, 'the origin of a log is DID/EPOCH');
  keyOf(did);
  return { origin: text, did, epoch };
}

function readCheckpoint(text) {
  must(typeof text === 'string' && utf8(text).length <= MAX_PROOF, 'the checkpoint is too large');
  const lines = lineReader(text);
  const { origin, did, epoch } = readOrigin(lines.next());
  const size = numberOf(lines.next()), root = hashOf(lines.next());
  must(size > 0n && size <= MAX_SIZE, 'a log has from 1 to 2^53 - 1 leaves');
  const body = text.slice(0, text.length - lines.rest().length);
  must(lines.rest().startsWith('\n'), 'an empty line must follow the root of a checkpoint');
  lines.next();
  const signatures = [];
  while (lines.rest() !== '') {
    const [, name, encoded] = /^([^ ]*) (.*)$/.exec(lines.after(MARK)) ?? [];
    must(name && !/[\p{White_Space}\p{Cc}\p{Cs}+]/u.test(name), 'a line of the checkpoint is not a signature');
    const raw = bytesOf(encoded);
    must(raw.length > 4, 'a signature of the checkpoint has no bytes');
    must(signatures.push({ name, hash: hex(raw.subarray(0, 4)), bytes: raw.subarray(4) }) <= MAX_SIGNATURES,
      'the checkpoint has too many signatures');
  }
  must(signatures.length > 0, 'the checkpoint has no signature');
  return { origin, did, epoch, size, root, body, signatures };
}

const keyHash = async (name, type, key) => hex((await sha256(join(utf8(`${name}\n`), [type], key))).subarray(0, 4));

// A verifier key of a witness: NAME+HASH+KEY (C2SP tlog-cosignature).
async function readWitness(text) {
  const [, name, hash, encoded] = /^([^+]+)\+([0-9a-f]{8})\+(.*)$/.exec(text) ?? [];
  must(name, 'the key of a witness has the form NAME+HASH+KEY');
  const raw = bytesOf(encoded), key = raw.subarray(1);
  must(raw.length === 33 && raw[0] === COSIGNATURE, 'the key of a witness has the type 4');
  must(hash === await keyHash(name, COSIGNATURE, key), 'the hash in the key of a witness is wrong');
  return { name, hash, did: didOf(key) };
}

const COSIGNATURE_BYTES = 72; // the time, and a signature of Ed25519
const timeIn = (bytes) => new DataView(bytes.slice().buffer).getBigUint64(0);

// Every signature by the relay and by one of the witnesses must be valid. Returns which witnesses have signed, and who
// else has signed, with the times that these signatures state.
async function checkSignatures({ origin, did, body, signatures }, witnesses) {
  const known = await keyHash(origin, NOTE, keyOf(did)), cosigned = [], unchecked = [];
  let signed = false;
  for (const { name, hash, bytes } of signatures) {
    const by = witnesses.filter((one) => one.name === name && one.hash === hash);
    const isCosignature = bytes.length === COSIGNATURE_BYTES;
    if (name === origin && hash === known) {
      must(await verifies(bytes, utf8(body), did), 'the signature of the relay is wrong');
      signed = true;
    } else if (by.length === 0) unchecked.push({ name, at: isCosignature ? Number(timeIn(bytes)) : undefined });
    for (const w of by) {
      const at = isCosignature ? timeIn(bytes) : MAX_NUMBER + 1n;
      const message = utf8(`cosignature/v1\ntime ${at}\n${body}`);
      const ok = at <= MAX_NUMBER && await verifies(bytes.subarray(8), message, w.did);
      must(ok, 'the signature of a witness is wrong');
      cosigned.push({ name, at: Number(at) });
    }
  }
  must(signed, 'the relay has not signed the checkpoint');
  return { cosigned, unchecked };
}

function readLeaf(extra, isStart) {
  let text;
  try { text = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(extra); } catch { text = ''; }
  return isStart ? readStart(text) : readMessageLeaf(text);
}

const LEAF = /^agora-leaf\/1\nsalt ([\w-]{22})\nevent ([0-9a-f]{64})\nreceived (.{24})\nrequest (-|[0-9a-f]{64})\n$/;

function readMessageLeaf(text) {
  const [, salt, event, received, request] = LEAF.exec(text) ?? [];
  must(salt && decode64(salt)?.length === 16 && !/^0{64}$/.test(request), 'the leaf has not the form of agora-leaf/1');
  timeOf(received);
  return { text, salt, event, received, request: request === '-' ? undefined : request };
}

/** Reads the text of leaf 0: when the log began, and the log before it. Throws Refused with INVALID_PROOF. */
export function readStart(text) {
  const [, began, line] = /^agora-log\/1\nbegan (.{24})\nprevious (.*)\n$/.exec(text) ?? [];
  must(began, 'the leaf has not the form of agora-log/1');
  timeOf(began);
  if (line === '-') return { text, began };
  const parts = line.split(' '), previous = { origin: parts[0], size: parts[1], root: parts[2] };
  must(parts.length === 3, 'the leaf has not the form of agora-log/1');
  readOrigin(previous.origin);
  must(numberOf(previous.size) > 0n && hashOf(previous.root), 'the log before has at least one leaf');
  return { text, began, previous };
}

// --- Trees (RFC 9162 §2.1.3.2 and §2.1.4.2)

// The steps from the leaf to the root; undefined: the path does not lead there.
async function climb(hash, index, { size, root }, path) {
  const steps = [];
  let r = hash, fn = index, sn = size - 1n;
  for (const p of path) {
    if (sn === 0n) return undefined;
    const isLeft = (fn & 1n) === 1n || fn === sn;
    if (isLeft) {
      r = await node(p, r);
      while (!(fn & 1n) && fn !== 0n) [fn, sn] = [fn >> 1n, sn >> 1n];
    } else r = await node(r, p);
    [fn, sn] = [fn >> 1n, sn >> 1n];
    steps.push({ hash: base64(p), isLeft, parent: base64(r) });
  }
  return sn === 0n && same(r, root) ? steps : undefined;
}

// Whether the tree of the checkpoint continues the tree with this root, which is smaller.
async function continues({ size, root }, first, firstRoot, path) {
  const all = (first & first - 1n) === 0n ? [firstRoot, ...path] : path;
  let fn = first - 1n, sn = size - 1n;
  while (fn & 1n) [fn, sn] = [fn >> 1n, sn >> 1n];
  let [fr, ...rest] = all, sr = fr;
  if (path.length === 0) return false;
  for (const c of rest) {
    if (sn === 0n) return false;
    if (fn & 1n || fn === sn) {
      [fr, sr] = [await node(c, fr), await node(c, sr)];
      while (!(fn & 1n) && fn !== 0n) [fn, sn] = [fn >> 1n, sn >> 1n];
    } else sr = await node(sr, c);
    [fn, sn] = [fn >> 1n, sn >> 1n];
  }
  return sn === 0n && same(fr, firstRoot) && same(sr, root);
}

// --- Evidence (LOG §6, RELAYS R-9)

const MEMBERS = {
  fork: ['checkpoints', 'consistency', 'root'], index: ['proofs'], twice: ['proofs'], steps: ['proofs', 'events'],
  time: ['proofs'], chain: ['proofs'], accepts: ['events'],
};

/** Checks evidence. Returns its kind, and the DID of the relay or of the client that it is against. Throws Refused with
 *  INVALID_PROOF if it shows nothing. */
export async function verifyEvidence(evidence) {
  const bytes = typeof evidence === 'string' ? utf8(evidence) : evidence;
  must(bytes.length <= MAX_EVIDENCE, 'the evidence is too large');
  const e = parse(bytes), members = typeof e?.kind === 'string' && Object.hasOwn(MEMBERS, e.kind) && MEMBERS[e.kind];
  must(members && e.typ === 'agora-evidence/1', 'the text is no evidence of a known kind');
  must(Object.keys(e).every((name) => ['typ', 'kind', ...members].includes(name)), 'evidence has other members');
  if (e.kind === 'accepts') {
    must(Array.isArray(e.events) && e.events.length === 6, 'evidence of accepts has six events');
    return { client: await checkAccepts(e.events), kind: e.kind };
  }
  const isPair = (v) => Array.isArray(v) && v.length === 2 && v.every((text) => typeof text === 'string');
  must(isPair(e[members[0]]), 'evidence has two proofs, or two checkpoints');
  if (e.kind === 'fork') return fork(e);
  const proofs = await Promise.all(e.proofs.map((text) => verifyProof(text)));
  const all = proofs.map((p) => ({ ...p, origin: `${p.relay}/${p.epoch}` }));
  must(all[0].relay === all[1].relay, 'the proofs are by two relays');
  must(await CONTRADICTS[e.kind](all, e), 'the proofs do not contradict each other');
  return { relay: all[0].relay, kind: e.kind };
}

async function fork(e) {
  const all = e.checkpoints.map(readCheckpoint).sort((a, b) => a.size < b.size ? -1 : 1);
  for (const c of all) await checkSignatures(c, []);
  const [a, b] = all;
  must(a.origin === b.origin, 'the checkpoints are of two logs');
  let { root } = b;
  if (a.size === b.size) {
    must(e.root === undefined && e.consistency === undefined, 'checkpoints of one size have no root');
  } else {
    must(typeof e.root === 'string' && Array.isArray(e.consistency), 'checkpoints of two sizes need a root');
    root = hashOf(e.root);
    const isText = e.consistency.every((line) => typeof line === 'string');
    must(isText && await continues(b, a.size, root, e.consistency.map(hashOf)), 'the consistency proof is wrong');
  }
  must(!same(a.root, root), 'the checkpoints agree');
  return { relay: a.did, kind: 'fork' };
}

const isMessage = ({ leaf }) => leaf.event !== undefined;
// Two leaves of messages in one log, in their order; undefined: they are not.
const ordered = (all) => all[0].origin === all[1].origin && all[0].index !== all[1].index && all.every(isMessage)
  ? all.toSorted((a, b) => a.index - b.index) : undefined;

const CONTRADICTS = {
  index: ([a, b]) => a.origin === b.origin && a.index === b.index && a.hash !== b.hash,
  twice(all) {
    const [a, b] = ordered(all) ?? [];
    return a !== undefined && a.leaf.event === b.leaf.event;
  },
  time(all) {
    const [a, b] = ordered(all) ?? [];
    return a !== undefined && timeOf(a.leaf.received) - timeOf(b.leaf.received) > MAX_DATING;
  },
  chain([a, b]) {
    if (a.origin === b.origin) return false;
    const starts = !isMessage(a) && !isMessage(b), line = ({ leaf }) => leaf.text.split('\n')[2];
    const continued = (start, log) => start.leaf.previous?.origin === log.origin &&
      BigInt(log.index) >= BigInt(start.leaf.previous.size);
    return starts && line(a) === line(b) || continued(a, b) || continued(b, a);
  },
  async steps(all, { events }) {
    const [a, b] = all;
    must(all.every(isMessage) && a.leaf.request !== undefined && a.leaf.request === b.leaf.request,
      'the proofs are not of messages that answer one REQUEST');
    must(Array.isArray(events) && events.length === 2, 'evidence of steps has two events');
    const messages = new Map();
    for (const [i, p] of all.entries()) {
      await verify(checkEnvelope(events[i], { maxBytes: MAX_EVIDENCE }));
      must(p.leaf.event === await contentHash(events[i]), 'an event is not that of its proof');
      messages.set(p, events[i]);
    }
    const inOrder = ordered(all);
    if (inOrder) return cannotFollow(...inOrder.map((p) => messages.get(p)));
    const [{ type }, other] = events;
    return a.origin !== b.origin && type === other.type && ['ACCEPT', 'RESULT'].includes(type) &&
      a.leaf.event !== b.leaf.event;
  },
};

// Whether no relay that follows the protocol accepts second after first in one thread.
function cannotFollow(first, second) {
  if (first.type === 'CANCEL') return true;
  if (first.type === 'RESULT') return ['OFFER', 'ACCEPT', 'RESULT', 'CANCEL'].includes(second.type);
  if (first.type !== 'ACCEPT') return false;
  const other = first.recipient !== undefined && second.sender.id !== first.recipient.id;
  return ['OFFER', 'ACCEPT'].includes(second.type) || second.type === 'RESULT' && other;
}
