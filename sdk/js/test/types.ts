// The uses below must agree with the declarations. tsc checks them; nothing runs them.
import {
  AgentError, Call, Cancelled, chacha20poly1305, checkEnvelope, Client, explain, identity, instant, keyOf, newThread,
  NoProof, open, readEnvelope, Refused, Relay, RelayError, Result, seal, sign, signedForm, Unacceptable, Unavailable,
  UnknownOutcome, verify, verifyChain, verifyEvidence, wasSealed, type CursorStore, type Envelope, type Identity,
  type Offer,
} from 'agora-relay';
import {
  dialler, FileCursor, loadKey, loadOrCreateKey, Network, saveKey, State, Client as NodeClient,
} from 'agora-relay/node';
import { hireTool, jobPrompt, untrusted } from 'agora-relay/tools';

export async function core(bytes: Uint8Array, signal: AbortSignal): Promise<string> {
  const me: Identity = await identity(), relay = new Relay('http://127.0.0.1:8789', { me, requireParties: true });
  const options = { to: me.did, thread: 't', seal: true, ttl: 60 };
  const receipt = await relay.post('OFFER', { request_id: 'r' }, options, { signal });
  if (receipt.thread?.state === 'ERROR') await relay.postEnvelope(readEnvelope(bytes), { retryLimited: false });
  const { events, cursor } = await relay.page({ before: 'end', limit: 10 });
  const trusted = new Relay('http://127.0.0.1:8788', { me, origin: 'https://relay.example', name: 'A' });
  await trusted.get('/health', { signal, wait: 1000 });
  const checked: Envelope = checkEnvelope(events[0]), proof: string | undefined = receipt.proof;
  await verify(readEnvelope(bytes));
  const { did: _, ...rest } = { ...(await sign({ typ: 'agora-read', did: me.did }, me)) };
  const sealed: Envelope = await sign(await seal(checked), me), payload = await open(sealed, me);
  const steps = await explain(payload), ok: boolean | null = steps[0].ok, nanoseconds: bigint = instant(sealed.ts);
  return cursor + proof + rest.sig + ok + nanoseconds + chacha20poly1305.seal(keyOf(me.did), bytes, bytes).length;
}

export async function turns(client: Client<Identity>, signal: AbortSignal): Promise<void> {
  await client.serveA2A(async (turn) => {
    if (turn.turn === 1) return turn.ask('Which colour?', { url: 'https://a.example/colours', mediaType: 'text/html' });
    await turn.update(`painting for ${turn.caller.kind === 'key' ? turn.caller.name : turn.task}`);
    const out = turn.artifact({ name: 'house' });
    await out.write(turn.text, { data: { n: 1 } });
    await out.close();
    if (turn.history.length > 5) return { state: 'TASK_STATE_REJECTED', message: turn.reply('too long') };
    return turn.signal.aborted ? undefined : 'Here it is.';
  }, { signal, intents: 'echo', work: (job) => job.params });
  const { url, origin } = await client.gatewayOf('a2a', { signal });
  await client.call(origin, `${url}/hooks`, { body: { label: 'x' } });
}

export async function agent(signal: AbortSignal): Promise<void> {
  const me = await loadOrCreateKey('key'), client = new NodeClient('http://127.0.0.1:8789', { me, log: console.log });
  await saveKey(new URL('file:///key'), await loadKey('key'));
  await client.serve(['echo'], {
    signal, concurrency: 2, quoteSeconds: 5, manifest: { name: 'Echo' }, cursor: new FileCursor('cursor'),
    quote: (job) => job.constraints.max_cost_usd === 0 ? null : { price: 0.1, etaSeconds: 1, validUntil: new Date() },
    async work(job, { signal: cancelled }) {
      if (cancelled.aborted) throw new AgentError('BUSY', 'try again', { details: { after: 5 } });
      return new Result(job.params, { artifacts: [], metrics: { ms: 1 } });
    },
    dropped: (request) => request.sender.id,
  });
}

const readMine = async (client: Client): Promise<Envelope> => (await client.thread('t')).events[0];

export async function client(signal: AbortSignal): Promise<string> {
  const me = await identity(), client: Relay = new Client('http://127.0.0.1:8789', { me, proofs: 'required' });
  if (!(client instanceof Client)) return '';
  const call: Call = await client.request('echo', { text: ['a', 1, null] },
    { to: me.did, maxCost: 1, deadline: new Date(), seal: true, ttl: 60, thread: newThread(), signal });
  for await (const offer of call.offers({ signal })) if (offer.price?.currency === 'USD') break;
  const offers: Offer[] = await call.collect({ seconds: 1 });
  await call.accept(await call.best((a, b) => (a.etaSeconds ?? 0) - (b.etaSeconds ?? 0)), { maxCost: Infinity });
  const { output, agent } = await call.result(), state: string = (await call.state()).state;
  await (await client.resume(call.thread, { requestId: call.requestId })).cancel('enough', { signal });
  const store: CursorStore = { load: () => null, save: async () => {} };
  for await (const e of client.follow({ type: 'RESULT', recipient: me.did }, { cursor: store, from: 'oldest' })) {
    if (wasSealed(e)) await verify(signedForm(e));
  }
  for (const posted of await client.postAll([signedForm(await readMine(client))], { signal })) {
    if (posted.status === 'fulfilled') return posted.value.id + posted.value.expiresAt;
  }
  if (await client.proves()) return (await client.proof(await readMine(client))).text;
  for await (const { id, online } of client.directory({ intent: 'echo' })) if (online) return id;
  const { manifests } = await client.agent(agent), { thread } = await client.thread('t', me.did);
  return offers.length + output + state + manifests.length + thread.state + (await client.relayDid());
}

