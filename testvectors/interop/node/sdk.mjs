// Behaves like the ecosystem's TypeScript SDK, which does not use this relay's extensions. It shows that the SDK works
// unchanged. Do not write an agent like this; see agent.mjs. The differences:
// - It posts {"envelope": …} to /v1/messages, without recipient and thread. Only payload.request_id connects messages.
// - It polls /v1/messages with since and timeout=1, ignores the HTTP status, and does not drop duplicates.
//   node sdk.mjs agent RELAY INTENT
//   node sdk.mjs client RELAY INTENT PARAMS [--recipient: poll only messages with us as recipient]
import { randomUUID } from 'node:crypto';
import { canonicalize, identity, sign, verify } from '../../../sdk/js/index.js';

const [role, url, intent, params, recipient] = process.argv.slice(2);
const me = await identity();

async function send(type, payload) {
  const envelope = await sign({
    version: '1.0', id: `msg_${randomUUID()}`, ts: new Date().toISOString(), type, sender: { id: me.did }, payload,
  }, me);
  const response = await fetch(`${url}/v1/messages`, {
    method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify({ envelope }),
  });
  const answer = await response.json();
  if (!answer.ok) throw new Error(`${type}: ${answer.error}: ${answer.message}`);
}

async function* subscribe(since) {
  for (;;) {
    const query = new URLSearchParams({ since, timeout: 1, ...(recipient && { recipient: me.did }) });
    const answer = await (await fetch(`${url}/v1/messages?${query}`)).json();
    if (!answer.ok) throw new Error(`poll: ${answer.error}: ${answer.message}`);
    for (const event of answer.events) {
      await verify(event);
      yield event;
    }
    since = answer.events.at(-1)?.ts ?? answer.lastTs ?? since;
  }
}

// Start one second early. If an event has exactly the ts that we start with, the relay takes it for the last event that
// we got, and does not deliver the events before it (PROTOCOL §9).
const start = new Date(Date.now() - 1000).toISOString();
if (role === 'agent') {
  await (await fetch(`${url}/health`)).json();
  console.log(me.did);
  const asked = new Map();
  for await (const { type, sender, payload } of subscribe(start)) {
    const { request_id } = payload;
    if (type === 'REQUEST' && payload.intent === intent && !asked.has(request_id)) {
      asked.set(request_id, { client: sender.id, params: payload.params });
      await send('OFFER', { request_id, plan: 'as the SDK does', price: { amount: 0.001, currency: 'USD' } });
    } else if (type === 'ACCEPT' && asked.get(request_id)?.client === sender.id && !asked.get(request_id).done) {
      asked.get(request_id).done = true;
      await send('RESULT', { request_id, status: 'success', output: { echo: asked.get(request_id).params, by: 'sdk' } });
    }
  }
} else {
  const request_id = `req_${randomUUID()}`;
  let agent;
  await send('REQUEST', { request_id, intent, params: JSON.parse(params) });
  for await (const { type, sender, payload } of subscribe(start)) {
    if (payload.request_id !== request_id) continue;
    if (type === 'OFFER' && !agent) {
      agent = sender.id;
      await send('ACCEPT', { request_id });
    } else if (type === 'RESULT' && sender.id === agent) {
      process.stdout.write(canonicalize(payload.output));
      break;
    }
  }
}
