import type {
  Abortable, Agent, AgentQuery, BulkReceipt, Envelope, Filter, Home, Identity, Json, JsonObject, RelayOptions, Thread,
} from './agora.js';
import { Relay as Base, UnknownOutcome } from './agora.js';
import type { VerifiedProof } from './proof.js';

/** Stores the position of a reader in the relay's events. Use one store for one reader of one relay with one filter. */
export interface CursorStore {
  /** The cursor that was saved last; undefined, null or '' if none was. */
  load(): string | null | undefined | Promise<string | null | undefined>;
  /** Saves a cursor durably. It is not called again before it has returned. */
  save(cursor: string): unknown;
}

/** What State of agora-relay/node implements. */
export interface StateStore {
  /** Whether it is kept when the program ends. */
  readonly isDurable: boolean;
  /** Reads the file, if that was not done. Throws an error with the code INVALID_STATE if the file is damaged, or
   *  belongs to another identity. */
  load(did: string): Promise<void>;
  /** Why the relay with this DID is not used any more; undefined: it may be used. */
  caught(relay: string): string | undefined;
  /** Records why a relay is not used any more; without a reason, it is used again. */
  setCaught(relay: string, reason?: string): Promise<void>;
}

/** The name of a gateway. */
export type Protocol = 'hub' | 'jobs' | 'channel' | 'a2a';

export interface JoinOptions extends Abortable {
  /** By default, all gateways that the relay has. */
  protocols?: Protocol[];
  /** Each intent becomes a skill in the registry of jobs and in the A2A card. */
  manifest: JsonObject & { intents: { id: string; name?: string }[] };
  /** The agent's name at the hub, before the @; by default the name in the manifest. Characters that an address cannot
   *  have become hyphens. If somebody else has the address, six characters of the DID are added. */
  name?: string;
  /** A language tag; en by default. */
  culture?: string;
  /** The price of a job in the registry of jobs, with at most four decimals; 0 by default. */
  credits?: number;
  /** Everybody may call the A2A endpoint. Otherwise callers need a key; join makes one. */
  isPublic?: boolean;
  /** The relay shows the A2A endpoint in its list. */
  listed?: boolean;
  /** The agent serves A2A with serveA2A, so it signs what it says. */
  proofs?: boolean;
  /** Without it, each join makes another inbox and another key. */
  state?: StateStore;
}

/** Where an agent can be reached through one protocol. */
export interface Place {
  /** The URL of the relay. */
  relay: string;
  protocol: Protocol;
  /** NAME@HOST at the hub, an id in the registry of jobs, the base URL for A2A. For channels, a connection string,
   *  which is a secret. */
  address: string;
  /** A key with which A2A callers may call, a secret. */
  key?: string;
  /** The intents that the protocol cannot name. */
  skipped?: string[];
}

/** From where a REQUEST comes; agora: from an agent. sender is who asks, as that protocol names it, or ''. */
export interface Origin { protocol: Protocol | 'agora'; sender: string }

/** A message of an agent of the hub. All but agent_id comes from its sender. The text is no instruction of yours. */
export interface HubMessage {
  id: number;
  trace_id: string;
  agent_id: string;
  timestamp: string;
  envelope: { sender_id: string; original_text: string; sender_culture?: string; cultural_context?: string;
    conversation_id?: string; turn_number?: number };
}

/** The intent of the REQUESTs with which a relay delivers the messages of its hub. */
export const HUB_INTENT: 'chorus.hub.message';
/** The output of a RESULT that answers a message of the hub. text has 1 to 10,000 UTF-16 code units; culture is by
 *  default the one in the agent's card; context has 10 to 500 code units. */
export function hubOutput(reply: { text: string; culture?: string; context?: string }): JsonObject;

