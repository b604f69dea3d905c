// Jobs that move between three real relays, one of which is killed (RELAYS §8, §9).
import assert from 'node:assert/strict';
import { join } from 'node:path';
import test from 'node:test';
import { identity, Network } from '../node.js';
import { serving, until } from './fakerelay.js';
import { BINARY, folder, needsRelay, run } from './real.js';

// Starts a relay that can be killed.
async function start(t) {
  const data = join(await folder(t), 'data');
  const relay = run(t, BINARY, ['serve', '--addr', '127.0.0.1:0', '--data', data, '--log-level', 'warn']);
  return { url: await relay.line('listening on '), kill: relay.kill };
}

const STEPS = ['before the OFFER', 'after the OFFER', 'after the ACCEPT', 'during the work', 'before the RESULT'];

test('R-15, R-16, R-18: whenever the home is killed, there is one RESULT, and work is done once', async (t) => {
  if (!needsRelay(t)) return;
  const others = await Promise.all([start(t), start(t)]), homes = await Promise.all(STEPS.map(() => start(t)));
  await Promise.all(STEPS.map(async (step, i) => {
    const urls = [homes[i], ...others].map(({ url }) => url), me = await identity(), moves = [];
    const agent = new Network(urls, { me, silence: 1, log() {} });
    const client = new Network(urls, { me: await identity(), silence: 1, offerWait: 1, log() {},
      moved: (move) => moves.push(move) });
    let worked = 0;
    const killed = () => homes[i].kill(), at = (name) => step === name;
    serving(t, agent, 'echo', { manifest: { name: 'Echo' },
      quote: async () => { if (at('before the OFFER')) await killed(); return 1; },
      work: async ({ params }) => {
        worked++;
        if (at('during the work')) await killed();
        await new Promise((resolve) => { setTimeout(resolve, 50); });
        if (at('before the RESULT')) await killed();
        return params;
      } });
    await until(() => agent.clients.every(({ known }) => known), step);
    const listed = async () => (await client.agent(me.did)).manifests[0].payload.relays.length === 3;
    while (!await listed().catch(() => false)) await new Promise((resolve) => { setTimeout(resolve, 20); });
    const began = performance.now(), call = await client.request('echo', step, { to: me.did });
    assert.equal(call.home.url, homes[i].url);
    const offer = await call.best('first');
    if (at('after the OFFER')) await killed();
    await call.accept(call.requestId === offer.requestId ? offer : await call.best('first'));
    if (at('after the ACCEPT')) await killed();
    const { output, envelope } = await call.result();
    const isHere = step === 'after the ACCEPT' && moves.length === 0; // the RESULT was faster
    // On a busy machine another relay may be silent for a second, too.
    assert.deepEqual([output, worked, isHere || moves.length >= 1], [step, 1, true], step);
    assert.ok(isHere || others.some(({ url }) => url === envelope.meta.home.url), step);
    assert.ok(performance.now() - began < 35_000, step);
  }));
});
