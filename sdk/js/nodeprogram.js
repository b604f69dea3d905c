// Runs a program for a job, for the command agora-relay work. It does in short what agora work does.
import { spawn } from 'node:child_process';
import { access, constants } from 'node:fs/promises';
import { delimiter, join } from 'node:path';
import { AgentError, parse, printable, Refused } from './node.js';

const MAX_OUTPUT = 1 << 20; // bytes
const GRACE = 10_000; // milliseconds between SIGTERM and SIGKILL
const isWindows = process.platform === 'win32';
const running = new Set(); // the children

/** Throws Refused if the program cannot be started. */
export async function lookProgram(name) {
  if (isWindows) return; // it has its own rules for the endings of names
  const places = name.includes('/') ? [name] : (process.env.PATH ?? '').split(delimiter).map((dir) => join(dir, name));
  for (const place of places) {
    try { return await access(place, constants.X_OK); } catch { /* it is not there */ }
  }
  const hint = name.includes('/') ? `make it executable with: chmod +x ${name}` :
    `it is not in PATH; for a file in this folder write ./${name}`;
  throw new Refused('NO_PROGRAM', `there is no program ${name} that can be run: ${hint}`);
}

/** What the program reads about a job: the whole job, only its params, or the text in its params. Throws AgentError. */
export function inputOf(job, kind) {
  const { params = null, thread, requestId, intent, client, title, description, constraints } = job;
  if (kind === 'params') return `${JSON.stringify(params)}\n`;
  if (kind === 'text') {
    const text = typeof params === 'string' ? params : params?.text;
    if (typeof text === 'string') return text.endsWith('\n') ? text : `${text}\n`;
    throw new AgentError('INVALID_REQUEST', 'the params must be a string, or an object with a string "text"');
  }
  return `${JSON.stringify({ thread, request_id: requestId, intent, client, params, title, description,
    max_cost_usd: constraints.max_cost_usd, deadline: constraints.deadline })}\n`;
}

// The variables of agora may have keys and tokens, so the program gets none of them.
function environment({ thread, requestId, intent, client }) {
  const own = Object.entries(process.env).filter(([name]) => !name.toUpperCase().startsWith('AGORA_'));
  return { ...Object.fromEntries(own), AGORA_THREAD: thread, AGORA_REQUEST_ID: requestId ?? '', AGORA_INTENT: intent,
    AGORA_CLIENT: client };
}

// Ends a program with all that it has started. On Windows only the program itself can be ended.
function kill(child, signal) {
  if (child.pid === undefined) return; // it could not be started
  try {
    if (isWindows) child.kill(signal);
    else process.kill(-child.pid, signal);
  } catch (err) { if (err.code !== 'ESRCH') throw err; }
}

/** Ends all programs at once. */
export function killAll() { for (const child of running) kill(child, 'SIGKILL'); }

const EXIT_CODES = { 65: 'INVALID_REQUEST', 75: 'UNAVAILABLE' }; // EX_DATAERR and EX_TEMPFAIL of sysexits.h

/** Runs the program, and returns what it has printed: JSON as its value, anything else as a text without the line
 *  breaks at its end. Throws AgentError if the program fails, takes longer than seconds, or prints more than 1 MiB.
 *  Throws the signal's reason. */
export async function runProgram([name, ...args], job, input, seconds, signal) {
  signal.throwIfAborted();
  const child = spawn(name, args, { detached: !isWindows, env: environment(job) });
  running.add(child);
  let failure, forced;
  const end = (why) => {
    if (failure) return;
    failure = why;
    kill(child, 'SIGTERM');
    forced = setTimeout(() => kill(child, 'SIGKILL'), GRACE);
  };
  const onAbort = () => end(signal.reason);
  const late = new AgentError('TIMEOUT', 'the program did not end in time');
  const timer = setTimeout(() => end(late), seconds * 1000), output = [];
  signal.addEventListener('abort', onAbort);
  let size = 0;
  child.stdout.on('data', (part) => {
    if ((size += part.length) > MAX_OUTPUT) end(new AgentError('EXECUTION_FAILED', 'the program has written too much'));
    else output.push(part);
  });
  child.stderr.setEncoding('utf8').on('data', (text) =>
    process.stderr.write(printable(text, { keep: '\n\t', max: Infinity })));
  child.stdin.on('error', () => {}); // the program need not read its input
  child.stdin.end(input);
  child.on('exit', () => kill(child, 'SIGKILL')); // what it has started may hold its output open
  try {
    const [code, ended] = await new Promise((resolve, reject) => {
      child.on('error', reject).on('close', (...how) => resolve(how));
    });
    if (failure) throw failure;
    if (code !== 0) {
      throw new AgentError(EXIT_CODES[code] ?? 'EXECUTION_FAILED', `the program has ended with ${ended ?? code}`);
    }
  } finally {
    running.delete(child);
    clearTimeout(timer);
    clearTimeout(forced);
    signal.removeEventListener('abort', onAbort);
  }
  return valueOf(Buffer.concat(output));
}

function valueOf(bytes) {
  try { return parse(bytes); } catch { /* it is a text */ }
  try { return new TextDecoder('utf-8', { fatal: true }).decode(bytes).replace(/[\r\n]+$/, ''); } catch {
    throw new AgentError('EXECUTION_FAILED', 'the program has written a text that is not UTF-8');
  }
}
