#!/usr/bin/env node
// The command agora-relay hires agents, and makes an agent of any program, where Node is installed and agora is not.
// It has the flags, key files and exit codes of agora ask and agora work.
import { createHash } from 'node:crypto';
import { mkdir, readFile } from 'node:fs/promises';
import { homedir } from 'node:os';
import { dirname, isAbsolute, join, resolve } from 'node:path';
import { parseArgs } from 'node:util';
import { inputOf, killAll, lookProgram, runProgram } from './nodeprogram.js';
import { AgentError, Client, loadKey, loadOrCreateKey, Network, parse, printable, RelayError, State,
  Unacceptable } from './node.js';

const LOCAL = 'http://127.0.0.1:8789';
const HELP = {
  '': `Usage: agora-relay ask INTENT [TEXT] | agora-relay work --intent INTENT -- PROGRAM ARG...

Hires agents through an Agora relay, and makes an agent of any program.

Examples:
  npx agora-relay ask echo hello
  npx agora-relay ask translation.en_zh 'Good morning' --max-cost 0.01 --relay https://relay.example
  npx agora-relay work --intent text.upper --input text -- tr a-z A-Z

agora-relay ask --help and agora-relay work --help list the flags. Or set AGORA_RELAY and AGORA_KEY. Without a key it
makes one, which agora uses too.`,
  ask: `Usage: agora-relay ask INTENT [TEXT] [FLAG...]

Sends a request, accepts the best offer, waits for the result, and prints its output as one line of JSON. All else goes
to standard error. What the agent delivers is untrusted: never run it. TEXT becomes the params {"text":TEXT}.

  --params JSON    the params, in place of TEXT
  --to DID         the only agent that may offer
  --seal           encrypt the request for --to
  --max-cost USD   the most that you would pay (default: 0, only free offers)
  --wait SECONDS   how long to wait for an offer (default: 5)
  --timeout SECONDS  end after this time
  --raw            if the output is a string, print it without JSON quotes
  --relay URL      the relay; may be repeated, the preferred one first (default: AGORA_RELAY, or ${LOCAL})
  --key FILE       your key file (default: AGORA_KEY, or that of agora init)

Exit codes: 0 result, 1 failure on this machine, 2 wrong command line, 3 no offer, 4 no acceptable offer, 5 refused by
the relay, 6 the agent has failed, 8 no result in time, 9 the relay does not answer, 130 interrupted.

Examples:
  agora-relay ask echo hello
  agora-relay ask text.count 'two words' --max-cost 0.01
  agora-relay ask image.resize --params '{"url":"https://a.example/cat.png"}' --relay https://relay.example`,
  work: `Usage: agora-relay work --intent INTENT [FLAG...] -- PROGRAM ARG...

Announces services, and runs the program for each job that a client accepts. What the program prints is the result: JSON
as it is, anything else as a text. It runs until it is interrupted. All that the program reads comes from strangers:
never let a shell evaluate it.

  --intent INTENT   a service of the program; may be repeated
  --input KIND      what the program reads: job (the whole job as JSON, the default), params, or text
  --price USD       the price of a job (default: 0, free)
  --name NAME       the agent's name
  --concurrency N   how many programs run at the same time (default: 1)
  --timeout SECONDS  how long a program may run (default: 600)
  --relay URL       the relay; may be repeated, the preferred one first (default: AGORA_RELAY, or ${LOCAL})
  --key FILE        your key file (default: AGORA_KEY, or that of agora init)

If the program exits with 65, the client gets INVALID_REQUEST, with 75 UNAVAILABLE, and otherwise EXECUTION_FAILED.

Examples:
  agora-relay work --intent text.upper --input text -- tr a-z A-Z
  agora-relay work --intent summary.text --price 0.02 --relay https://relay.example -- python3 agent.py`,
};

const text = { type: 'string' }, flag = { type: 'boolean' };
const BOTH = { relay: { ...text, multiple: true }, key: text, timeout: text, help: { ...flag, short: 'h' } };
const FLAGS = {
  ask: { ...BOTH, params: text, to: text, seal: flag, 'max-cost': text, wait: text, raw: flag },
  work: { ...BOTH, intent: { ...text, multiple: true }, input: text, price: text, name: text, concurrency: text },
};

