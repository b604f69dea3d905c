/** What JSON can express. */
export type Json = null | boolean | number | string | Json[] | { [name: string]: Json | undefined };
export type JsonObject = { [name: string]: Json | undefined };

// <protocol: types>
export type MessageType = 'REQUEST' | 'OFFER' | 'ACCEPT' | 'RESULT' | 'ERROR' | 'CANCEL' | 'MANIFEST';
// </protocol>

/** The tables of the protocol that clients need. */
export const protocol: {
  /** For each type: who may send it to a thread, and the members of its payload that sealing leaves readable. */
  readonly types: Readonly<Record<MessageType, { readonly by: string; readonly clear: readonly string[] }>>;
  /** The states of a thread. */
  readonly states: readonly string[];
  /** Refusals which prove that the relay has stored no earlier attempt with the same bytes (PROTOCOL §3). */
  readonly settles: readonly string[];
  /** Refusals of an agent's message which mean that the thread has changed since the agent has read it. */
  readonly movedOn: readonly string[];
  /** Codes of agents after which a new request may succeed. */
  readonly agentRetryable: readonly string[];
  /** Every code of a relay, with its HTTP status. */
  readonly status: Readonly<Record<string, number>>;
  /** Seconds that a message without meta.ttl is kept. */
  readonly defaultTtl: number;
  /** Seconds that a message is kept by default. */
  readonly draftTtl: number;
};

/** A party of a message. id is a did:key. */
export interface Party { id: string; name?: string; url?: string; [name: string]: Json | undefined }

/** A message. The relay delivers it with all members that its sender has signed, known or not. */
export interface Envelope {
  version: '1.0';
  id: string;
  /** RFC 3339. */
  ts: string;
  type: MessageType;
  sender: Party;
  /** Absent in a broadcast. */
  recipient?: Party;
  payload: JsonObject;
  /** If absent, payload.request_id is the id of the thread; see threadOf. */
  thread?: { id: string; [name: string]: Json | undefined };
  /** ttl is in seconds. */
  meta?: {
    ttl?: number; hop?: number; relay?: string | string[]; home?: Home; re?: string; continues?: string;
    [name: string]: Json | undefined;
  };
  /** Absent until the message is signed. */
  sig?: string;
  [name: string]: Json | undefined;
}

/** The one relay that decides a thread (RELAYS §1): its did:key, and the origin at which it can be reached. */
export type Home = { did: string; url: string };

/** Who signs and opens. seed has 32 bytes and is secret. */
export interface Identity { readonly did: string; readonly seed: Uint8Array }

/** A refusal by the rules of the protocol. */
export class Refused extends Error {
  constructor(code: string, message: string, details?: JsonObject);
  /** A code of the protocol (PROTOCOL §5), INVALID_KEY for a seed or a key file, or a code of RelayError. */
  readonly code: string;
  readonly details: JsonObject;
  /** Whether the same may succeed later. */
  readonly retryable: boolean;
}

/** A request without a successful answer. code is the relay's code, NO_ANSWER if it cannot be reached, or
 *  INVALID_ANSWER if the answer is not from an Agora relay. */
export class RelayError extends Refused {
  constructor(code: string, message: string, about: Partial<Omit<RelayError, 'noEffect' | 'waitsTooLong'>>);
  /** The HTTP status; 0: there was no answer. */
  readonly status: number;
  /** Whether the same request may succeed later. */
  readonly retryable: boolean;
  /** The time in milliseconds that the relay asks to wait; 0: it asks for none. */
  readonly retryAfter: number;
  /** Whether the relay asks for a signed read. */
  readonly challenged: boolean;
  /** Whether the request certainly did not reach a server. Browsers do not tell, so it is always false there. */
  readonly notSent: boolean;
  /** Whether the request had certainly no effect. */
  get noEffect(): boolean;
  /** Whether the relay asks for a longer delay than a post waits. */
  get waitsTooLong(): boolean;
}

