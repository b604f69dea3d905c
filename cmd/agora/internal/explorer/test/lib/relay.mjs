// Relays and other servers that the tests start. All of them end with the test.
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import http from 'node:http';
import { tmpdir } from 'node:os';
import path from 'node:path';
import readline from 'node:readline';
import { atEnd } from './cleanup.mjs';

export const AGORA = process.env.AGORA ?? path.resolve(import.meta.dirname, '../../../../../../bin/agora');
if (!existsSync(AGORA)) throw new Error(`${AGORA} is missing; run make build`);

// The tests post more than the limits of one address allow.
const UNLIMITED = ['--post-rate-ip', '0', '--post-rate-did', '0', '--broadcast-rate-ip', '0', '--inbox-events', '0'];

/** A folder that is removed when the test ends. */
export async function folder(t) {
  const made = await mkdtemp(path.join(tmpdir(), 'agora-page-'));
  atEnd(t, () => rm(made, { recursive: true, force: true, maxRetries: 5 }));
  return made;
}

/** Runs agora until it prints `starts` and a value. Returns the value, and functions that end the process. */
async function run(t, args, starts) {
  const child = spawn(AGORA, args, { stdio: ['ignore', 'pipe', 'pipe'] });
  let log = '', value;
  child.stderr.on('data', (text) => { log = (log + text).slice(-4000); });
  const ended = once(child, 'exit');
  const end = async (signal) => {
    if (child.exitCode === null && child.signalCode === null) child.kill(signal);
    await ended;
  };
  atEnd(t, () => end('SIGKILL'));
  const lines = readline.createInterface({ input: child.stdout });
  for await (const line of lines) {
    if (line.startsWith(starts)) value = line.slice(starts.length);
    if (value) break;
  }
  child.stdout.resume();
  if (!value) throw new Error(`agora ${args.join(' ')} did not start: ${log}`);
  return { value, stop: () => end('SIGINT'), kill: () => end('SIGKILL') };
}

/** Starts a relay. host is its address, port 0 a free one. A relay that is started again with the data and the port of
 *  another one takes its place. */
export async function startRelay(t, { host = '127.0.0.1', port = 0, data, flags = [] } = {}) {
  data ??= path.join(await folder(t), 'data');
  const args = ['serve', '--addr', `${host}:${port}`, '--data', data, ...UNLIMITED, ...flags];
  const { value: url, stop, kill } = await run(t, args, 'listening on ');
  return { url, host, port: Number(new URL(url).port), data, flags, stop, kill };
}

/** Starts a relay that has ended again, at the same address. */
export const restart = (t, { host, port, data, flags }) => startRelay(t, { host, port, data, flags });

/** Starts agora page for a relay, and returns the URL of the page. */
export async function startPage(t, relayURL) {
  const { value } = await run(t, ['page', relayURL, '--addr', '127.0.0.1:0'], 'page at ');
  return value.replace(/\/$/, '');
}

/** Starts a server on loopback with this handler, and returns its URL. */
export async function startServer(t, handler) {
  const server = http.createServer(handler);
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  atEnd(t, () => {
    server.closeAllConnections();
    server.close();
  });
  return `http://127.0.0.1:${server.address().port}`;
}

const WAIT = { ok: false, error: 'UNAVAILABLE', message: 'wait', retryable: true };

/** Starts a proxy in front of a relay. Its `answer(request)` may return an answer {status, headers, body} in place of
 *  the relay's. Its `change(text, request)` returns the text of an answer as the page gets it. */
export async function startProxy(t, relay, { answer = () => undefined, change = (text) => text } = {}) {
  const proxy = { answer, change };
  proxy.url = await startServer(t, async (request, response) => {
    const own = proxy.answer(request);
    if (own) {
      response.writeHead(own.status, { 'content-type': 'application/json', ...own.headers });
      return response.end(JSON.stringify(own.body ?? WAIT));
    }
    const { host, 'accept-encoding': coding, ...headers } = request.headers;
    const forward = http.request(new URL(request.url, relay.url), { method: request.method, headers }, async (from) => {
      let text = '';
      from.setEncoding('utf8');
      for await (const part of from) text += part;
      const { 'content-length': length, ...kept } = from.headers;
      response.writeHead(from.statusCode, kept);
      response.end(proxy.change(text, request));
    });
    response.on('close', () => forward.destroy());
    forward.on('error', () => response.destroy());
    request.pipe(forward);
  });
  return proxy;
}