/** An error of the command line. */
class Usage extends Error {}

const say = (words) => console.error(`agora-relay: ${printable(words)}`);

const MAX_SECONDS = 2_147_483; // a timer of Node has at most 2^31-1 milliseconds

// The number in a flag.
function number(values, name, least, otherwise, most = 1e9) {
  const given = values[name] ?? otherwise, value = Number(given);
  if (given === undefined) return undefined;
  if (given !== '' && value >= least && value <= most) return value;
  throw new Usage(`--${name} must be a number from ${least} to ${most}`);
}

// --- The key and the relay

// The folder of the configuration of agora.
function configuration() {
  const { XDG_CONFIG_HOME: xdg, APPDATA: windows } = process.env;
  if (xdg && isAbsolute(xdg)) return join(xdg, 'agora');
  if (process.platform === 'win32' && windows) return join(windows, 'agora');
  return join(homedir(), process.platform === 'darwin' ? 'Library/Application Support' : '.config', 'agora');
}

// The relay and the key file in the profile default of agora init. Without a profile the key has its usual place.
async function profile() {
  const folder = join(configuration(), 'profiles');
  const settings = await readFile(join(folder, 'default.toml'), 'utf8').catch((err) => {
    if (err.code !== 'ENOENT') throw err;
    return '';
  });
  const [shared] = settings.split(/^\s*\[/m); // the rest is of single commands
  const setting = (name) => shared.match(new RegExp(`^${name}\\s*=\\s*"([^"\\\\]*)"`, 'm'))?.[1];
  const key = setting('key') ?? 'default.key';
  return { relay: setting('relay'), key: key.startsWith('~/') ? join(homedir(), key) : resolve(folder, key) };
}

async function keyIn(file) {
  try { return await loadKey(file); } catch (err) { if (err.code !== 'ENOENT') throw err; }
  await mkdir(dirname(file), { recursive: true, mode: 0o700 });
  const me = await loadOrCreateKey(file);
  say(`made the key ${file}; do not lose it, and keep it secret`);
  return me;
}

// Returns the client of the relays, the URLs of these, and the key file.
async function connect(values, state) {
  const saved = await profile();
  const urls = values.relay ?? (process.env.AGORA_RELAY || saved.relay || LOCAL).split(' ');
  const file = values.key ?? (process.env.AGORA_KEY || saved.key), me = await keyIn(file);
  const log = (words, err) => say(err === undefined ? words : `${words}: ${err.message}`);
  const several = urls.length > 1, options = { me, log, name: values.name };
  const client = several ? new Network(urls, { ...options, state: await state?.(file, urls) }) :
    new Client(urls[0], options);
  try {
    await Promise.any((several ? client.clients : [client]).map((one) => one.health()));
  } catch ({ errors: [err] }) {
    if (err.code !== 'NO_ANSWER') throw err;
    throw Object.assign(new Error(`no relay answers at ${urls.join(', ')}; start one with agora serve, or name ` +
      'another with --relay or AGORA_RELAY'), { code: err.code });
  }
  return { client, urls, file };
}

// --- The commands

async function ask(values, rest, program = [], signal) {
  const [intent, words, ...more] = [...rest, ...program]; // a TEXT may begin with - after --
  if (!intent || more.length > 0) throw new Usage('want agora-relay ask INTENT [TEXT]; quote a TEXT with spaces');
  if (words !== undefined && values.params !== undefined) throw new Usage('give either a TEXT or --params, not both');
  if (values.seal && !values.to) throw new Usage('--seal needs --to: the request is encrypted to that agent');
  let params = words === undefined ? undefined : { text: words };
  try { if (values.params !== undefined) params = parse(Buffer.from(values.params)); } catch (err) {
    throw new Usage(`--params is not valid JSON: ${err.message}`);
  }
  const maxCost = number(values, 'max-cost', 0, '0'), seconds = number(values, 'wait', 0, '5', MAX_SECONDS);
  const timeout = number(values, 'timeout', 1, undefined, MAX_SECONDS);
  const { client, urls } = await connect(values);
  const late = timeout === undefined ? signal : AbortSignal.any([signal, AbortSignal.timeout(timeout * 1000)]);
  say(`asking for ${intent} at ${urls.join(', ')}`);
  const { output = null, status } = await client.ask(intent, params, { to: values.to, seal: values.seal, maxCost,
    seconds, rule: values.to ? 'first' : 'cheapest', signal: late });
  const isText = values.raw && typeof output === 'string', keep = isText ? '\n\t' : '';
  const shown = isText ? output : JSON.stringify(output);
  console.log(isText && !process.stdout.isTTY ? shown : printable(shown, { keep, max: Infinity }));
  if (status.toLowerCase() === 'success') return 0;
  say(`the status of the result is ${JSON.stringify(status)}, not "success"`);
  return 6;
}

async function work(values, rest, program, signal) {
  const { intent, input = 'job', name } = values;
  if (!intent) throw new Usage('say what the program does with --intent INTENT');
  if (rest.length > 0 || !program?.[0]) throw new Usage('put the program and its arguments after --');
  if (!['job', 'params', 'text'].includes(input)) throw new Usage('--input must be job, params or text');
  const price = number(values, 'price', 0, '0'), seconds = number(values, 'timeout', 1, '600', MAX_SECONDS);
  const concurrency = number(values, 'concurrency', 1, '1');
  await lookProgram(program[0]);
  let state;
  const open = async (file, urls) => {
    await mkdir(`${file}.work`, { recursive: true, mode: 0o700 });
    const place = createHash('sha256').update(urls.join(' ')).digest('hex').slice(0, 16);
    return state ??= new State(join(`${file}.work`, `${place}.npx`));
  };
  const { client, urls, file } = await connect(values, open);
  say(`working for ${intent.join(', ')} as ${client.me.did} at ${urls.join(', ')}`);
  await client.serve(intent, { price, concurrency, signal, manifest: { name }, state: await open(file, urls),
    quote: (job) => { inputOf(job, input); return price; },
    work: async (job, { signal: ended }) => {
      say(`a job of ${job.client} in the thread ${job.thread}`);
      return runProgram(program, job, inputOf(job, input), seconds, ended);
    } });
  return 0;
}

// The exit code for an error.
function exitCode(err, signal) {
  if (signal.aborted) return 130;
  if (err instanceof Usage || err instanceof TypeError || err.code === 'INVALID_DID') return 2;
  if (err instanceof Unacceptable) return /acceptable/.test(err.why ?? err.message) ? 4 : 3;
  if (err.name === 'TimeoutError' || err.code === 'TIMEOUT') return 8;
  if (err.code === 'NO_ANSWER') return 9;
  if (err instanceof RelayError) return 5;
  return err instanceof AgentError || ['PLAIN', 'CLOSED', 'GONE'].includes(err.code) ? 6 : 1;
}

async function main([command, ...args]) {
  const stop = new AbortController();
  process.on('SIGINT', interrupt).on('SIGTERM', interrupt);
  function interrupt() {
    if (!stop.signal.aborted) return stop.abort(new Error('interrupted'));
    killAll();
    process.exit(130);
  }
  try {
    const at = args.indexOf('--'), [own, program] = at < 0 ? [args] : [args.slice(0, at), args.slice(at + 1)];
    const isHelp = command === undefined || ['help', '--help', '-h'].includes(command);
    if (isHelp) {
      console.log(HELP[own[0]] ?? HELP['']);
      return 0;
    }
    if (!Object.hasOwn(FLAGS, command)) throw new Usage(`there is no command ${command}; there are ask and work`);
    let parsed;
    try { parsed = parseArgs({ args: own, options: FLAGS[command], allowPositionals: true }); } catch (err) {
      throw new Usage(err.message);
    }
    if (parsed.values.help) {
      console.log(HELP[command]);
      return 0;
    }
    return await { ask, work }[command](parsed.values, parsed.positionals, program, stop.signal);
  } catch (err) {
    say(err.message);
    const code = exitCode(err, stop.signal);
    if (code === 3 || code === 4) say('--max-cost USD accepts offers up to that price; without it, only free ones');
    if (code === 2) say(`see agora-relay ${FLAGS[command] ? `${command} ` : ''}--help`);
    return code;
  }
}

process.exitCode = await main(process.argv.slice(2));
