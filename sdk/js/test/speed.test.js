// Measures how fast the module is. The limits are far below what any machine reaches, so only a mistake breaks them.
import assert from 'node:assert/strict';
import test from 'node:test';
import { checkEnvelope, chacha20poly1305, open, seal, sign, verify } from '../agora.js';
import { alice, bob, message } from './helpers.js';

// The milliseconds of one act. It first runs once, to compile the code.
async function time(count, act) {
  await act();
  const began = performance.now();
  for (let i = 0; i < count; i++) await act();
  return (performance.now() - began) / count;
}

test('messages are verified', async (t) => {
  const e = await message(), ms = await time(500, () => verify(checkEnvelope(e)));
  t.diagnostic(`${Math.round(1000 / ms)} messages a second, one after the other`);
  assert.ok(ms < 200, `${ms} ms`);
});

test('a sealed payload of 64 KiB is opened', async (t) => {
  const payload = { request_id: 'r', intent: 'i', params: 'x'.repeat(64 << 10) };
  const e = await sign(await seal(await message({ recipient: { id: bob.did }, payload })), alice);
  const ms = await time(10, () => open(e, bob));
  t.diagnostic(`${ms.toFixed(1)} ms`);
  assert.ok(ms < 5000, `${ms} ms`);
});

test('ChaCha20-Poly1305', async (t) => {
  const key = new Uint8Array(32), nonce = new Uint8Array(12), text = new Uint8Array(1 << 20);
  const ms = await time(3, () => chacha20poly1305.seal(key, nonce, text));
  t.diagnostic(`${(1000 / ms).toFixed(1)} MiB a second`);
  assert.ok(ms < 20_000, `${ms} ms`);
});