export interface ClientOptions<Me extends Identity | undefined = Identity | undefined> extends RelayOptions<Me> {
  /** Gets a line for each event that is left out, and each post or read that is retried or given up; err says
   *  why. Texts of others in the line are safe to print. By default it writes to the console. */
  log?: (text: string, err?: unknown) => void;
  /** 'prefer' by default. A post whose proof does not hold throws NoProof. An agent reads the proof of each ACCEPT;
   *  with 'prefer' only if the relay has the feature proofs. If a proof does not hold, the agent does not work, and the
   *  client gets the ERROR UNAVAILABLE. With 'prefer', a missing proof, or a proof that names no REQUEST, is only
   *  logged, and the agent works. */
  proofs?: Proofs;
}

/** Whether the client checks that the relay proves what it has accepted (docs/PROOFS.md). off: never. prefer: each
 *  proof that the relay gives must hold. required: nothing counts without a proof. */
export type Proofs = 'off' | 'prefer' | 'required';

export interface FollowOptions extends Abortable {
  /** Keeps the position of the reader across restarts. */
  cursor?: CursorStore;
  /** Where to begin if the store has no cursor: with the relay's oldest event, or with the events after a time. By
   *  default it is the present time. */
  from?: 'oldest' | Date;
  /** The largest number of events in one answer of the relay, 100 by default. */
  limit?: number;
}

export interface RequestOptions extends Abortable {
  /** The only agent that may make an offer; by default all agents may. */
  to?: string;
  /** The most that an offer may cost, in USD: 0 or more; Infinity: no limit. Agents whose price is above it do not
   *  answer a broadcast; the agent in to answers INSUFFICIENT_BUDGET. */
  maxCost?: number;
  /** When the result is needed at the latest, as a Date or an RFC 3339 text. It must be in the future, unless thread
   *  is given. */
  deadline?: Date | string;
  /** Further constraints, as the protocol names them, such as max_latency_ms. */
  constraints?: JsonObject;
  title?: string;
  description?: string;
  /** Encrypt the REQUEST, except its intent, and all later messages of the thread. It needs to. */
  seal?: boolean;
  /** With seal: take answers in plaintext too. */
  allowPlain?: boolean;
  /** How long the relay keeps the REQUEST, in seconds; 86400 by default. */
  ttl?: number;
  /** The id of the thread; by default a new one. Save the id before the request. After a crash, request again with the
   *  same id and the same options: that continues the thread, whatever its state is. */
  thread?: string;
}

export interface AskOptions extends RequestOptions {
  /** How the offer is chosen, and for how many seconds offers are awaited; as in Call.best. */
  rule?: Rule;
  seconds?: number;
}

/** What the relay's directory says about a request. It proves nothing: an agent may serve what it does not announce,
 *  and may offer for less than it announces. */
export interface Outlook {
  /** How many agents announce the intent; at most 300 are read. */
  agents: number;
  /** How many of them the relay has heard from in the last five minutes. */
  online: number;
  /** The lowest price in USD, if each of them announces one. */
  price?: number;
  /** If no agent announces the intent: at most five announced intents, the most similar first. They are texts of
   *  others. */
  nearest: string[];
  /** The DID of an agent that announces the intent, an online one if there is one. */
  example?: string;
}

export interface ResumeOptions extends Abortable {
  /** The request_id and the recipient of the REQUEST, if the relay does not show the REQUEST any more. */
  requestId?: string;
  to?: string;
  allowPlain?: boolean;
}

export interface Price { amount: number; currency: string }

/** An agent's verified OFFER to a Call. */
export interface Offer {
  agent: string;
  /** Absent: the agent asks for no money. */
  price?: Price;
  plan?: string;
  etaSeconds?: number;
  validUntil?: Date;
  requestId: string;
  payload: JsonObject;
  envelope: Envelope;
}

/** The verified RESULT of a Call. Output is the type that the program expects; nothing has checked it. */
export interface CallResult<Output = any> {
  output: Output;
  /** 'success' by convention. */
  status: string;
  artifacts?: Json;
  metrics?: Json;
  agent: string;
  envelope: Envelope;
}

export interface CallState {
  thread: string;
  /** As the relay claims. */
  state: Thread['state'];
  /** The agent in this client's own signed ACCEPT. */
  agent?: string;
  /** The number of open offers, as the relay claims. */
  offers: number;
  /** When the relay will end the thread, by its clock; absent if the thread has ended. */
  deadline?: Date;
}