/** The error of a post if the relay may or may not have stored the message: the connection broke or the server failed,
 *  and no later answer shows what happened. It is safe to post the same envelope again, with Relay.postEnvelope. A
 *  newly signed message may have the same effect a second time. */
export class UnknownOutcome extends Error {
  constructor(envelope: Envelope, cause: Error);
  readonly code: 'UNKNOWN_OUTCOME';
  readonly retryable: true;
  readonly details: JsonObject;
  /** The signed message. */
  readonly envelope: Envelope;
  /** The last failure. */
  readonly cause: Error;
}

/** WebCrypto, or an algorithm of it, is missing. Nothing is known then about a signature. */
export class Unavailable extends Error {
  constructor(cause?: unknown);
  readonly code: 'NO_WEBCRYPTO';
  readonly retryable: false;
}

/** Unpadded base64url of bytes. */
export function encode64(bytes: Uint8Array): string;
/** The SHA-256 hash of bytes, 32 bytes. */
export function sha256(bytes: Uint8Array): Promise<Uint8Array>;
/** The bytes of unpadded base64url, or undefined if text is not the one spelling of them. */
export function decode64(text: string): Uint8Array | undefined;

/** Parses bytes as one I-JSON value. Throws Refused, with INVALID_REQUEST. The limits are 64 levels and 1,000 costly
 *  numbers (PROTOCOL §1) by default. */
export function parse(bytes: Uint8Array | ArrayBuffer, limits?: { depth?: number; costly?: number }): any;
/** The RFC 8785 form of a value. A member with the value undefined is left out. */
export function canonicalText(value: unknown): string;
export function canonicalize(value: unknown): Uint8Array;

/** The 32 key bytes of a did:key. Throws Refused with INVALID_DID unless did is the one spelling of a usable key. */
export function keyOf(did: string): Uint8Array;
/** The did:key of 32 key bytes. Throws what keyOf throws. */
export function didOf(key: Uint8Array): string;
/** The identity of a seed of 32 bytes; without a seed, a new identity. */
export function identity(seed?: Uint8Array): Promise<Identity>;
/** The identity in a key file, as agora keygen writes it. Throws Refused with INVALID_KEY. */
export function readKeyFile(text: string): Promise<Identity>;
/** The text of a key file. Save it so that only its owner can read it. */
export function formatKeyFile(me: Identity): string;

/** Parses a body: an envelope, or {"envelope": …} around one. Checks all that needs neither a clock nor a key
 *  (PROTOCOL §1). maxBytes is 131072 by default. */
export function readEnvelope(bytes: Uint8Array, limits?: { maxBytes?: number }): Envelope;
/** Checks what readEnvelope checks, for an envelope that is parsed already, such as an event of a page. Returns it. */
export function checkEnvelope(e: unknown, limits?: { maxBytes?: number }): Envelope;
/** Whether v has the form of the home of a thread (RELAYS R-1). */
export function isHome(v: unknown): v is Home;
/** Whether v has the form of the id of a message or a thread (PROTOCOL §1). */
export function isId(v: unknown): v is string;
/** The id of the message's thread. */
export function threadOf(e: Pick<Envelope, 'thread' | 'payload'>): string;
/** A new id such as msg_01kq…: prefix, an underscore and a ULID in lower case, with the time in milliseconds. */
export function newId(prefix: string, ms?: number): string;
/** Converts an RFC 3339 date-time to nanoseconds since 1970. Throws Refused. */
export function instant(text: string): bigint;

/** The bytes that the signature of e covers. */
export function covered(e: object): Uint8Array;
/** Returns e with the signature of me. */
export function sign<E extends object>(e: E, me: Identity): Promise<E & { sig: string }>;
/** Throws Refused unless the sender and the recipient are valid did:keys and the signature is the sender's. Throws
 *  Unavailable where WebCrypto is missing. Check the form of e first, with readEnvelope or checkEnvelope. */
export function verify(e: Envelope): Promise<void>;
/** Whether sig, 64 bytes, is the signature of did over message. Throws what keyOf throws, and Unavailable. */
export function verifies(sig: Uint8Array, message: Uint8Array, did: string): Promise<boolean>;