// A client with an identity has one, and outputs and params may have types.
export async function typed(): Promise<string> {
  const me = await identity(), client = new NodeClient('http://127.0.0.1:8789', { me });
  const price = { amount: 0.1, currency: 'USD' };
  await client.serve<{ text: string }, number>('length', { price, work: (job) => job.params.text.length });
  const { output } = await client.ask<number, { text: string }>('length', { text: 'a' }, { maxCost: 1, seconds: 1 });
  const { nearest, price: lowest } = await client.outlook('length', { to: me.did }), all: string[] = nearest;
  const call = await client.resume<number>('t'), half: number = (await call.result()).output / 2 + output;
  // @ts-expect-error: a client without an identity may have none
  new Client('http://127.0.0.1:8789').me.did;
  // @ts-expect-error: the output is a number
  output.length;
  return client.me.did + all.length + (lowest ?? 0) + half;
}

export async function deal(messages: Envelope[], evidence: string): Promise<string> {
  const { price, home, status } = await verifyChain(messages), found = await verifyEvidence(evidence);
  return (price?.amount ?? 0) + home.did + status + (found.kind === 'accepts' ? found.client : found.relay);
}

export async function relays(signal: AbortSignal): Promise<string> {
  const me = await identity(), state = new State('state'), urls = ['https://a.example', 'https://b.example'];
  const network = new Network(urls, { me, state, discover: dialler, silence: 10, offerWait: 20, log: console.log,
    moved: ({ from, to, why }) => console.log(`${from.url} ${why}; continued at ${to.url}`) });
  await network.serve('echo', { manifest: { name: 'Echo' }, attempts: 1, work: ({ params }) => params, signal });
  for await (const e of network.follow({ type: 'REQUEST' }, { from: 'oldest' })) await network.agent(e.sender.id);
  const call = await network.request<number>('echo', 1, { maxCost: 1 });
  await call.accept(await call.best('first'), { signal });
  await network.post('MANIFEST', { id: 'main', intents: [] });
  const { output } = await call.result(), half: number = output / 2, home: string | undefined = call.home?.url;
  await state.setCaught((await network.info())[0].did ?? '');
  // @ts-expect-error: browsers cannot check addresses
  new Network(urls, { me, discover: true });
  return home + String(half) + (await network.ask<string>('echo', 'a')).output.length;
}

export function describe(err: unknown): string {
  if (err instanceof NoProof || err instanceof UnknownOutcome) return err.envelope.id + err.cause.message;
  if (err instanceof RelayError) return `${err.code} ${err.status} ${err.retryAfter / 1000} ${err.retryable}`;
  if (err instanceof Refused) return `${err.code} ${err.details.reason}`;
  if (err instanceof AgentError) return `${err.code} ${err.reason} ${err.from} ${err.retryable}`;
  if (err instanceof Unacceptable || err instanceof Cancelled) return `${err.code} ${err.retryable}`;
  return err instanceof Unavailable ? err.code satisfies 'NO_WEBCRYPTO' : 'unknown';
}

// @ts-expect-error: there is no such message type
new Relay('http://127.0.0.1:8789').post('OFERR', {});
// @ts-expect-error: a seed has bytes, not text
identity('01');
// @ts-expect-error: verify is given an envelope, not its bytes
verify(new Uint8Array());
// @ts-expect-error: an agent needs a function that works
new Client('http://127.0.0.1:8789').serve('echo', {});
// @ts-expect-error: calls are made by request and resume
new Call();
// @ts-expect-error: there is no such rule for proofs
new Client('http://127.0.0.1:8789', { proofs: 'on' });
// @ts-expect-error: there is no such rule
(call: Call) => call.best('cheap');

export async function model(client: NodeClient<Identity>, network: Network, signal: AbortSignal): Promise<string> {
  const tool = hireTool(client, 'text.upper', { maxCost: 1, rule: 'first', parameters: { type: 'object' } });
  await network.serve('echo', { work: (job) => jobPrompt(job) });
  const { name, execute } = hireTool(network, 'echo');
  return name + tool.description + await execute({ text: 'a' }, { signal }) + untrusted('a', 'b', [1], { limit: 5 });
}