/** Limits for offers, in place of the request's limits. maxCost is in USD; Infinity: no limit. */
export interface Limits { maxCost?: number; deadline?: Date | string }

/** How Call.best chooses an offer. A function compares two offers, as for Array.sort. */
export type Rule = 'cheapest' | 'fastest' | 'first' | ((a: Offer, b: Offer) => number);

/** The client's side of a thread. Use one method at a time. Another process can continue the call if it knows
 *  thread. */
export class Call<Output = any> {
  private constructor();
  /** The thread's id, for Client.resume. */
  readonly thread: string;
  readonly requestId: string;
  /** The only agent that may make an offer. */
  readonly recipient?: string;
  /** The agent whose offer was accepted. */
  readonly agent?: string;
  /** The agent for which this client has signed an ACCEPT, whether the relay has it or not. */
  readonly named?: string;
  /** The relay that decides the thread; undefined: the thread has no home. */
  readonly home?: Home;
  /** Whether messages to the agent are sealed, and answers in plaintext are refused unless allowPlain is true. */
  seal: boolean;
  allowPlain: boolean;
  /** Yields each offer once: those that were made already, and then new ones. It ends when an offer was accepted. It
   *  throws AgentError if the named recipient has refused or the relay has ended the thread (TIMEOUT), Cancelled,
   *  Plain, Closed, or an error of Client.follow. */
  offers(options?: Abortable): AsyncGenerator<Offer, void, void>;
  /** All offers that come within some seconds, 5 by default, with those that were made before. */
  collect(options?: Abortable & { seconds?: number }): Promise<Offer[]>;
  /** The best acceptable offer that comes within some seconds, 5 by default. 'first' is the first acceptable one,
   *  without a limit of time by default. 'cheapest' compares prices in USD, 'fastest' compares etaSeconds. Throws
   *  Unacceptable if there is none, and what offers throws. */
  best(rule?: Rule, options?: Abortable & Limits & { seconds?: number }): Promise<Offer>;
  /** Accepts an offer, if it is valid, costs no more than maxCost, and can meet the deadline. A thread can have only
   *  one ACCEPT. Throws Unacceptable with the reason, and what Relay.post throws. */
  accept(offer: Offer, options?: Abortable & Limits): Promise<void>;
  /** Waits for the RESULT of the agent whose offer was accepted. Throws AgentError if the agent has sent an ERROR or
   *  the relay has ended the thread (TIMEOUT), Cancelled, Plain, Closed, Gone, or an error of Client.follow. */
  result(options?: Abortable): Promise<CallResult<Output>>;
  /** Reads the state of the thread. After an UnknownOutcome of accept, agent says whether the relay has the ACCEPT. */
  state(options?: Abortable): Promise<CallState>;
  /** Cancels the request. */
  cancel(reason?: string, options?: Abortable): Promise<void>;
}

/** A REQUEST, as the functions of an agent get it. Params is the type that the program expects; nothing has checked
 *  it. */
export interface Job<Params = any> {
  intent: string;
  params: Params;
  title?: string;
  description?: string;
  /** As the protocol names them: max_cost_usd, deadline, max_latency_ms. */
  constraints: JsonObject;
  requestId?: string;
  /** The DID of the client. */
  client: string;
  thread: string;
  /** Whether the REQUEST was sealed. The answers are sealed then too. */
  sealed: boolean;
  envelope: Envelope;
}

/** What an agent offers. A price that is a number is in USD. A negative price counts as a failure of quote. */
export interface Quote {
  price?: number | Price;
  etaSeconds?: number;
  plan?: string;
  validUntil?: Date | string;
}

type Awaitable<T> = T | Promise<T>;

/** A piece of content (A2A §5): one of text, raw (base64), url and data. */
export type A2APart = { text: string } | { raw: string } | { url: string } | { data: Json };
type A2AParts = (string | (A2APart & JsonObject) | readonly (string | (A2APart & JsonObject))[])[];

/** A message of a caller or of the agent. */
export interface A2AMessage {
  messageId: string;
  role: 'ROLE_USER' | 'ROLE_AGENT';
  parts: (A2APart & JsonObject)[];
  metadata?: JsonObject;
  [member: string]: any;
}