/** What verification checks, one step after the other, for people. Returns the steps up to the first that fails. It
 *  never throws. */
export function explain(e: unknown): Promise<Step[]>;

/** A step of explain. ok is null if WebCrypto is missing, so that the step cannot be taken. Each step has the values
 *  that are named below, unless it fails before they are known. Values in hex are lower case. */
export interface Step {
  /** 1, 2, … */
  step: number;
  name: 'form' | 'canonical' | 'sender' | 'recipient' | 'signature' | 'equation';
  ok: boolean | null;
  /** A sentence. */
  detail: string;
  /** form: of the message. */
  id?: string;
  type?: MessageType;
  /** canonical: the signed bytes as text, their number, and their SHA-256 in hex (null without WebCrypto). */
  text?: string;
  bytes?: number;
  sha256?: string | null;
  /** sender, recipient: the identifier, its multicodec prefix (ed01) and its key, both in hex. */
  did?: string;
  multicodec?: string;
  key?: string;
  /** signature: as in the envelope, and its two halves in hex. equation has R too. */
  sig?: string;
  R?: string;
  S?: string;
  /** equation: k is SHA-512(R, key, text) modulo the order, computed is the encoding of S·B - k·A; both in hex. The
   *  signature is good if computed is R. */
  k?: string;
  computed?: string;
}

/** Makes a token for one GET of target (path and query as sent) from the relay whose origin is aud (PROTOCOL §8). */
export function readToken(aud: string, target: string, me: Identity, ts?: string, nonce?: string): Promise<string>;
/** Makes a token for one request to a gateway of the relay (GATEWAYS §3). body has the bytes that are sent. */
export function callToken(aud: string, request: { method: string; target: string; body: Uint8Array }, me: Identity,
  ts?: string): Promise<string>;
/** The signature of the identity me over bytes, in base64url. */
export function signature(message: Uint8Array, me: Identity): Promise<string>;
/** Returns the signer of a token for this request. now is in nanoseconds, as in instant. details.reason of the error
 *  says why a token is refused. Only a relay needs to check that a token is used once. */
export function checkRead(
  token: string, request: { origin: string; method: string; target: string }, now: bigint,
): Promise<string>;

/** Whether the payload of e is sealed. */
export function isSealed(e: Pick<Envelope, 'type' | 'payload'>): boolean;
/** Opens e, which is sealed to me, and returns the payload. It verifies e. All failures throw the same Refused. */
export function open(e: Envelope, me: Identity): Promise<JsonObject>;
/** Returns e with its payload sealed to its recipient, to be signed. Only tests pass an ephemeral key of 32 bytes. */
export function seal<E extends Envelope>(e: E, ephemeral?: Uint8Array): Promise<E>;
/** The info of the sealing: the members of e that the ciphertext is bound to, in RFC 8785 form. */
export function place(e: Envelope): Uint8Array;
/** The X25519 public key, 32 bytes, of an Ed25519 public key that keyOf has returned. */
export function x25519Public(key: Uint8Array): Uint8Array;
/** The X25519 private key, 32 bytes, of an Ed25519 seed. */
export function x25519Private(seed: Uint8Array): Promise<Uint8Array>;

/** ChaCha20-Poly1305 (RFC 8439). A key has 32 bytes, a nonce 12. Never use a nonce twice with the same key. */
export const chacha20poly1305: {
  /** Returns the ciphertext and its tag of 16 bytes. */
  seal(key: Uint8Array, nonce: Uint8Array, plaintext: Uint8Array, aad?: Uint8Array): Uint8Array;
  /** Returns the plaintext. Throws Refused if the tag is wrong. */
  open(key: Uint8Array, nonce: Uint8Array, sealed: Uint8Array, aad?: Uint8Array): Uint8Array;
};

