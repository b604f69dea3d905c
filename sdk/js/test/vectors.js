// Runs this project's test vectors (testvectors/*.json) with agora.js, in Node and in browsers.
import {
  canonicalize, checkRead, covered, decode64, identity, instant, isSealed, keyOf, open, parse, place, readEnvelope,
  readToken, Refused, seal, sign, verify, x25519Private, x25519Public,
} from '../agora.js';
import { contentHash, verifyChain } from '../chain.js';
import { verifyEvidence, verifyProof } from '../proof.js';
import { checkFresh, checkMeant, expiry, Ledger, REQUIRED } from '../../../testvectors/interop/node/rules.mjs';

const bytes = (base64) => Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
const hex = (b) => Array.from(b, (byte) => byte.toString(16).padStart(2, '0')).join('');
const fromHex = (text) => Uint8Array.from(text.match(/../g), (pair) => parseInt(pair, 16));
const text = (b) => new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(b);

function equal(have, want, what) {
  if (have !== want) throw new Error(`${what} is ${String(have).slice(0, 300)}, not ${String(want).slice(0, 300)}`);
}

// Each function runs one vector. It throws Refused if the implementation refuses the input. Otherwise it returns a
// function that compares the results with the vector.
const runners = {
  async 'didkey.json'(v) {
    const key = keyOf(v.did);
    const me = v.seedHex && await identity(fromHex(v.seedHex));
    return () => {
      equal(hex(key), v.publicKeyHex, 'the key');
      if (me) equal(me.did, v.did, 'the DID of the seed');
    };
  },
  async 'canonicalize.json'(v) {
    const form = canonicalize(parse(bytes(v.input)));
    return () => equal(text(form), text(bytes(v.output)), 'the canonical form');
  },
  async 'sign.json'(v) {
    const envelope = parse(bytes(v.input)), signed = await sign(envelope, await identity(fromHex(v.seedHex)));
    const hash = await crypto.subtle.digest('SHA-256', canonicalize(signed));
    return () => {
      equal(text(covered(envelope)), text(bytes(v.signed)), 'what is signed');
      equal(signed.sig, v.sig, 'the signature');
      equal(text(canonicalize(signed)), text(bytes(v.envelope)), 'the envelope');
      equal(hex(new Uint8Array(hash)), v.sha256, 'the hash');
    };
  },
  async 'verify.json'(v) {
    const e = await receive(bytes(v.body), v.now);
    return () => {
      equal(e.id, v.id, 'the id');
      equal(e.sender.id, v.sender, 'the sender');
      equal(text(canonicalize(e)), text(bytes(v.canonical)), 'the canonical form');
    };
  },
  async 'window.json'(v) {
    const ts = instant(v.ts);
    checkFresh(ts, v.ttl, instant(v.now));
    return () => equal(expiry(ts, v.ttl), instant(v.expiresAt), 'the expiry');
  },
  async 'reads.json'(v) {
    const did = await checkRead(v.token, v, instant(v.now));
    const { sig, ...t } = parse(decode64(v.token)), me = await identity(fromHex(v.seedHex));
    const again = parse(decode64(await readToken(t.aud, t.target, me, t.ts, t.nonce)));
    return () => {
      equal(did, v.did, 'the reader');
      equal(text(canonicalize(t)), text(bytes(v.signed)), 'what is signed');
      equal(again.sig, sig, 'the signature');
    };
  },
  async 'threads.json'(v) {
    const ledger = new Ledger();
    let count = 0;
    const post = (m, now) => ledger.take({
      id: `m${++count}`, type: m.type, sender: { id: m.by }, thread: { id: 't' },
      ...(m.to && { recipient: { id: m.to } }),
      payload: {
        ...(m.requestId !== 'none' && { request_id: m.requestId || 'r' }),
        ...(m.payload !== 'incomplete' && Object.fromEntries((REQUIRED[m.type] ?? []).map((name) => [name, 'x']))),
      },
    }, now);
    for (const m of v.history) post(m, 0n);
    const { state } = post(v.message, BigInt(v.elapsed ?? 0) * 1_000_000_000n);
    return () => equal(state, v.state_after, 'the state');
  },
  'sealing.json': (v) => v.envelope ? openVector(v) : convertVector(v),
  async 'log.json'(v) {
    if (v.evidence) {
      const found = await verifyEvidence(bytes(v.evidence));
      return () => equal(`${found.relay} ${found.kind}`, `${v.relay} ${v.kind}`, 'what the evidence shows');
    }
    const message = v.message && parse(bytes(v.message));
    const p = await verifyProof(v.proof ?? '', { message, relay: v.relay, witnesses: v.witnesses });
    return () => {
      equal(p.index, v.index ?? 0, 'the index');
      equal(p.size, v.size, 'the size');
      equal(p.leaf.text, v.leaf, 'the leaf');
      equal(p.cosigned.map(({ name, at }) => `${name} ${at}`).join(), (v.cosigned ?? []).join(), 'who has cosigned');
    };
  },
  async 'relays.json'(v) {
    if (v.evidence) {
      const found = await verifyEvidence(bytes(v.evidence));
      return () => equal(`${found.client} ${found.kind}`, `${v.client} accepts`, 'what the evidence shows');
    }
    const messages = parse(bytes(v.chain)), { home, ...deal } = await verifyChain(messages);
    const found = { ...deal, home: home.did, hashes: await Promise.all(messages.map(contentHash)) };
    return () => {
      const { name, chain, expect, accepted = false, ...want } = v;
      equal(text(canonicalize(found)), text(canonicalize({ ...want, accepted })), 'the deal');
    };
  },
  async 'conversations.json'(v) {
    const ledger = new Ledger();
    for (const [i, step] of v.steps.entries()) {
      await check(`step ${i + 1}`, step, async () => {
        const answer = ledger.take(await receive(bytes(step.body), step.now), instant(step.now));
        return () => {
          equal(answer.duplicate, step.duplicate ?? false, 'duplicate');
          if (step.state) equal(answer.state, step.state, 'the state');
          if (step.client) equal(answer.client, step.client, 'the client');
        };
      });
    }
  },
};

