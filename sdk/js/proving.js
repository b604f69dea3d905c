// When a client asks a relay for proofs, and what it does if they do not hold (docs/PROOFS.md).
import { Refused, RelayError } from './agora.js';
import { contentHash } from './chain.js';
import { isPermanent, NoProof } from './errors.js';
import { verifyProof } from './proof.js';

/** Whether a value is one of the option proofs. */
export const isRule = (proofs) => ['off', 'prefer', 'required'].includes(proofs);

/** Whether the client wants proofs and the relay can give them. */
export const asks = async (client, { signal } = {}) => client.proofs !== 'off' && client.proves({ signal });

/** Checks the proof in the receipt of a message. If it does not hold, or must be there and is not, the proof is read
 *  once from the relay. Returns the receipt with the proof that holds. Throws NoProof. */
export async function proved(client, message, { proof, ...receipt }, { signal } = {}) {
  if (client.proofs === 'off' || !proof && client.proofs === 'prefer') return receipt;
  let wrong;
  if (proof) {
    const relay = await client.relayDid({ signal }).catch((err) => { wrong = err; });
    signal?.throwIfAborted();
    if (!relay && client.proofs === 'prefer') { // it has stored the message, and is not there any more
      client.log(`the proof of ${message.id} is not checked: the relay does not say who it is (${wrong.message})`);
      return receipt;
    }
    try {
      if (!relay) throw wrong;
      await verifyProof(proof, { message, relay });
      return { ...receipt, proof };
    } catch (err) { wrong = err; }
  }
  try {
    const { text } = await client.proof(message, { signal });
    return { ...receipt, proof: text };
  } catch (err) {
    signal?.throwIfAborted();
    throw new NoProof(message, wrong ?? err, !wrong && err.status === 404);
  }
}

/** Why an agent must not begin to work after the ACCEPT of a REQUEST; undefined: it may. Both are as they were signed.
 *  Throws an error if reading the proof has failed for the moment. */
export async function objection(client, accept, request, { signal }) {
  if (client.proofs !== 'required' && !await asks(client, { signal })) return undefined;
  let why;
  try {
    const { leaf } = await client.proof(accept, { signal });
    if (leaf.request === await contentHash(request)) return undefined;
    if (leaf.request) return 'the proof of the relay says that the ACCEPT belongs to another REQUEST';
    why = 'the proof of the relay does not say to which REQUEST the ACCEPT belongs';
  } catch (err) {
    const isWrong = err instanceof Refused && !(err instanceof RelayError);
    if (isWrong) return 'the proof of the relay for the ACCEPT does not hold';
    if (err.status !== 404 && !isPermanent(err)) throw err;
    why = 'the relay gives no proof that it has stored the ACCEPT';
  }
  if (client.proofs === 'required') return why;
  client.log(`${why}; working without one`);
  return undefined;
}
