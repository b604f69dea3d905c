// Agents that answer A2A callers, at a real relay (docs/A2A.md).
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'node:test';
import { promisify } from 'node:util';
import { AgentError, Client, identity, Network, pause, saveKey } from '../node.js';
import { until } from './fakerelay.js';
import { BINARY, folder, needsRelay, startRelay } from './real.js';

const agora = promisify(execFile);

// A relay, and an agent whose endpoint everybody may call. serve runs it with a handler until stop is called.
async function endpoint(t) {
  const url = await startRelay(t, '--a2a'), dir = await folder(t), me = await identity();
  const key = join(dir, 'bob.key'), manifest = join(dir, 'bob.json');
  await saveKey(key, me);
  await writeFile(manifest, JSON.stringify({ id: 'x', name: 'Bob', intents: [{ id: 'a2a.message' }] }));
  const flags = ['--key', key, '--relay', url, '--manifest', manifest, '--public'];
  const { stdout } = await agora(BINARY, ['a2a', 'publish', ...flags]);
  const base = JSON.parse(stdout).url.replace(/\/$/, '');
  let posts = 0;
  const watched = (lose = () => false) => async (to, options) => {
    const response = await fetch(to, options);
    if (!String(to).endsWith('/events') || !String(to).includes('/work/')) return response;
    if (!lose(++posts)) return response;
    await response.body.cancel();
    throw new TypeError('the answer was lost');
  };
  const serve = (handler, { lose, network, ...options } = {}) => {
    const stop = new AbortController(), how = { me, fetch: watched(lose), log() {} };
    const client = network ? new Network([url], how) : new Client(url, how);
    const ended = client.serveA2A(handler, { ...options, signal: stop.signal });
    const end = async () => { stop.abort(); await ended; };
    t.after(end);
    return { client, end };
  };
  const post = async (path, body) => {
    const response = await fetch(base + path, { method: 'POST', body: JSON.stringify(body),
      headers: { 'content-type': 'application/json' } });
    assert.equal(response.status, 200, `${path}: ${response.statusText}`);
    return response;
  };
  const say = async (text, { taskId, returnImmediately } = {}) => {
    const message = { messageId: '1', role: 'ROLE_USER', parts: [{ text }], taskId };
    return (await (await post('/message:send', { message, configuration: { returnImmediately } })).json()).task;
  };
  const task = async (id) => (await fetch(`${base}/tasks/${id}`)).json();
  // Throws unless the agent has signed what the task has.
  const verified = (id) => agora(BINARY, ['a2a', 'verify', base, '--task', id]);
  return { url, me, posts: () => posts, serve, say, task, post, verified };
}

// Waits until a condition at the relay holds.
async function eventually(holds) {
  for (let n = 0; !await holds(); n++) {
    if (n === 600) throw new Error(`waited in vain for ${holds}`);
    await pause(20);
  }
}

const texts = ({ artifacts = [] }) => artifacts.map(({ parts }) => parts.map(({ text }) => text).join(''));

test('A-16, A-33, A-43: it sends progress while it works, and signs the turn', async (t) => {
  if (!needsRelay(t)) return;
  const { serve, post, task, posts, verified } = await endpoint(t);
  let seen;
  serve(async (turn) => {
    assert.deepEqual([turn.turn, turn.caller.kind, turn.history, turn.text], [1, 'anonymous', [], 'hello']);
    await turn.update('counting');
    const out = turn.artifact({ name: 'count' });
    await out.write('0');
    await seen; // the caller has the first chunk before the turn ends
    for (let i = 1; i < 100; i++) await out.write(`${i % 10}`);
    await out.close();
    await turn.artifact({ metadata: { n: 1.5 } }).close({ data: { a: [1] } });
    return turn.done('done');
  });
  let saw;
  seen = new Promise((resolve) => { saw = resolve; });
  const message = { messageId: '1', role: 'ROLE_USER', parts: [{ text: 'hello' }] }, began = performance.now();
  const events = [], { body } = await post('/message:stream', { message });
  let text = '';
  for await (const chunk of body.pipeThrough(new TextDecoderStream())) {
    const lines = (text += chunk).split('\n');
    text = lines.pop();
    for (const line of lines) if (line.startsWith('data: ')) events.push(JSON.parse(line.slice(6)));
    if (events.some(({ artifactUpdate }) => artifactUpdate)) saw();
  }
  const chunks = events.map((e) => e.artifactUpdate).filter((u) => u?.artifact.artifactId === '1.1');
  const [first] = chunks;
  assert.deepEqual([first.append ?? false, first.artifact.name, chunks.at(-1).lastChunk], [false, 'count', true]);
  assert.ok(chunks.slice(1).every(({ append }) => append) && chunks.length < 10, `${chunks.length} chunks`);
  const most = 1 + (performance.now() - began) / 100; // a request every 100 ms
  assert.ok(posts() >= 2 && posts() <= most, `${posts()} requests`);
  const ended = await task(events[0].task.id);
  assert.equal(ended.status.state, 'TASK_STATE_COMPLETED');
  assert.deepEqual([texts(ended)[0], ended.artifacts[1].parts[0].data, ended.status.message.parts],
    ['0123456789'.repeat(10), { a: [1] }, [{ text: 'done' }]]);
  await verified(ended.id);
});