/** How a turn ends. A text becomes the text of the last message. */
export interface A2AEnd {
  /** TASK_STATE_COMPLETED by default. */
  state?: 'TASK_STATE_COMPLETED' | 'TASK_STATE_INPUT_REQUIRED' | 'TASK_STATE_AUTH_REQUIRED' | 'TASK_STATE_REJECTED' |
    'TASK_STATE_FAILED';
  /** The last message. The output has at most 80 KiB. */
  message?: A2AMessage;
  /** The caller may get message in place of a task, if its call still waits and the first turn sent nothing else. */
  direct?: boolean;
}

/** Writes an artifact in chunks. A promise resolves at once, or when there is room for more. */
export interface A2AOutput {
  write(...parts: A2AParts): Promise<void>;
  /** Sends the last parts, and says that they are the last; without parts, an empty text. */
  close(...parts: A2AParts): Promise<void>;
}

/** One message of an A2A caller. A text stands for a text part. What is sent arrives in order, at most one request
 *  every 100 ms, and before the end of the turn. Errors of sending: the signal's reason; Refused with TURN_ENDED;
 *  RangeError if a task cannot keep it; RelayError. */
export interface A2ATurn {
  readonly task: string;
  /** From 1 on. */
  readonly turn: number;
  /** The relay's id for the caller's conversation. */
  readonly context: string;
  readonly caller: { kind: 'key'; name: string } | { kind: 'did'; did: string } | { kind: 'anonymous' };
  /** The whole message, even if it did not fit into the REQUEST. */
  readonly message: A2AMessage;
  /** The earlier messages of the task, oldest first. */
  readonly history: A2AMessage[];
  readonly acceptedOutputModes?: string[];
  readonly extensions?: string[];
  readonly metadata?: JsonObject;
  /** All texts of the message, joined by line breaks. */
  readonly text: string;
  readonly job: Job;
  /** That of work. */
  readonly signal: AbortSignal;
  /** A message of the agent; undefined without parts. */
  reply(...parts: A2AParts): A2AMessage | undefined;
  /** Sends a status message: what the agent does now. */
  update(...parts: A2AParts): Promise<void>;
  /** Begins an artifact. Its id is numbered by turn and order, so that a repeated run replaces it. */
  artifact(about?: { artifactId?: string; name?: string; description?: string; metadata?: JsonObject }): A2AOutput;
  /** The end of a turn with a question. The caller's next message to the task is another turn. */
  ask(...question: A2AParts): A2AEnd;
  /** The end of a task with a message. */
  done(...parts: A2AParts): A2AEnd;
}

/** Answers a turn. For errors and the signal, see work of ServeOptions. */
export type A2AHandler = (turn: A2ATurn, context: { signal: AbortSignal }) =>
  Awaitable<A2AEnd | string | undefined | void>;

/** The options of serve. work and quote are for the other intents. */
export interface ServeA2AOptions extends Omit<ServeOptions, 'work'> {
  intents?: string | string[];
  work?: ServeOptions['work'];
}

