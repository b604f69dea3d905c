import type { Envelope } from './agora.js';

/** A witness who has signed the checkpoint of a proof, and when, in seconds since 1970. */
export interface Cosigned { name: string; at: number }

/** The leaf of a message. request is the hash of the REQUEST that opened the thread. Hashes are in hex. */
export interface MessageLeaf { text: string; salt: string; event: string; received: string; request?: string }

/** Leaf 0 of a log: when it began, and the log before it. */
export interface StartLeaf {
  text: string;
  began: string;
  previous?: { origin: string; size: string; root: string };
}

/** What a valid proof says about the log of a relay. */
export interface VerifiedProof {
  relay: string;
  epoch: string;
  index: number;
  size: number;
  leaf: MessageLeaf | StartLeaf;
  cosigned: Cosigned[];
}

/** Checks a proof. With message, it must be the proof of this message by this relay. witnesses are verifier keys.
 *  Throws Refused with INVALID_PROOF. */
export function verifyProof(text: string,
  options?: { message?: Envelope; relay?: string; witnesses?: string[] }): Promise<VerifiedProof>;

/** Checks evidence against a relay. Throws Refused with INVALID_PROOF if it shows nothing. */
export function verifyEvidence(evidence: string | Uint8Array): Promise<{ relay: string;
  kind: 'fork' | 'index' | 'twice' | 'steps' | 'time' | 'chain' }>;
