// What needs the file system: key files, cursor files and state files. It has everything of index.js too.
import { constants } from 'node:fs';
import { link, open, readFile, rename, rm, stat } from 'node:fs/promises';
import { randomUUID } from 'node:crypto';
import { dirname } from 'node:path';
import { fileURLToPath } from 'node:url';
import { formatKeyFile, identity, readKeyFile, Refused } from './agora.js';
import { Memory } from './memory.js';

export * from './index.js';
export { dialler } from './nodedial.js';

const MAX_CURSOR = 1024; // characters
const COMPACT = 4 << 20; // bytes from which a state file is written anew, if half of it does not count any more
const isWindows = process.platform === 'win32';

const nameOf = (path) => path instanceof URL ? fileURLToPath(path) : String(path);

// Writes text to a new file beside path, which only its owner can read, and then publishes it with act(temporary,
// path). The file survives a crash of the machine once this has returned.
async function write(path, text, act) {
  const temporary = `${path}.${randomUUID()}.tmp`;
  try {
    const file = await open(temporary, constants.O_CREAT | constants.O_EXCL | constants.O_WRONLY, 0o600);
    try {
      await file.writeFile(text);
      await file.sync();
    } finally { await file.close(); }
    await act(temporary, path);
  } finally { await rm(temporary, { force: true }); }
  if (isWindows) return; // folders cannot be synced there, and NTFS does not need it
  const folder = await open(dirname(path), 'r');
  try { await folder.sync(); } finally { await folder.close(); }
}

const failure = (code, message, cause) => Object.assign(new Error(message, { cause }), { code, retryable: false });

export async function saveKey(path, me) {
  const name = nameOf(path);
  try { await write(name, formatKeyFile(me), link); } catch (err) { // unlike a rename, a link replaces no file
    if (err.code !== 'EEXIST') throw err;
    throw failure('EEXIST', `${name} exists and is not overwritten; choose another name, or move the file away first`,
      err);
  }
}

export async function loadKey(path) {
  const name = nameOf(path);
  let text, mode;
  try {
    ({ mode } = await stat(name));
    text = await readFile(name, 'utf8');
  } catch (err) {
    if (err.code !== 'ENOENT') throw err;
    throw failure('ENOENT', `there is no key file ${name}; make one with loadOrCreateKey, or with: ` +
      `agora keygen ${name}`, err);
  }
  if (mode & 0o077 && !isWindows) {
    throw new Refused('INVALID_KEY', `key file ${name} has mode 0${(mode & 0o777).toString(8)}, so other users may ` +
      `access it; run: chmod 600 ${name}`);
  }
  return readKeyFile(text);
}

export async function loadOrCreateKey(path) {
  try { return await loadKey(path); } catch (err) { if (err.code !== 'ENOENT') throw err; }
  const me = await identity();
  try { await saveKey(path, me); } catch (err) {
    if (err.code !== 'EEXIST') throw err;
    return loadKey(path); // another process has created it since
  }
  return me;
}

export class FileCursor {
  #path;

  constructor(path) { this.#path = nameOf(path); }

  async load() {
    let text;
    try { text = await readFile(this.#path, 'utf8'); } catch (err) {
      if (err.code === 'ENOENT') return undefined;
      throw err;
    }
    if (text.length > MAX_CURSOR) {
      throw failure('INVALID_CURSOR', `the file ${this.#path} is too long to be a cursor; move it away to start ` +
        'without a cursor');
    }
    return text.trim() || undefined;
  }

  save(cursor) { return write(this.#path, `${cursor}\n`, rename); }
}

// The file has one JSON array in each line: first ["agora-state",1,DID], then entries of Memory. Lines are appended,
// and the last one with a name counts. A line that was cut off by a crash is at the end, and is dropped.
export class State extends Memory {
  #path;
  #did;
  #loaded;
  #lines = ''; // that are not written yet
  #size = 0;
  #live = 0; // the size after the last compaction
  #writing = Promise.resolve();

  constructor(path) {
    super();
    this.#path = nameOf(path);
  }

  get isDurable() { return true; }

  async load(did) {
    await (this.#loaded ??= this.#load(did));
    if (did !== this.#did) throw this.#damaged(`it belongs to ${this.#did}; use one file for each identity`);
  }

  #damaged(why) { return failure('INVALID_STATE', `the state file ${this.#path} cannot be used: ${why}`); }

  async #load(did) {
    this.#did = did;
    const text = await readFile(this.#path, 'utf8').catch((err) => { if (err.code !== 'ENOENT') throw err; });
    const lines = (text ?? '').split('\n');
    lines.pop(); // empty, or cut off
    for (const [n, line] of lines.entries()) {
      let entry;
      try { entry = JSON.parse(line); } catch { /* it is not an entry */ }
      const [kind, version, owner] = Array.isArray(entry) ? entry : [];
      const fits = n > 0 ? kind !== undefined && this.apply(entry) : kind === 'agora-state' && version === 1;
      if (!fits) throw this.#damaged(`line ${n + 1} has another form; move the file away to start without it`);
      if (n === 0) this.#did = owner;
    }
    await this.#compact(); // also removes what was cut off
  }

  async #compact() {
    const lines = [['agora-state', 1, this.#did], ...this.entries()].map((entry) => `${JSON.stringify(entry)}\n`);
    this.#lines = '';
    this.#size = this.#live = Buffer.byteLength(lines.join(''));
    await write(this.#path, lines.join(''), rename);
  }

  async keep(relay, evidence) {
    await write(`${this.#path}.evidence-${relay.slice(-8)}-${Date.now()}.json`, JSON.stringify(evidence), rename);
  }

  append(...entry) { this.#lines += `${JSON.stringify(entry)}\n`; }

  sync() {
    this.#writing = this.#writing.then(async () => {
      const lines = this.#lines;
      if (lines === '') return;
      this.#size += Buffer.byteLength(lines);
      if (this.#size > COMPACT && this.#size > 2 * this.#live) {
        await this.#compact();
        return;
      }
      this.#lines = '';
      const file = await open(this.#path, constants.O_APPEND | constants.O_WRONLY);
      try {
        await file.writeFile(lines);
        await file.sync();
      } finally { await file.close(); }
    });
    return this.#writing;
  }
}