for (const network of [false, true]) {
  test(`A-19, A-43: a question ends the turn, and the answer opens turn 2; a network: ${network}`, async (t) => {
    if (!needsRelay(t)) return;
    const { serve, say, verified } = await endpoint(t);
    serve(async (turn) => {
      await turn.artifact().close(`part ${turn.turn}`);
      if (turn.turn === 1) return turn.ask('Which colour?');
      assert.deepEqual(turn.history.map(({ parts }) => parts[0].text), ['paint', 'Which colour?']);
      return undefined;
    }, { network });
    const asked = await say('paint');
    assert.deepEqual([asked.status.state, asked.status.message.parts[0].text],
      ['TASK_STATE_INPUT_REQUIRED', 'Which colour?']);
    await verified(asked.id);
    const ended = await say('blue', { taskId: asked.id });
    assert.deepEqual([ended.status.state, texts(ended)], ['TASK_STATE_COMPLETED', ['part 1', 'part 2']]);
    await verified(asked.id);
  });
}

test('A-34, A-43: a repeated run replaces what the last one has sent, also if an answer was lost', async (t) => {
  if (!needsRelay(t)) return;
  const { serve, say, task, verified } = await endpoint(t);
  const first = serve(async (turn, { signal }) => {
    await turn.artifact().write('old');
    await turn.artifact().write('left');
    await new Promise((resolve) => { signal.addEventListener('abort', resolve); });
    signal.throwIfAborted();
  });
  const { id } = await say('hello', { returnImmediately: true });
  await eventually(async () => texts(await task(id)).length === 2);
  await first.end();
  serve(async (turn) => {
    const out = turn.artifact();
    for (const word of ['new', 'er']) {
      await out.write(word);
      await pause(120);
    }
  }, { lose: (n) => n === 2 });
  await eventually(async () => (await task(id)).status.state === 'TASK_STATE_COMPLETED');
  assert.deepEqual(texts(await task(id)), ['newer', 'left']);
  await verified(id);
});

test('A-18, A-22, A-35, A-39, A-41: other ends, a cancel, and large content', async (t) => {
  if (!needsRelay(t)) return;
  const { serve, say, task, post, verified } = await endpoint(t);
  let cancelled, late;
  serve(async (turn, { signal }) => {
    switch (turn.text) {
      case 'reject': return { state: 'TASK_STATE_REJECTED', message: turn.reply('no') };
      case 'text': return 'only a text';
      case 'invalid': throw new AgentError('INVALID_REQUEST', 'why');
      case 'state': return { state: 'TASK_STATE_WORKING' };
      case 'large': return turn.done('x'.repeat(81_920));
      case 'part': return turn.artifact().write('x'.repeat(250_000));
      case 'hold':
        await turn.update('holding');
        await new Promise((resolve) => { signal.addEventListener('abort', resolve); });
        cancelled = signal.reason;
        late = turn.update('late').catch((err) => err);
        return undefined;
      default: return turn.artifact().close(...Array(40).fill('y'.repeat(20_000)), turn.text);
    }
  });
  const expected = { reject: ['REJECTED', 'no'], text: ['COMPLETED', 'only a text'], invalid: ['REJECTED', 'why'],
    state: ['FAILED', /operator/], large: ['FAILED', /more than 81920 bytes/], part: ['FAILED', /operator/] };
  for (const [words, [state, said]] of Object.entries(expected)) {
    const { status: { state: got, message } } = await say(words);
    assert.deepEqual([words, got], [words, `TASK_STATE_${state}`]);
    assert.match(message.parts[0].text, new RegExp(said));
  }
  const held = await say('hold', { returnImmediately: true });
  await eventually(async () => (await task(held.id)).history.length > 1);
  await post(`/tasks/${held.id}:cancel`, {});
  await until(() => late);
  assert.equal(cancelled.code, 'CANCELLED');
  assert.ok(await late instanceof Error);
  const large = 'z'.repeat(200_000), ended = await say(large); // it has no room in a REQUEST
  assert.ok(texts(ended)[0].endsWith(`y${large}`));
  await verified(ended.id);
});

test('A-16: other intents go to work, and only a turn of the gateway to the handler', async (t) => {
  if (!needsRelay(t)) return;
  const { url, me, serve, say } = await endpoint(t);
  serve(() => 'turn', { intents: 'echo', work: ({ params }) => params, price: 0.5 });
  assert.equal((await say('x')).status.message.parts[0].text, 'turn', 'turns are free');
  const client = new Client(url, { me: await identity() });
  assert.deepEqual((await client.ask('echo', { n: 1 }, { to: me.did, maxCost: 1 })).output, { n: 1 });
  await assert.rejects(client.ask('a2a.message', {}, { to: me.did, seconds: 20 }), { code: 'FORBIDDEN' });
  assert.throws(() => client.serveA2A(), TypeError);
  assert.throws(() => client.serveA2A(() => {}, { intents: 'echo' }), TypeError);
  await assert.rejects(new Client(await startRelay(t)).gatewayOf('a2a'), { code: 'NO_A2A' });
});
