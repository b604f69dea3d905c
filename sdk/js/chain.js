// Chains of messages: a deal is proved by its messages alone, without any relay (docs/PROTOCOL.md §4).
import { canonicalize, canonicalText, checkEnvelope, isSealed, Refused, sha256, threadOf, verify } from './agora.js';

const MAX_BYTES = 1 << 20; // of a message
const CHAIN = ['REQUEST', 'OFFER', 'ACCEPT', 'RESULT'];

/** Bytes in hex. */
export const hex = (bytes) => Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');

/** The content hash of a message, in hex. */
export const contentHash = async (message) => hex(await sha256(canonicalize(message)));

function must(ok, message) {
  if (!ok) throw new Refused('INVALID_PROOF', message);
}

/** Checks a chain: the messages REQUEST, OFFER, and perhaps ACCEPT and RESULT. Each is signed, and names by its hash
 *  the one that it answers. Returns what they prove. Throws Refused; details.index says which message is wrong. */
export async function verifyChain(messages) {
  const isChain = Array.isArray(messages) && messages.length >= 2 && messages.length <= CHAIN.length;
  must(isChain, 'a chain has two to four messages');
  for (const [i, m] of messages.entries()) {
    try { await checkLink(messages.slice(0, i), m); } catch (err) {
      if (!(err instanceof Refused)) throw err;
      throw new Refused('INVALID_PROOF', `message ${i + 1}, ${CHAIN[i]}: ${err.message}`, { index: i });
    }
  }
  const [request, offer, accept, result] = messages, { amount, currency } = offer.payload.price ?? {};
  const isPrice = typeof amount === 'number' && typeof (currency ?? '') === 'string';
  return {
    client: request.sender.id, agent: offer.sender.id, home: request.meta.home, intent: request.payload.intent,
    price: isPrice ? { amount, currency: currency ?? '' } : undefined, accepted: accept !== undefined,
    status: result?.payload.status,
  };
}

async function checkLink(before, m) {
  await verify(checkEnvelope(m, { maxBytes: MAX_BYTES }));
  must(m.type === CHAIN[before.length], 'it has another type');
  const [request, offer] = before, last = before.at(-1), { home, re } = m.meta ?? {};
  must(home !== undefined, 'it has no meta.home');
  if (!last) return;
  must(canonicalText(home) === canonicalText(request.meta.home), 'its meta.home is not that of the REQUEST');
  must(re !== undefined, `it has no meta.re, so it does not say which ${last.type} it answers`);
  const isAnswer = re === await contentHash(last);
  must(isAnswer, `its meta.re is not the hash of the ${last.type}, so it answers another message`);
  must(threadOf(m) === threadOf(request), 'it is of another thread than the REQUEST');
  const idOf = ({ payload }) => payload.request_id ?? '';
  must(idOf(m) === idOf(request), 'its request_id is not that of the REQUEST');
  checkParties(m, request, offer);
}

// Who has sent m, and to whom. Without a recipient, a message is for everybody.
function checkParties(m, request, offer) {
  const sender = m.sender.id, client = request.sender.id, agent = (offer ?? m).sender.id;
  const isAsked = agent !== client && [undefined, agent].includes(request.recipient?.id);
  must(m.type !== 'OFFER' || isAsked, 'its sender is not an agent that the REQUEST asks');
  const [from, to] = m.type === 'ACCEPT' ? [client, agent] : [agent, client];
  must(sender === from, `its sender is not that of the ${m.type === 'ACCEPT' ? 'REQUEST' : 'OFFER'}`);
  must([undefined, to].includes(m.recipient?.id), 'it is for somebody else');
}

/** Checks the events of evidence against a client: two chains of REQUEST, OFFER and ACCEPT. Returns the client. */
export async function checkAccepts(events) {
  const two = [events.slice(0, 3), events.slice(3)], deals = [];
  for (const messages of two) deals.push(await verifyChain(messages));
  must(deals[0].agent !== deals[1].agent, 'both OFFERs are by one agent');
  must(deals[0].client === deals[1].client, 'the REQUESTs are by two clients');
  const requests = two.map(([request]) => request);
  const [root, other] = await Promise.all(requests.map(async (r) => r.meta.continues ?? await contentHash(r)));
  must(root === other, 'the REQUESTs are of two jobs: neither continues the other, nor both the same one');
  must(!requests.some(isSealed), 'the payload of a REQUEST is sealed, so nobody else can tell what it asks for');
  const [payload, another] = requests.map(({ payload: { request_id, ...rest } }) => canonicalText(rest));
  must(payload === another, 'the REQUESTs have different payloads, so they are of two jobs');
  return deals[0].client;
}