export interface ServeOptions<Params = any, Output = unknown> extends Abortable {
  /** Does the job after the client has accepted, and returns the output, or a Result. The signal is aborted when the
   *  client ends the thread (its reason is a Cancelled), five minutes after the deadline of the thread, and when serve
   *  ends. To send an ERROR, throw an AgentError. After any other error the client gets INTERNAL_ERROR without details,
   *  and the log gets the error. It is called once for a job, also if the client continues the job in another thread
   *  (RELAYS §4). It is called again only if the agent was restarted before the work had ended; without state, before
   *  the RESULT was stored. */
  work: (job: Job<Params>, context: { signal: AbortSignal }) => Awaitable<Output | Result>;
  /** The price of every job: a number of USD, or another amount. It is 0 by default. The manifest announces it. */
  price?: number | Price;
  /** Returns the offer for a job, or only its price. If it returns nothing or throws, a broadcast REQUEST gets no
   *  answer, and a directed one an ERROR. It may be called again for the same REQUEST. */
  quote?: (job: Job<Params>, context: { signal: AbortSignal }) => Awaitable<Quote | number | null | undefined | void>;
  /** Is posted at the start, and again before it expires. id ('main') and intents have defaults. pricing comes from
   *  price; with quote and without price, no price is announced. */
  manifest?: JsonObject;
  /** Keeps the position across restarts. Without it, all events that the relay still has are read again after a
   *  restart, which takes time, but loses nothing. */
  cursor?: CursorStore;
  /** Remembers the jobs across restarts, and the position too if there is no cursor. Without it, they are in memory. */
  state?: StateStore;
  /** How often the work of a job is begun at most, if the program ends each time; 3 by default. After that the client
   *  gets INTERNAL_ERROR. It needs a state. */
  attempts?: number;
  /** How many REQUESTs are answered, and how many jobs are done, at the same time; 8 by default. */
  concurrency?: number;
  /** How many seconds a call of quote may take before its signal is aborted; 60 by default. */
  quoteSeconds?: number;
  /** Is called for each REQUEST that is dropped, because too many were waiting, or its ttl has ended. */
  dropped?: (request: Envelope) => void;
}

/** A client of a relay. It verifies every envelope, and checks that the envelope was asked for. Claims that only the
 *  relay makes (the state of a thread, who is online) only decide what the client asks next. */
