// What several tests share. Vectors of third parties are not part of the project: they are read from folders that
// environment variables name. Under CI=true a missing folder is a failure; otherwise the test is skipped and says so.
import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { identity, sign } from '../agora.js';

export const hex = (bytes) => Buffer.from(bytes).toString('hex');
export const fromHex = (text) => new Uint8Array(Buffer.from(text, 'hex'));
export const utf8 = (text) => new TextEncoder().encode(text);

/** The identities of the project's vectors: their seeds are one byte, repeated. */
export const alice = await identity(new Uint8Array(32).fill(1));
export const bob = await identity(new Uint8Array(32).fill(2));

/** A signed REQUEST of alice; changes replace its members. */
export function message(changes = {}, me = alice) {
  return sign({
    version: '1.0', id: 'msg_1', ts: '2026-02-02T12:00:00Z', type: 'REQUEST', sender: { id: me.did },
    payload: { request_id: 'req_1', intent: 'echo' }, thread: { id: 'thread_1' }, meta: { ttl: 300 }, ...changes,
  }, me);
}

/** Asserts that act throws Refused with this code. act may be asynchronous. */
export const refuses = (code, act, what) =>
  assert.rejects(async () => act(), (err) => err.code === code && err.message.startsWith(code),
    `${what ?? act}: want ${code}`);

/** The folder in an environment variable, or undefined after t was skipped. */
export function folder(t, variable) {
  const dir = process.env[variable];
  if (!dir && process.env.CI === 'true') assert.fail(`${variable} is not set, and with CI=true no test may be skipped`);
  if (!dir) t.skip(`${variable} is not set: it names the folder of the vectors`);
  return dir;
}

/** The vectors in a JSON file; the test fails if there are none. */
export function vectorsOf(dir, name, member) {
  const file = JSON.parse(readFileSync(join(dir, name), 'utf8')), list = member ? file[member] : file;
  assert.ok(list.length > 0, `${name} has no vectors`);
  return list;
}

/** The names and bytes of the files in a folder; the test fails if there are none. */
export function filesOf(dir, name) {
  const names = readdirSync(join(dir, name));
  assert.ok(names.length > 0, `${name} has no files`);
  return names.map((file) => [file, readFileSync(join(dir, name, file))]);
}

/** The lines of a text file; the test fails if there are none. */
export function linesOf(dir, name) {
  const lines = readFileSync(join(dir, name), 'utf8').trim().split('\n');
  assert.ok(lines[0], `${name} has no lines`);
  return lines;
}

/** The answers of a relay: a refusal, and a page of events. */
export const refusal = (code, details = {}, retryable = false) =>
  ({ ok: false, error: code, message: 'why', retryable, details });
export const page = (events, cursor, hasMore = false) => ({ ok: true, events, cursor, hasMore });

/** A fetch that answers with the results of answer. That is given the number of the request, its URL and options. */
export const fake = (answer) => {
  let count = 0;
  return async (url, options) => {
    const result = await answer(++count, url, options);
    return result instanceof Response ? result : Response.json(result);
  };
};
