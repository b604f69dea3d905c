// Agents that sign and post messages.
import http from 'node:http';
import { canonicalize, identity, seal, sign } from '../../../../../../sdk/js/agora.js';
import { contentHash } from '../../../../../../sdk/js/chain.js';

const agent = new http.Agent({ keepAlive: true, maxSockets: 32 });
let count = 0;

/** Returns an id that was not used before. */
export const fresh = (what) => `${what}-${process.pid}-${++count}`;

/** Posts bytes to a path of a relay. Returns the status and the answer. */
export function post(relay, body, path = '/events') {
  return new Promise((resolve, reject) => {
    const request = http.request(new URL(path, relay.url), { method: 'POST', agent }, async (response) => {
      try {
        let text = '';
        for await (const part of response.setEncoding('utf8')) text += part;
        resolve({ status: response.statusCode, answer: JSON.parse(text) });
      } catch (err) { reject(err); }
    });
    request.on('error', reject);
    request.end(body);
  });
}

/** An agent with a new key. send signs a message with these fields and posts it. It fails unless the relay accepts it.
 *  ask sends a REQUEST to everybody, in its own thread. */
export async function newAgent(relay, name) {
  const me = await identity();
  const signed = async (type, payload, { to, sealed, ...fields } = {}) => {
    const e = {
      version: '1.0', id: fresh('msg'), ts: new Date().toISOString(), type, payload, meta: { ttl: 86_400 },
      sender: { id: me.did, ...(name && { name }) }, ...(to && { recipient: { id: to } }), ...fields,
    };
    return sign(sealed ? await seal(e) : e, me);
  };
  const send = async (...message) => {
    const e = await signed(...message);
    const { status, answer } = await post(relay, canonicalize(e));
    if (status !== 200) throw new Error(`${message[0]}: ${status} ${JSON.stringify(answer)}`);
    return e;
  };
  const ask = (id = fresh('thread')) => send('REQUEST', { request_id: 'r', intent: 'echo' }, { thread: { id } });
  return { ...me, me, name, signed, send, ask };
}

/** A conversation between a client and an agent. Each of its methods posts the next message. options are those of
 *  send. With home, each message answers the one before it. */
export function conversation(client, worker, more = {}) {
  const { id = fresh('thread'), intent = 'translation.en_fr', title, home, options } = more;
  let last; // message
  const request_id = fresh('req'), request = { intent, params: { text: 'Hello' }, ...(title && { title }) };
  const offer = { plan: 'Translate, keeping the tone', eta_seconds: 5, price: { amount: 0.005, currency: 'USD' } };
  const meta = async () => ({ ttl: 86_400, home, ...(last && { re: await contentHash(last) }) });
  const step = (from, to, type, payload) => async (more = {}) => {
    const fields = { thread: { id }, to: to.did, ...(home && { meta: await meta() }), ...options };
    last = await from.send(type, { request_id, ...payload, ...more }, fields);
    return last;
  };
  return {
    id, client: client.did, hash: `#/thread/${id}?client=${client.did}`,
    request: step(client, worker, 'REQUEST', request),
    offer: step(worker, client, 'OFFER', offer),
    accept: step(client, worker, 'ACCEPT', {}),
    result: step(worker, client, 'RESULT', { status: 'success', output: { translation: 'Bonjour' } }),
    error: step(worker, client, 'ERROR', { code: 'UNAVAILABLE', message: 'Try later' }),
  };
}

/** Posts a manifest with these intents. */
export const announce = (a, intents, more = {}) =>
  a.send('MANIFEST', { id: 'main', name: a.name ?? 'Agent', intents: intents.map((id) => ({ id })), ...more });

/** Posts a few finished and unfinished conversations, and manifests. Returns the agents and the conversations. */
export async function seed(relay) {
  const [alice, bob, carol] = await Promise.all(['Alice', 'Bob', 'Carol'].map((name) => newAgent(relay, name)));
  await announce(bob, ['translation.en_fr', 'summary.text'], { description: 'Translates and summarizes.',
    supported_languages: ['en', 'fr'], pricing: { model: 'fixed', fixed_price: 0.005, currency: 'USD' } });
  await announce(carol, ['image.caption'], { description: 'One line for each picture.' });
  const { did } = await (await fetch(`${relay.url}/.well-known/agora.json`)).json();
  const done = conversation(alice, bob, { title: 'Translate a greeting', home: { did, url: relay.url } });
  for (const step of ['request', 'offer', 'accept', 'result']) await done[step]();
  const active = conversation(alice, carol, { intent: 'image.caption', title: 'Caption a picture' });
  for (const step of ['request', 'offer', 'accept']) await active[step]();
  const pending = conversation(carol, bob, { intent: 'summary.text', title: 'Summarize a report' });
  for (const step of ['request', 'offer']) await pending[step]();
  const failed = conversation(alice, bob, { intent: 'summary.text' });
  await failed.request();
  await failed.error();
  return { alice, bob, carol, done, active, pending, failed };
}