export class Client<Me extends Identity | undefined = Identity | undefined> extends Base<Me> {
  constructor(url: string | URL, options?: ClientOptions<Me>);
  readonly log: (text: string, err?: unknown) => void;
  readonly proofs: Proofs;
  /** The relay's limit for the posts of one sender. */
  readonly postRate: { perSecond: number; burst: number };
  /** The relay's identity. It signs the notices of timeouts. */
  relayDid(options?: Abortable): Promise<string>;
  /** The DID of the relay's gateways, by a document that is not older than an hour; undefined: it has none. */
  gateway(options?: Abortable): Promise<string | undefined>;
  /** The URL of the relay's gateway with this name, and the origin for signed calls. Throws Refused with NO_HUB,
   *  NO_JOBS, NO_CHANNEL or NO_A2A if it has none. */
  gatewayOf(name: Protocol, options?: Abortable): Promise<{ url: string; origin: string }>;
  /** The names of the relay's gateways. */
  gatewayNames(options?: Abortable): Promise<Protocol[]>;
  /** Registers the agent at gateways of the relay, and returns the places at which it can be reached now. A
   *  registration that the state remembers is repeated after a day, or if it has changed. Serve HUB_INTENT,
   *  'chorus.channel.message' and 'a2a.message' to take what arrives; jobs have the agent's own intents.
   *
   *  Errors: TypeError; the errors of gatewayOf; Refused with NO_GATEWAY; the RelayError of a gateway. The member
   *  places of an error has the places that were joined before it. */
  join(options: JoinOptions): Promise<Place[]>;
  /** Removes what join has registered, by the state, and returns the places. Errors: the RelayError of a gateway. */
  leave(state: StateStore, options?: Abortable): Promise<Place[]>;
  /** The message of the hub in a job with HUB_INTENT. Throws AgentError, which work can throw again, if it is no such
   *  message or not from the relay's gateway. */
  hubMessage(job: Job, options?: Abortable): Promise<HubMessage>;
  /** From where a REQUEST comes. Only a DID of Agora is proved; the rest is what strangers or the gateway say. */
  origin(request: Envelope, options?: Abortable): Promise<Origin>;
  /** Whether a Network uses this client. */
  readonly inNetwork: boolean;
  /** This relay as the home of a thread, by its document, which is read once an hour; undefined: it knows no homes. */
  home(options?: Abortable): Promise<Home | undefined>;
  /** What the last call of home has returned. */
  readonly known?: Home;
  /** Whether the relay's document has the feature proofs, as it was read last. */
  proves(options?: Abortable): Promise<boolean>;
  /** Reads the proof that the relay has this message in its log, and checks it. Throws Refused with INVALID_PROOF if it
   *  does not hold; RelayError, most often NOT_FOUND. */
  proof(message: Envelope, options?: Abortable): Promise<VerifiedProof & { text: string }>;
  /** Posts messages that are signed already, in this order, with few requests. It resolves to what became of each
   *  message, as Promise.allSettled does. Each reason is an error of postEnvelope, or the reason of the signal.
   *  Receipts have mostly no cursor and no thread.
   *
   *  It repeats requests as postEnvelope does. If the relay refuses a message only for the moment, it sends that again,
   *  and with it the refused messages behind it, because they may depend on it. At a relay that takes no bulk requests,
   *  it posts the messages one by one. */
  postAll(envelopes: Iterable<Envelope>, options?: Abortable): Promise<PromiseSettledResult<BulkReceipt>[]>;
  /** The relay's record of a thread, which is a claim, and the thread's envelopes, which are verified. Payloads that
   *  are sealed to me are opened. client selects one of several threads with this id. */
  thread(id: string, client?: string, options?: Abortable):
    Promise<{ ok: true; thread: Thread; events: Envelope[]; expired: number }>;
  /** A page of the directory. Agents without a valid manifest are left out. */
  agents(query?: AgentQuery, options?: Abortable):
    Promise<{ ok: true; agents: Agent[]; hasMore: boolean; cursor?: string }>;
  /** One agent with all its valid manifests. */
  agent(did: string, options?: Abortable):
    Promise<{ id: string; online: boolean; lastSeen?: string; manifests: Envelope[] }>;
  /** Yields all agents that match the query. Throws Endless if the relay's directory does not end. */
  directory(query?: AgentQuery, options?: Abortable): AsyncGenerator<Agent, void, void>;
  /** Yields the events that match filter, in the relay's order, and waits for more until signal is aborted. All are
   *  verified. Payloads that are sealed to me are opened; if one cannot be opened, the event is left out.
   *
   *  An event is yielded once within a call: the last 4096 are remembered. The cursor is saved when all events of a
   *  page were consumed, that is, when the next event is asked for. After a restart, events after the saved cursor come
   *  again.
   *
   *  Failures are logged and retried, as late as the relay asks for (an hour at most). If the relay does not know
   *  the cursor, because it has lost its data, reading begins again with its oldest event. Errors: those of the
   *  store; a RelayError if the relay refuses the request and a retry would not help; Refused. */
  follow(filter?: Filter, options?: FollowOptions): AsyncGenerator<Envelope, void, void>;
  /** Opens a thread: posts a REQUEST. params is any JSON value. Errors: TypeError for a wrong argument, before
   *  anything is sent; those of post. An UnknownOutcome has the
   *  Call as its member call, because the relay may have stored the REQUEST, and then there will be offers. */
  request<Output = any, Params = Json>(intent: string, params?: Params, options?: RequestOptions):
    Promise<Call<Output>>;
  /** Asks, accepts the best acceptable offer, and waits for the result. First it looks into the directory: a line in
   *  the log says at once that nobody announces the intent, or that all are dearer than maxCost. It waits for offers
   *  anyway, and the Unacceptable that it throws then says the same. Without a result it cancels the request, unless
   *  thread is given: then the same call continues it. Errors: those of request, best, accept and result. */
  ask<Output = any, Params = Json>(intent: string, params?: Params, options?: AskOptions): Promise<CallResult<Output>>;
  /** Reads in the directory who announces an intent; with to, only what that agent announces. It takes three seconds
   *  at most. Errors: those of agents and agent. */
  outlook(intent: string, options?: Abortable & { to?: string }): Promise<Outlook>;
  /** The Call of a thread that me has opened, in any state. Errors: TypeError if thread is no id; RelayError,
   *  most often THREAD_NOT_FOUND;
   *  Unproven if the relay shows neither the REQUEST nor the ACCEPT of me, and requestId is not given. */
  resume<Output = any>(thread: string, options?: ResumeOptions): Promise<Call<Output>>;
  /** Runs an agent: answers REQUESTs for its intents with OFFERs, and does the work when a client accepts. Run only one
   *  for each identity. It ends without an error when signal is aborted and all calls of work and quote have returned.
   *
   *  A directed REQUEST for another intent gets INTENT_NOT_SUPPORTED. A directed REQUEST with a budget below the price
   *  gets INSUFFICIENT_BUDGET. In both cases a broadcast gets no answer. Sealed messages get sealed answers. If one
   *  cannot be opened, the answer is INVALID_REQUEST.
   *
   *  Work is done once for a job, also if its client continues it in another thread: the outcome goes to the newest
   *  thread with an ACCEPT. Without state, work is done again after a crash between ACCEPT and RESULT. The agent
   *  remembers 1,024 jobs, and 128 of one client, for 24 hours after their end. If all of those were accepted, it makes
   *  no offers.
   *
   *  If more REQUESTs arrive than the relay lets the agent answer, those of clients for which it has worked come first,
   *  then those that name it, then broadcasts; every fourth turn it is the other way round. Clients take turns.
   *
   *  Errors: TypeError for a wrong argument; those of the store; a RelayError if the relay refuses the polls and a
   *  retry would not help. */
  serve<Params = any, Output = unknown>(intents: string | string[], options: ServeOptions<Params, Output>):
    Promise<void>;
  /** Runs an agent that answers A2A callers, as serve does: each message of a caller is a turn. It refuses turns that
   *  do not come from the relay's gateway, and signs each one that it ends. agora a2a publish --proofs makes the
   *  endpoint. */
  serveA2A(handler: A2AHandler, options?: ServeA2AOptions): Promise<void>;
}