/** Which events to read. An event must match all members. */
export interface Filter {
  recipient?: string;
  /** With recipient: broadcasts too. */
  broadcast?: boolean;
  sender?: string;
  type?: MessageType;
  thread?: string;
}

export interface Page { ok: true; events: Envelope[]; hasMore: boolean; cursor: string; lastTs?: string }

export interface Receipt {
  ok: true;
  id: string;
  cursor: string;
  duplicate: boolean;
  expiresAt: string;
  thread?: { id: string; client: string; state?: string };
  /** The proof that the relay has the message in its log (docs/PROOFS.md). Relay does not check it; Client does. */
  proof?: string;
}

/** The receipt of a message of a bulk request. */
export type BulkReceipt = Omit<Receipt, 'ok' | 'cursor'> & { cursor?: string };

export interface Thread {
  id: string;
  client: string;
  state: 'PENDING' | 'ACTIVE' | 'COMPLETED' | 'ERROR';
  requestId?: string;
  recipient?: string;
  agent?: string;
  offers: { agent: string; id: string; at: string }[];
  offersMade?: number;
  transitions: { from: string; to: string; type: string; by?: string; id?: string; at: string }[];
  deadline?: string;
}

export interface AgentQuery { intent?: string; q?: string; online?: boolean; limit?: number; cursor?: string }

export interface Agent { id: string; online: boolean; lastSeen?: string; envelope: Envelope }

/** Ends a call early. The call then throws the reason of the signal. A message that was being posted may have been
 *  stored. */
export interface Abortable { signal?: AbortSignal }

/** How often a message is sent before a post gives up. */
export const POST_ATTEMPTS: number;
/** How long a post waits at most before it is repeated, in milliseconds. */
export const POST_PATIENCE: number;
/** Waits, or throws the signal's reason as soon as it is aborted. */
export function pause(ms: number, signal?: AbortSignal): Promise<void>;
/** The pause in milliseconds before the next attempt, after this number of earlier failures. It is partly random and at
 *  least atLeast. It about doubles with each failure, up to limit, 30000 by default. */
export function backoff(failures: number, atLeast?: number, limit?: number): number;
/** A text of others that is safe to print: at most max characters, 1000 by default, and \uXXXX in place of
 *  characters that control a terminal, are invisible, or change the direction of writing, except those in keep. If
 *  text is JSON without line breaks and fits into max, the result is JSON with the same value. */
export function printable(text: string, options?: { max?: number; keep?: string }): string;

export interface RelayOptions<Me extends Identity | undefined = Identity | undefined> {
  /** Who posts and signs reads. Without an identity the relay is only read, and reads are not signed. */
  me?: Me;
  /** sender.name and sender.url of the messages. */
  name?: string;
  home?: string;
  /** The relay's own address, if the given URL is a proxy that you trust. Reads are then signed for it. */
  origin?: string;
  /** Send nothing to a relay that shows directed messages to others than their parties. */
  requireParties?: boolean;
  /** Sends the requests; by default the global fetch. */
  fetch?: typeof globalThis.fetch;
  /** The time in milliseconds since 1970; by default Date.now. */
  clock?: () => number;
}

/** How a message is posted. */
export interface PostOptions {
  /** The recipient; without one, the message is a broadcast. */
  to?: string;
  thread?: string;
  /** How long the relay keeps the message, in seconds; 86400 by default. */
  ttl?: number;
  /** Only the recipient can read the payload. */
  seal?: boolean;
  /** Members of meta (RELAYS §1, §2, §4): the home of the thread, the hash of the message that this one answers, and
   *  the hash of the REQUEST that this one continues. */
  home?: Home;
  re?: string;
  continues?: string;
}

export interface Posting extends Abortable {
  /** false: a message that the relay refuses with 429 is not repeated. Default true. */
  retryLimited?: boolean;
  /** Gets the message after it was signed, and before it is sent. */
  signed?: (e: Envelope) => unknown;
  /** Gets the error of each attempt that will be repeated. */
  failed?: (err: RelayError) => void;
}

