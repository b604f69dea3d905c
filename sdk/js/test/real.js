// A real relay, and programs that use it, for tests. AGORA_BINARY names the program; by default it is bin/agora.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { fileURLToPath } from 'node:url';

export const BINARY = process.env.AGORA_BINARY ?? fileURLToPath(new URL('../../../bin/agora', import.meta.url));

/** Skips the test if there is no relay. Under CI=true that is a failure. */
export function needsRelay(t) {
  if (existsSync(BINARY)) return true;
  if (process.env.CI === 'true') throw new Error(`${BINARY} is missing, and with CI=true no test may be skipped`);
  t.skip(`${BINARY} is missing; run make build`);
  return false;
}

/** A folder that is removed when the test ends. */
export async function folder(t) {
  const made = await mkdtemp(join(tmpdir(), 'agora-js-'));
  t.after(() => rm(made, { recursive: true, force: true, maxRetries: 5 }));
  return made;
}

/** Runs a program. line(start) waits for a line that starts so, and returns the rest of it. */
export function run(t, command, args, options = {}) {
  const child = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'], ...options });
  const lines = [], ended = once(child, 'exit'), waiting = new Set();
  let errors = '';
  child.stderr.on('data', (text) => { errors = (errors + text).slice(-4000); });
  createInterface({ input: child.stdout }).on('line', (text) => {
    lines.push(text);
    for (const check of waiting) check();
  });
  const kill = async (signal = 'SIGKILL') => {
    if (child.exitCode === null && child.signalCode === null) child.kill(signal);
    await ended;
  };
  t.after(() => kill());
  const line = (start) => new Promise((found, failed) => {
    const check = () => {
      const text = lines.find((each) => each.startsWith(start));
      if (text === undefined) return;
      waiting.delete(check);
      found(text.slice(start.length));
    };
    waiting.add(check);
    check();
    ended.then(() => { check(); failed(new Error(`${args.join(' ')} has ended: ${errors}`)); });
  });
  const finish = async () => {
    const [code] = await ended;
    if (code !== 0) throw new Error(`${args.join(' ')} has failed: ${errors}`);
    return lines;
  };
  return { line, kill, finish, errors: () => errors };
}

/** Starts a relay with these flags, and returns its URL. */
export async function startRelay(t, ...flags) {
  const data = join(await folder(t), 'data');
  const relay = run(t, BINARY, ['serve', '--addr', '127.0.0.1:0', '--data', data, '--log-level', 'warn', ...flags]);
  return relay.line('listening on ');
}
