// The command agora-relay, with a real relay: what it prints, its exit codes and its key files.
import assert from 'node:assert/strict';
import { execFile, spawn } from 'node:child_process';
import { EventEmitter, once } from 'node:events';
import { mkdir, readFile, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import test from 'node:test';
import { fileURLToPath } from 'node:url';
import { promisify } from 'node:util';
import { AgentError, Client, identity, loadKey, Result } from '../node.js';
import { serving } from './fakerelay.js';
import { BINARY, folder, needsRelay, run, startRelay } from './real.js';

const CLI = fileURLToPath(new URL('../nodecli.js', import.meta.url)), execute = promisify(execFile);

/** The environment of a person whose configuration is in a folder. */
async function person(t, url, more = {}) {
  const home = await folder(t);
  const own = Object.entries(process.env).filter(([name]) => !name.startsWith('AGORA_'));
  return { ...Object.fromEntries(own), XDG_CONFIG_HOME: home, AGORA_RELAY: url, ...more };
}

/** Runs agora-relay until it ends. */
async function cli(env, ...args) {
  const child = spawn(process.execPath, [CLI, ...args], { env });
  const texts = ['', ''];
  [child.stdout, child.stderr].forEach((stream, i) => stream.setEncoding('utf8').on('data', (s) => { texts[i] += s; }));
  const [code] = await once(child, 'close');
  return { code, out: texts[0], err: texts[1] };
}

/** Starts agora-relay work. It has announced its service when this returns. */
async function working(t, url, ...args) {
  const env = await person(t, url, { AGORA_TOKEN: 'secret' });
  const agent = run(t, process.execPath, [CLI, 'work', ...args], { env });
  const intent = args[args.indexOf('--intent') + 1], reader = new Client(url);
  for await (const e of reader.follow({ type: 'MANIFEST' }, { from: 'oldest' })) {
    if (e.payload.intents.some(({ id }) => id === intent)) break;
  }
  return agent;
}

test('a program is hired with two commands, and the key is that of agora', async (t) => {
  if (!needsRelay(t)) return;
  const url = await startRelay(t), alice = await person(t, url);
  const agent = await working(t, url, '--intent', 'text.upper', '--input', 'text', '--price', '0.005', '--',
    'tr', 'a-z', 'A-Z');
  const dear = await cli(alice, 'ask', 'text.upper', 'hello', '--wait', '1');
  assert.equal(dear.code, 3, dear.err);
  assert.match(dear.err, /made the key .*default\.key[^]*--max-cost/);
  const file = join(alice.XDG_CONFIG_HOME, 'agora/profiles/default.key'), { did } = await loadKey(file);
  assert.equal((await stat(file)).mode & 0o777, 0o600);
  assert.match((await execute(BINARY, ['init'], { env: alice })).stdout, new RegExp(did));
  const to = ['--to', (await new Client(url).agents({ intent: 'text.upper' })).agents[0].id];
  for (const [want, ...flags] of [['"HELLO"\n'], ['HELLO\n', '--raw', ...to], ['"HELLO"\n', '--seal', ...to]]) {
    const { code, out, err } = await cli(alice, 'ask', 'text.upper', 'hello', '--max-cost', '0.01', ...flags);
    assert.deepEqual([code, out], [0, want], err);
    assert.ok(!err.includes('made the key'));
  }
  const bad = await cli(alice, 'ask', 'text.upper', '--params', '{"n":1}', '--max-cost', '1', '--wait', '1');
  assert.deepEqual([bad.code, bad.out], [3, ''], bad.err);
  await agent.kill('SIGINT');
  await agent.finish();
});

test('the profile of agora names the relay and the key', async (t) => {
  if (!needsRelay(t)) return;
  const url = await startRelay(t), bob = await person(t, ''), me = await identity();
  const text = ['--params', '"x"', '--to', me.did];
  serving(t, new Client(url, { me }), 'echo', { work: ({ params, client }) => [params, client] });
  const place = join(bob.XDG_CONFIG_HOME, 'agora/profiles');
  await mkdir(place, { recursive: true, mode: 0o700 });
  await writeFile(join(place, 'default.toml'), `# x\nkey = "own.key"\nrelay = "${url}"\n[ask]\nrelay = "http://x"\n`);
  const first = await cli(bob, 'ask', 'echo', ...text), { did } = await loadKey(join(place, 'own.key'));
  assert.deepEqual([first.code, first.out], [0, `["x","${did}"]\n`], first.err);
  const named = join(bob.XDG_CONFIG_HOME, 'named.key'), second = await cli(bob, 'ask', 'echo', '--key', named, ...text);
  assert.deepEqual([second.code, second.out], [0, `["x","${(await loadKey(named)).did}"]\n`], second.err);
});

test('what strangers send cannot control the terminal', async (t) => {
  if (!needsRelay(t)) return;
  const url = await startRelay(t), alice = await person(t, url), evil = 'a\u001b[2J\u202eb\nc\u{e0041}';
  const me = await identity(), to = ['--to', me.did];
  serving(t, new Client(url, { me }), ['bad', 'fails'], { work: ({ intent }) => {
    if (intent === 'bad') return new Result(evil, { status: evil });
    throw new AgentError(evil, evil);
  } });
  const { code, out, err } = await cli(alice, 'ask', 'bad', ...to);
  assert.equal(code, 6, err);
  assert.equal(JSON.parse(out), evil);
  const failed = await cli(alice, 'ask', 'fails', ...to);
  assert.equal(failed.code, 6, failed.err);
  assert.match(failed.err, /\\u001b\[2J/);
  for (const text of [out, err, failed.err]) assert.doesNotMatch(text, /[\u001b\u202e\u{e0041}]/u);
});

test('work tells its clients how a program has failed', async (t) => {
  if (!needsRelay(t)) return;
  const url = await startRelay(t), client = new Client(url, { me: await identity(), log() {} });
  const program = `const { params, client, thread } = JSON.parse(require('fs').readFileSync(0, 'utf8'));
    const { AGORA_TOKEN: token = null, AGORA_CLIENT: from } = process.env;
    if (params === 'environment') console.log(JSON.stringify([token, from === client]));
    else if (params === 'flood') setInterval(() => process.stdout.write('x'.repeat(1e5)), 1);
    else if (params === 'late') setTimeout(() => {}, 1e6);
    else if (params === 'bytes') process.stdout.write(Buffer.from([255, 254]));
    else process.exit(params);`;
  const agent = await working(t, url, '--intent', 'job', '--timeout', '5', '--', process.execPath, '-e', program);
  const ask = (params) => client.ask('job', params, { rule: 'first' });
  assert.deepEqual((await ask('environment')).output, [null, true]);
  assert.equal((await ask(0)).output, '');
  const fails = { 65: 'INVALID_REQUEST', 75: 'UNAVAILABLE', 1: 'EXECUTION_FAILED' };
  for (const [params, code] of Object.entries(fails)) await assert.rejects(ask(Number(params)), { code });
  for (const params of ['flood', 'bytes']) await assert.rejects(ask(params), { code: 'EXECUTION_FAILED' }, params);
  await assert.rejects(ask('late'), { code: 'TIMEOUT' });
  await agent.kill('SIGTERM');
  await agent.finish();
});

test('exit codes say what has gone wrong', async (t) => {
  if (!needsRelay(t)) return;
  const url = await startRelay(t), env = await person(t, url), local = 'http://127.0.0.1:1';
  const me = await identity(), slow = ['ask', 'slow', '--to', me.did], begun = new EventEmitter();
  serving(t, new Client(url, { me }), 'slow', { work: (_, { signal }) => {
    begun.emit('work');
    return once(signal, 'abort');
  } });
  const damaged = join(env.XDG_CONFIG_HOME, 'damaged.key');
  await writeFile(damaged, '{', { mode: 0o600 });
  for (const [code, words, ...args] of [
    [0, /Examples:[^]*npx agora-relay/], [0, /--max-cost[^]*Examples:/, 'ask', '--help'],
    [0, /--input/, 'help', 'work'],
    [2, /there is no command hire/, 'hire'], [2, /Unknown option '--foo'/, 'ask', 'echo', '--foo'],
    [2, /INTENT/, 'ask'], [2, /quote a TEXT/, 'ask', 'echo', 'two', 'words'],
    [2, /--params is not valid JSON/, 'ask', 'echo', '--params', '{'],
    [2, /--seal needs --to/, 'ask', 'echo', '--seal'], [2, /did:key/, 'ask', 'echo', '--to', 'bob'],
    [2, /--max-cost must be a number/, 'ask', 'echo', '--max-cost', 'much'],
    [2, /--timeout must be a number from 1 to 2147483/, 'ask', 'echo', '--timeout', '2147484'],
    [2, /--timeout must be a number from 1/, 'work', '--intent', 'x', '--timeout', '0', '--', 'tr'],
    [2, /--intent/, 'work', '--', 'tr'], [2, /after --/, 'work', '--intent', 'x'],
    [1, /there is no program nowhere/, 'work', '--intent', 'x', '--', 'nowhere'],
    [1, /there is no program \.\/nowhere.*chmod/, 'work', '--intent', 'x', '--', './nowhere'],
    [1, /INVALID_KEY/, 'ask', 'echo', '--key', damaged],
    [3, /no offer within/, 'ask', 'nobody', '--wait', '0.2'], [8, /timeout/, ...slow, '--timeout', '2'],
    [9, /no relay answers at http:\/\/127\.0\.0\.1:1/, 'ask', 'echo', '--relay', local],
  ]) {
    const got = await cli(env, ...args);
    assert.equal(got.code, code, `${args.join(' ')}: ${got.err}`);
    assert.match(got.out + got.err, words, args.join(' '));
  }
  const asking = run(t, process.execPath, [CLI, ...slow], { env });
  await once(begun, 'work');
  await asking.kill('SIGINT');
  await assert.rejects(asking.finish(), /interrupted/);
});

test('with several relays, both commands use all of them', async (t) => {
  if (!needsRelay(t)) return;
  const [a, b] = [await startRelay(t), await startRelay(t)], both = ['--relay', a, '--relay', b];
  await working(t, a, '--intent', 'text.upper', '--input', 'text', ...both, '--', 'tr', 'a-z', 'A-Z');
  const { code, out, err } = await cli(await person(t, a), 'ask', 'text.upper', 'x', ...both);
  assert.deepEqual([code, out], [0, '"X"\n'], err);
});

test('the help names each flag', async (t) => {
  const env = await person(t, ''), source = await readFile(CLI, 'utf8');
  for (const command of ['ask', 'work']) {
    const { out } = await cli(env, command, '--help');
    const [, list] = source.match(new RegExp(`^  ${command}: \\{ \\.\\.\\.BOTH, (.*) \\},$`, 'm'));
    const names = [...list.matchAll(/'?([\w-]+)'?: (?:text|flag|\{)/g)].map(([, name]) => name);
    for (const name of ['relay', 'key', 'timeout', ...names]) assert.ok(out.includes(`--${name} `), name);
  }
});