/** A relay, used as the identity me. It does not verify what it reads; Client does. Methods throw RelayError, and
 *  Refused if they refuse something themselves. Reads are signed if the relay's document says parties. At an open
 *  relay, polls are signed too: that shows there that me is online (PROTOCOL §8). */
export class Relay<Me extends Identity | undefined = Identity | undefined> {
  /** Throws TypeError if url does not begin with http:// or https://, or me is no identity. */
  constructor(url: string | URL, options?: RelayOptions<Me>);
  url: string;
  me: Me;
  /** Whether the relay is known to show directed messages to their parties only. It is false before the first read. */
  readonly isPrivate: boolean;
  /** The time in milliseconds since 1970, by the clock. If the relay has refused a message because of its time, this is
   *  the relay's time. */
  now(): number;
  /** The relay's document: who it is, its limits, and who may read. */
  about(options?: Abortable): Promise<any>;
  /** Throws if the relay accepts no messages. version is the version of the protocol. */
  health(options?: Abortable): Promise<{ ok: true; version: string; [name: string]: Json | undefined }>;
  /** One page of events, which are not verified. query has the parameters of GET /events. */
  page(query?: Record<string, string | number | boolean | undefined>, options?: Abortable): Promise<Page>;
  /** Is called before a message is sent. Client throws a RelayError with OTHER_RELAY here if the relay is not the home
   *  that the message names. */
  assureHome(e: Envelope, options?: Abortable): Promise<void>;
  /** Signs and posts a message and returns the receipt.
   *
   *  It repeats the same bytes after a temporary failure (no answer, 429, 5xx), eight times at most, and waits as long
   *  as the relay asks for. If that is more than two minutes, it throws at once. If the relay refuses the time of the
   *  message, it sets its clock to the relay's, by at most a day, and signs once more with the same id.
   *
   *  Errors: UnknownOutcome; RelayError if the relay has refused the message; Refused if it cannot be signed. */
  post(type: MessageType, payload: JsonObject, options?: PostOptions, posting?: Posting): Promise<Receipt>;
  /** Posts a message that is signed already. It repeats it as post does, and never changes it. Errors: those of
   *  post. */
  postEnvelope(e: Envelope, posting?: Posting): Promise<Receipt>;
  /** Posts messages that are signed already, whose canonical forms are the lines, in one request. Each result is a
   *  receipt or a RelayError. stopped says why the relay has stopped before the last line. With proofs, the relay is
   *  asked for proofs in the receipts. Client.postAll also continues. */
  postBulk(messages: readonly Envelope[], lines: readonly Uint8Array[], options?: Abortable & { proofs?: boolean }):
    Promise<{ results: (BulkReceipt | RelayError)[]; stopped?: RelayError }>;
  /** Any answer of the relay to a GET of path, which has the query too. The answer of /proofs is a text. wait is how
   *  long the relay may hold the request, in milliseconds (default 0). */
  get(path: string, options?: Abortable & { wait?: number }): Promise<any>;
  /** A signed call to a gateway of the relay, and its answer. url begins with the gateway's URL. The relay's document
   *  has that URL and the origin. body is a JSON value; without it, this is a GET. */
  call(origin: string, url: string,
    options?: Abortable & { body?: Json; method?: string; status?: number; sister?: boolean }): Promise<any>;
  /** Continues at the address that the relay's document names, if that is another loopback address. Returns whether
   *  it does. */
  moveTo(claimed: string): boolean;
  /** A thread and its envelopes, which are not verified. client selects one of several threads with this id. */
  thread(id: string, client?: string, options?: Abortable):
    Promise<{ ok: true; thread: Thread; events: Envelope[]; expired: number; removed?: { id: string; at: string }[] }>;
  /** A page of the directory. The envelopes are not verified. */
  agents(query?: AgentQuery, options?: Abortable):
    Promise<{ ok: true; agents: Agent[]; hasMore: boolean; cursor?: string }>;
  /** Makes the next read ask the relay again who may read, unless the relay has said already that only parties may. */
  forgetRule(): void;
}
