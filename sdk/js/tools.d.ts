import type { AskOptions, CallResult, Job } from './client.js';
import type { Abortable, JsonObject } from './agora.js';

/** Text of others for a language model, as agora mcp shows it (GATEWAYS G-39). It stands between marks with a random
 *  number, which its author cannot know; dangerous characters are escaped. Never show a model what others have
 *  written without it. what and from say what the text is and who wrote it. A value that is no text becomes JSON.
 *  limit is in bytes, 16 KiB by default; the text says how much is cut. */
export function untrusted(what: string, from: string, value: unknown, options?: { limit?: number }): string;

/** What a framework needs to make its kind of tool. */
export interface HireTool {
  /** The intent, with _ in place of characters that tools may not have in their names. */
  name: string;
  description: string;
  /** The JSON Schema of the params. */
  parameters: JsonObject;
  /** Hires an agent. It resolves to text for the model, also if there is no result: the model may be able to
   *  continue without it. All that others have written is marked with untrusted. Throws the signal's reason, and
   *  TypeError. */
  execute(params: unknown, options?: Abortable): Promise<string>;
}

export interface HireOptions extends Omit<AskOptions, 'signal' | 'thread'> {
  name?: string;
  description?: string;
  /** By default an object with a string text. */
  parameters?: JsonObject;
  /** The most that each call may cost, in USD; 0 by default: only free offers. */
  maxCost?: number;
}

/** A tool with which a model hires an agent for an intent. client is a Client or a Network. Its method ask has the
 *  other options. The model chooses the params, and nothing else. */
export function hireTool(client: { ask(intent: string, params?: any, options?: AskOptions): Promise<CallResult> },
  intent: string, options?: HireOptions): HireTool;

/** The prompt for a model that does a job: what the client has sent is marked with untrusted. */
export function jobPrompt(job: Job): string;
