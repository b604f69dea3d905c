import type { Envelope } from './agora.js';

/** What a chain proves without any relay. home is the relay that decides the thread. price is the OFFER's price:
 *  undefined if the OFFER has none or is sealed, and with an empty currency if the OFFER names none. accepted says that
 *  the chain has an ACCEPT. status is the RESULT's status. */
export interface Deal {
  client: string;
  agent: string;
  home: { did: string; url: string };
  intent: string;
  price: { amount: number; currency: string } | undefined;
  accepted: boolean;
  status: string | undefined;
}

/** The content hash of a message, in hex. */
export function contentHash(message: Envelope): Promise<string>;

/** Checks a chain: the messages REQUEST, OFFER, and perhaps ACCEPT and RESULT. Each is signed, and names by its hash
 *  the one that it answers. Throws Refused; details.index says which message is wrong. */
export function verifyChain(messages: Envelope[]): Promise<Deal>;
