// The uses below must agree with agora.d.ts. tsc checks them; nothing runs them.
import {
  chacha20poly1305, checkEnvelope, explain, identity, instant, keyOf, open, readEnvelope, Refused, Relay, RelayError,
  seal,
  sign, Unavailable, verify, type Envelope, type Identity,
} from 'agora-relay';

export async function agent(bytes: Uint8Array, signal: AbortSignal): Promise<string> {
  const me: Identity = await identity(), relay = new Relay('http://127.0.0.1:8789', { me });
  const place = await relay.newest({ recipient: me.did, broadcast: true }, { signal });
  for await (const e of relay.follow({ recipient: me.did, type: 'REQUEST' }, place, { signal, spacing: 250 })) {
    const answer = { to: e.sender.id, thread: e.thread?.id, seal: true };
    const receipt = await relay.post('OFFER', { request_id: e.payload.request_id }, answer, { signal });
    if (receipt.thread?.state === 'ERROR') break;
  }
  const { events, cursor } = await relay.page({ before: 'end', limit: 10 });
  const trusted = new Relay('http://127.0.0.1:8788', { me, origin: 'https://relay.example' });
  await trusted.get('/health', { signal, wait: 1000 });
  const checked: Envelope = checkEnvelope(events[0]);
  await verify(readEnvelope(bytes));
  const { did: _, ...rest } = { ...(await sign({ typ: 'agora-read', did: me.did }, me)) };
  const sealed: Envelope = await sign(await seal(checked), me), payload = await open(sealed, me);
  const steps = await explain(payload), ok: boolean | null = steps[0].ok, nanoseconds: bigint = instant(sealed.ts);
  return cursor + rest.sig + ok + nanoseconds + chacha20poly1305.seal(keyOf(me.did), bytes, bytes).length;
}

export function describe(err: unknown): string {
  if (err instanceof RelayError) return `${err.code} ${err.status} ${err.retryAfter / 1000} ${err.retryable}`;
  if (err instanceof Refused) return `${err.code} ${err.details.reason}`;
  return err instanceof Unavailable ? err.code satisfies 'NO_WEBCRYPTO' : 'unknown';
}

// @ts-expect-error: there is no such message type
new Relay('http://127.0.0.1:8789').post('OFERR', {});
// @ts-expect-error: a seed has bytes, not text
identity('01');
// @ts-expect-error: verify is given an envelope, not its bytes
verify(new Uint8Array());
