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

/** A step from the leaf to the root: the hash beside the path, on which side it is, and the hash of both. Hashes are in
 *  base64, as in the proof. */
export interface PathStep { hash: string; isLeft: boolean; parent: string }

/** What a valid proof says about the log of a relay. hash is the leaf's hash, in base64. unchecked lists the signatures
 *  of others than the relay and the witnesses. If they state a time, the list has it. */
export interface VerifiedProof {
  relay: string;
  epoch: string;
  index: number;
  size: number;
  leaf: MessageLeaf | StartLeaf;
  hash: string;
  path: PathStep[];
  cosigned: Cosigned[];
  unchecked: { name: string; at: number | undefined }[];
}

/** Checks a proof. With message, it must be the proof of this message by this relay. witnesses are verifier keys.
 *  Throws Refused with INVALID_PROOF. */
export function verifyProof(text: string,
  options?: { message?: Envelope; relay?: string; witnesses?: string[] }): Promise<VerifiedProof>;

/** Checks evidence against a relay, or against a client that has accepted two agents for one job. Throws Refused with
 *  INVALID_PROOF if it shows nothing. */
export function verifyEvidence(evidence: string | Uint8Array): Promise<
  | { relay: string; kind: 'fork' | 'index' | 'twice' | 'steps' | 'time' | 'chain' }
  | { client: string; kind: 'accepts' }>;
