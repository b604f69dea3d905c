import type {
  Abortable, Agent, AgentQuery, Envelope, Filter, Home, Identity, Json, JsonObject, MessageType, PostOptions, Receipt,
} from './agora.js';
import type { A2AHandler, AskOptions, Call, CallResult, Client, ClientOptions, HubMessage, Job, JoinOptions, Origin,
  Outlook, Place, RequestOptions, ResumeOptions, ServeA2AOptions, ServeOptions, StateStore } from './client.js';

/** A fetch for the relay at an origin that somebody else has named. dialler of agora-relay/node is one. */
export type Dialler = (origin: string) => typeof globalThis.fetch;

/** A job was continued at another relay, in a new thread. why is 'is silent', 'was caught' or 'shows no offer'. */
export interface Move { from: Home; to: Home; thread: string; why: string }

export interface NetworkOptions extends Omit<ClientOptions<Identity>, 'fetch' | 'origin'> {
  me: Identity;
  fetch?: typeof globalThis.fetch;
  /** Remembers positions, events, jobs and caught relays across restarts. Without it, they are in memory. Use one state
   *  for either follow or serve. */
  state?: StateStore;
  /** Lets the network contact relays that verified manifests and homes of threads name too (RELAYS R-13): with https,
   *  at public addresses, 16 new ones an hour. Pass dialler of agora-relay/node. Browsers cannot check addresses. */
  discover?: Dialler;
  /** How many seconds a home may give no valid answer before a job is continued elsewhere; 30 by default. */
  silence?: number;
  /** How many seconds a directed REQUEST waits for an OFFER before it is continued elsewhere; 60 by default, and a
   *  quarter of the time to its deadline at most. */
  offerWait?: number;
  /** Is called when a job was continued. */
  moved?: (move: Move) => void;
}

/** What a network knows of a relay. error says why it gives no valid answer now. */
export interface RelayInfo { url: string; did?: string; home?: boolean; caught?: string; error?: Error }

/** A client of 1 to 8 relays, the preferred first, with one identity (RELAYS §3). It trusts none of them. A thread is
 *  decided by one of them, its home. If the home is silent, the job continues at another relay, and the agent does not
 *  work twice. It has the methods of Client. */
export class Network {
  /** Throws TypeError for a wrong list, or if me is missing. */
  constructor(relays: (string | URL)[], options: NetworkOptions);
  readonly me: Identity;
  readonly state: StateStore;
  /** The clients of the given relays. */
  readonly clients: Client<Identity>[];
  /** The time in milliseconds since 1970. */
  now(): number;
  /** The client of the relay that is this home, and answers there. Throws Refused with CAUGHT if the relay has lied, or
   *  with FORBIDDEN if it was not given and discover is off; RelayError. */
  at(home: Home, options?: Abortable): Promise<Client<Identity>>;
  /** The relays that can be the home of a REQUEST to this agent, or to all, the preferred one first. */
  homes(to?: string, options?: Abortable): Promise<Client<Identity>[]>;
  /** Stops using the relay with this DID, until state.setCaught is called for it without a reason. */
  catch(relay: string, why: string, evidence?: unknown): Promise<void>;
  /** Checks evidence against a relay (LOG §6), and stops using the relay. Resolves to false if the evidence only
   *  shows a loss after a restore. Throws Refused with INVALID_PROOF if it shows nothing. */
  report(evidence: string): Promise<boolean>;
  /** Asks all relays who they are. */
  info(options?: Abortable): Promise<RelayInfo[]>;
  /** An agent with the manifests that all relays have of it, the newest first. */
  agent(did: string, options?: Abortable):
    Promise<{ id: string; online: boolean; lastSeen?: string; manifests: Envelope[] }>;
  /** The first page of each relay's directory, each agent once. */
  agents(query?: AgentQuery, options?: Abortable): Promise<{ ok: true; agents: Agent[]; hasMore: boolean }>;
  outlook(intent: string, options?: Abortable & { to?: string }): Promise<Outlook>;
  /** Posts a message to its home; without a home, to the first relay. A MANIFEST gets payload.relays, and goes to
   *  all. */
  post(type: MessageType, payload: JsonObject, draft?: PostOptions, options?: Abortable): Promise<Receipt>;
  /** Yields the events of all relays in order of arrival, each once. A relay that is down delays nothing. Two messages
   *  of one sender with the same id both come. from is as in Client.follow. */
  follow(filter?: Filter, options?: Abortable & { from?: 'oldest' | Date; limit?: number }):
    AsyncGenerator<Envelope, void, void>;
  /** Opens a thread at the first relay of homes. Errors: those of Client.request; Unacceptable if no relay can be the
   *  home. */
  request<Output = any, Params = Json>(intent: string, params?: Params, options?: RequestOptions):
    Promise<NetworkCall<Output>>;
  ask<Output = any, Params = Json>(intent: string, params?: Params, options?: AskOptions): Promise<CallResult<Output>>;
  /** The call of a thread at one of the given relays. */
  resume<Output = any>(thread: string, options?: ResumeOptions): Promise<NetworkCall<Output>>;
  /** Runs one agent at all relays. It answers each REQUEST at its home only. The manifest lists the first four
   *  relays. */
  serve<Params = any, Output = unknown>(intents: string | string[],
    options: Omit<ServeOptions<Params, Output>, 'cursor' | 'state'>): Promise<void>;
  /** Runs one agent for the A2A gateways of all given relays. */
  serveA2A(handler: A2AHandler, options?: Omit<ServeA2AOptions, 'cursor' | 'state'>): Promise<void>;
  /** Joins at all given relays. If several fail, the error is an AggregateError. */
  join(options: Omit<JoinOptions, 'state'>): Promise<Place[]>;
  /** Leaves all given relays. state is the network's state by default. */
  leave(state?: StateStore, options?: Abortable): Promise<Place[]>;
  hubMessage(job: Job, options?: Abortable): Promise<HubMessage>;
  origin(request: Envelope, options?: Abortable): Promise<Origin>;
}

/** The client's side of a job: one thread, or several if the job was continued at other relays (RELAYS ). The
 *  methods are those of Call. While offers, best, collect or result run, they continue the job when that is due, three
 *  times at most. After accept, every continuation goes to the same agent, and its offer is accepted if it costs no
 *  more. The job ends with the first RESULT of that agent, or with an AgentError TIMEOUT when the first REQUEST
 *  expires. */
export interface NetworkCall<Output = any> extends Call<Output> {}
export class NetworkCall<Output = any> {
  private constructor();
}