async function convertVector(v) {
  const key = x25519Public(keyOf(v.did)), secret = v.seedHex && await x25519Private(fromHex(v.seedHex));
  return () => {
    equal(hex(key), v.publicHex, 'the public key');
    if (secret) equal(hex(secret), v.privateHex, 'the private key');
  };
}

async function openVector(v) {
  const e = readEnvelope(bytes(v.envelope)), payload = await open(e, await identity(fromHex(v.seedHex)));
  // If the plaintext has standard padding, sealing the payload again must give the same text.
  const standard = v.plaintext && bytes(v.plaintext).length % 256 === 0;
  const again = standard && await seal({ ...e, payload }, fromHex(v.ephemeralHex));
  return () => {
    equal(isSealed(e), true, 'isSealed');
    equal(text(canonicalize(payload)), text(bytes(v.payload)), 'the payload');
    equal(text(place(e)), text(bytes(v.info)), 'the info');
    if (again) equal(text(canonicalize(again.payload)), text(canonicalize(e.payload)), 'the payload, sealed again');
  };
}

async function receive(body, now) {
  const e = readEnvelope(body);
  checkMeant(e, 'https://relay.example', instant(now)); // the origin of the relay in the vectors
  await verify(e);
  return e;
}

// check compares the outcome of act with a vector or a step. A conversation has outcomes only for its steps.
async function check(name, v, act) {
  let agrees, refused;
  try { agrees = await act(); } catch (err) {
    if (!(err instanceof Refused)) throw err;
    refused = err;
  }
  if (refused && v.expect === 'accept') throw new Error(`${name}: refused with ${refused.message}`);
  if (!refused && v.expect === 'reject') throw new Error(`${name}: accepted, though: ${v.reason}`);
  if (refused && v.code) equal(refused.code, v.code, `${name}: the code`);
  if (refused && v.detail) equal(refused.details.reason, v.detail, `${name}: details.reason`);
  if (!refused) agrees?.();
}

/** The names of the vector files. */
export const files = Object.keys(runners);

/** Runs a vector file, given as text or as the parsed object. Returns how many vectors passed, and a text for each that
 *  failed. */
export async function run(name, json) {
  const { vectors } = typeof json === 'string' ? JSON.parse(json) : json, failures = [];
  for (const v of vectors) {
    try { await check(v.name, v, () => runners[name](v)); } catch (err) { failures.push(`${v.name}: ${err.message}`); }
  }
  if (vectors.length === 0) failures.push('the file has no vectors');
  return { passed: Math.max(vectors.length - failures.length, 0), failures };
}

/** Runs all vector files. load returns the text of a file, given its name. The results are by name. */
export async function runVectors(load) {
  const results = {};
  for (const name of files) results[name] = await run(name, await load(name));
  return results;
}