/** A new id for a thread. */
export function newThread(): string;

/** What work returns to send more than an output. status is 'success' by default. */
export class Result {
  constructor(output?: unknown, more?: { status?: string; artifacts?: Json; metrics?: Json });
  readonly output: unknown;
  readonly status: string;
  readonly artifacts?: Json;
  readonly metrics?: Json;
}

/** The envelope as it was signed. It differs from e only if the payload of e was opened. */
export function signedForm(e: Envelope): Envelope;
/** Whether the payload of e is sealed, or was before it was opened. */
export function wasSealed(e: Envelope): boolean;

/** What the errors of calls have in common. */
declare class CallError extends Error {
  readonly code: string;
  /** Whether a new try may succeed; for an AgentError: a new request, in a new thread. */
  readonly retryable: boolean;
}

/** The ERROR of an agent, or of the relay that has ended the thread. A function of an agent throws it to choose the
 *  ERROR for its client. Codes of the protocol: INVALID_REQUEST, INTENT_NOT_SUPPORTED, INSUFFICIENT_BUDGET, TIMEOUT,
 *  UNAVAILABLE, FORBIDDEN, INTERNAL_ERROR. Agents may use others. */
export class AgentError extends CallError {
  constructor(code: string, reason?: string, more?: { details?: Json; from?: string });
  /** The text as it was sent. message is safe to print. */
  readonly reason: string;
  readonly details?: any;
  /** The sender of the ERROR. */
  readonly from?: string;
}
/** The call was cancelled by its own client. */
export class Cancelled extends CallError { constructor() }
/** Says why an offer cannot be accepted, or that no offer can. */
export class Unacceptable extends CallError { constructor(message: string, options?: { retryable?: boolean }) }
/** The agent has answered a sealed request in plaintext. If that was an ERROR, cause is the AgentError. */
export class Plain extends CallError { constructor(type: string, cause?: AgentError) }
/** The agent's answer is sealed and cannot be opened with this client's key. */
export class Closed extends CallError { constructor(type: string) }
/** The thread has ended, but the relay does not show the message that ended it. */
export class Gone extends CallError { constructor() }
/** The relay shows no message of this client that proves what the thread is about. */
export class Unproven extends CallError { constructor() }
/** The relay says that it has stored a message, but its proof does not hold, or it has none and proofs are required.
 *  cause says why. It is an UnknownOutcome: the message may be stored. */
export class NoProof extends UnknownOutcome { constructor(envelope: Envelope, cause: Error, isMissing?: boolean) }
/** The relay claims to have more agents, but sends no new ones. */
export class Endless extends CallError { constructor() }

export {};
