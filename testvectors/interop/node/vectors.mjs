// Runs this project's test vectors.
//   node vectors.mjs FOLDER
// Prints "file passed failed" for each file. The failures are printed to standard error.
import assert from 'node:assert/strict';
import { createHash } from 'node:crypto';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { canonicalize, checkRead, covered, identity, instant, keyOf, parse, readEnvelope, readToken, Refused, sign, verify } from './agora.mjs';
import { checkFresh, checkMeant, expiry, Ledger } from './rules.mjs';
import { convert, open, place, scalarOf, seal } from './sealing.mjs';

const bytes = (base64) => Buffer.from(base64, 'base64');

// Each function runs one vector. It throws Refused if the implementation refuses the input. Otherwise it returns a function
// that compares the results with the vector.
const run = {
  'didkey.json'(v) {
    const key = Buffer.from(keyOf(v.did)).toString('hex');
    if (v.seedHex) assert.equal(identity(Buffer.from(v.seedHex, 'hex')).did, v.did);
    return () => assert.equal(key, v.publicKeyHex);
  },
  'canonicalize.json'(v) {
    const text = canonicalize(parse(bytes(v.input)));
    return () => assert.equal(text.toString(), bytes(v.output).toString());
  },
  'sign.json'(v) {
    const envelope = parse(bytes(v.input));
    const signed = sign(envelope, identity(Buffer.from(v.seedHex, 'hex')));
    return () => {
      assert.equal(covered(envelope).toString(), bytes(v.signed).toString());
      assert.equal(signed.sig, v.sig);
      assert.equal(canonicalize(signed).toString(), bytes(v.envelope).toString());
      assert.equal(createHash('sha256').update(canonicalize(signed)).digest('hex'), v.sha256);
    };
  },
  'verify.json'(v) {
    const e = receive(bytes(v.body), v.now);
    return () => {
      assert.deepEqual([e.id, e.sender.id], [v.id, v.sender]);
      assert.equal(canonicalize(e).toString(), bytes(v.canonical).toString());
    };
  },
  'window.json'(v) {
    const ts = instant(v.ts);
    checkFresh(ts, v.ttl, instant(v.now));
    return () => assert.equal(expiry(ts, v.ttl), instant(v.expiresAt));
  },
  'reads.json'(v) {
    const did = checkRead(v.token, v, instant(v.now));
    return () => {
      assert.equal(did, v.did);
      const me = identity(Buffer.from(v.seedHex, 'hex')), { sig, ...t } = parse(Buffer.from(v.token, 'base64url'));
      assert.equal(canonicalize(t).toString(), bytes(v.signed).toString());
      assert.equal(parse(Buffer.from(readToken(t.aud, t.target, me, t.ts, t.nonce), 'base64url')).sig, sig);
    };
  },
  'threads.json'(v) {
    const ledger = new Ledger();
    let count = 0;
    const post = (m, now) => ledger.take({
      id: `m${++count}`, type: m.type, sender: { id: m.by }, thread: { id: 't' }, ...(m.to && { recipient: { id: m.to } }),
      payload: {
        ...(m.requestId !== 'none' && { request_id: m.requestId || 'r' }),
        ...(m.payload !== 'incomplete' && { intent: 'i', status: 's', code: 'c', message: 'm' }),
      },
    }, now);
    for (const m of v.history) post(m, 0n);
    const { state } = post(v.message, BigInt(v.elapsed ?? 0) * 1_000_000_000n);
    return () => assert.equal(state, v.state_after);
  },
  'sealing.json'(v) {
    if (!v.envelope) {
      const hex = Buffer.from(convert(keyOf(v.did))).toString('hex');
      if (v.seedHex) assert.equal(scalarOf(Buffer.from(v.seedHex, 'hex')).toString('hex'), v.privateHex);
      return () => assert.equal(hex, v.publicHex);
    }
    const e = readEnvelope(bytes(v.envelope)), payload = open(e, identity(Buffer.from(v.seedHex, 'hex')));
    return () => {
      assert.equal(canonicalize(payload).toString(), bytes(v.payload).toString());
      assert.equal(place(e).toString(), bytes(v.info).toString());
      // If the plaintext has standard padding, sealing the payload again must give the same text.
      const again = seal({ ...e, payload }, Buffer.from(v.ephemeralHex, 'hex')).payload;
      if (bytes(v.plaintext).length % 256 === 0) assert.deepEqual(again, e.payload);
    };
  },
  'conversations.json'(v) {
    const ledger = new Ledger();
    for (const [i, step] of v.steps.entries()) {
      check(`step ${i + 1}`, step, () => {
        const answer = ledger.take(receive(bytes(step.body), step.now), instant(step.now));
        return () => {
          assert.equal(answer.duplicate, step.duplicate ?? false);
          if (step.state) assert.equal(answer.state, step.state);
          if (step.client) assert.equal(answer.client, step.client);
        };
      });
    }
  },
};

function receive(body, now) {
  const e = readEnvelope(body);
  checkMeant(e, 'https://relay.example', instant(now)); // the origin of the relay in the vectors
  verify(e);
  return e;
}

// check compares the outcome of act with a vector or a step. A conversation has outcomes only for its steps.
function check(name, v, act) {
  let agrees, refused;
  try { agrees = act(); } catch (err) {
    if (!(err instanceof Refused)) throw err;
    refused = err;
  }
  if (refused && v.expect === 'accept') throw new Error(`${name}: refused with ${refused.message}`);
  if (!refused && v.expect === 'reject') throw new Error(`${name}: accepted, though: ${v.reason}`);
  if (refused && refused.code !== (v.code ?? refused.code)) {
    throw new Error(`${name}: refused with ${refused.message}, not ${v.code}: ${v.reason}`);
  }
  if (!refused) agrees?.();
}

const folder = process.argv[2];
const names = readdirSync(folder).filter((name) => name.endsWith('.json'));
assert.deepEqual(names.sort(), Object.keys(run).sort(), 'the vector files are not those known here');
for (const name of names) {
  const { vectors } = parse(readFileSync(join(folder, name)));
  assert.ok(vectors.length > 0, `${name} is empty`);
  let failed = 0;
  for (const v of vectors) {
    try { check(v.name, v, () => run[name](v)); } catch (err) {
      failed++;
      console.error(`${name}: ${v.name}: ${err.message}`);
    }
  }
  if (failed > 0) process.exitCode = 1;
  console.log(name, vectors.length - failed, failed);
}
