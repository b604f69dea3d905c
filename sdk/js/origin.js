// From where a REQUEST comes (BRIDGE B-16), and the messages of a relay's hub (BRIDGE §2).
import { AgentError } from './errors.js';
import { isClosed, isObject, wasSealed } from './reading.js';

export const HUB_INTENT = 'chorus.hub.message';

// The prefixes of the threads that gateways open.
const THREADS = { hub: 'hub', job: 'jobs', dlv: 'channel', trn: 'a2a' };

const isText = (v) => typeof v === 'string';
const textOf = (v) => isText(v) ? v : '';
const isOptional = (v) => v === undefined || v === null || isText(v);

/** The output of a RESULT that answers a message of the hub. */
export const hubOutput = ({ text, culture, context }) => ({ reply: { original_text: text,
  ...culture && { sender_culture: culture }, ...context && { cultural_context: context } } });

/** See Client.hubMessage. */
export async function hubMessage(client, { envelope: e, intent, params }, { signal } = {}) {
  if (intent !== HUB_INTENT) {
    throw new AgentError('INTENT_NOT_SUPPORTED', `this is not a REQUEST with the intent ${HUB_INTENT}`);
  }
  await client.gatewayOf('hub', { signal });
  if (!wasSealed(e) || isClosed(e) || e.recipient?.id !== client.me?.did) {
    throw new AgentError('FORBIDDEN', 'what a gateway delivers must be sealed to its recipient');
  }
  if (e.sender.id !== await client.gateway({ signal })) {
    throw new AgentError('FORBIDDEN', "only the relay's gateway sends this; its DID is in the relay's document " +
      '/.well-known/agora.json');
  }
  const { envelope: said } = isObject(params) ? params : {};
  const names = ['sender_culture', 'cultural_context', 'conversation_id'];
  if (!isObject(said) || !names.every((name) => isOptional(said[name]))) {
    throw new AgentError('INVALID_REQUEST', 'the params of the delivery are malformed');
  }
  if (!textOf(said.sender_id) || !textOf(said.original_text)) {
    throw new AgentError('INVALID_REQUEST', 'the message needs envelope.sender_id and envelope.original_text');
  }
  return params;
}

/** See Client.origin. */
export async function origin(client, e, { signal } = {}) {
  const direct = { protocol: 'agora', sender: e.sender.id }, [prefix] = (e.thread?.id ?? '').split('_', 1);
  const protocol = e.thread?.id.includes('_') && Object.hasOwn(THREADS, prefix) ? THREADS[prefix] : undefined;
  if (!protocol || !wasSealed(e) || isClosed(e)) return direct;
  const names = await client.gatewayNames({ signal });
  if (!names.includes(protocol) || e.sender.id !== await client.gateway({ signal })) return direct;
  const { params, constraints } = e.payload, { envelope, message, caller } = isObject(params) ? params : {};
  const sender = { hub: envelope?.sender_id, jobs: constraints?.orchestrator_id, channel: message?.sender,
    a2a: textOf(caller?.name) + textOf(caller?.did) }[protocol];
  return { protocol, sender: textOf(sender) };
}

/** Asks one relay after the other, until one fits. Throws the error of the last one. */
export async function ofAny(clients, act) {
  let failed;
  for (const client of clients) {
    try { return await act(client); } catch (err) { failed = err; }
  }
  throw failed;
}
