// Checks an A2A endpoint in both bindings with the client of the A2A project. ci/a2a has the same in Go, and says what
// the agent of the endpoint does. Arguments: the endpoint's URL, with the slash; and input, if the agent can ask for
// input. The environment variable A2A_KEY has the key, or is empty if everybody may call. make a2a runs it.
import assert from 'node:assert/strict';
import { Role, TaskState, verifyAgentCardSignature } from '@a2a-js/sdk';
import { ClientFactory, ClientFactoryOptions, DefaultAgentCardResolver, JsonRpcTransportFactory, RestTransportFactory,
  createAuthenticatingFetchWithRetry } from '@a2a-js/sdk/client';
import { TaskNotCancelableError, TaskNotFoundError } from '@a2a-js/sdk/errors';

const [base, input] = process.argv.slice(2);
const did = base.split('/').at(-2);
const key = process.env.A2A_KEY;
const fetchImpl = createAuthenticatingFetchWithRetry(fetch, {
  headers: async () => (key ? { Authorization: `Bearer ${key}` } : {}),
  shouldRetryWithHeaders: async () => undefined,
});

/**
 * the SDK accepts the signature of the card, with the key of the DID in the URL, and no other card. If the card
 * has security schemes, the verifier of SDK 1.3.0 must get it as it was sent: it drops the schemes of a card that the
 * SDK itself has read.
 */
async function signature() {
  const keys = await (await fetch(`${base}jwks.json`)).json();
  const verify = verifyAgentCardSignature(async (kid, jku) => {
    assert.equal(kid, `did:key:${did}#${did}`);
    assert.equal(jku, `${base}jwks.json`);
    return keys.keys.find((k) => k.kid === kid);
  });
  const card = key ? await (await fetch(`${base}.well-known/agent-card.json`)).json() :
    await new DefaultAgentCardResolver().resolve(base);
  await verify(card);
  await assert.rejects(verify({ ...card, name: 'Mallory' }));
}

const textOf = (parts) => parts.map((part) => part.content.value).join('');

function mustBe(task, state, text) {
  assert.equal(TaskState[task.status.state], TaskState[state]);
  assert.equal(task.artifacts.map((artifact) => textOf(artifact.parts)).join(''), text);
}

/** The calls in one binding. */
class Caller {
  contextId = key ? crypto.randomUUID() : ''; // an anonymous caller can list only a context that the relay has named
  tasks = 0; // in the context

  constructor(client) {
    this.client = client;
  }

  request(text, taskId = '', configuration = undefined) {
    if (!taskId) this.tasks++;
    return { tenant: '', metadata: undefined, configuration, message: { messageId: crypto.randomUUID(),
      contextId: this.contextId, taskId, role: Role.ROLE_USER, metadata: undefined, extensions: [],
      referenceTaskIds: [], parts: [{ content: { $case: 'text', value: text }, metadata: undefined, filename: '',
        mediaType: '' }] } };
  }

  async send() {
    const task = await this.client.sendMessage(this.request('echo hello there'));
    this.contextId ||= task.contextId;
    assert.equal(task.contextId, this.contextId);
    mustBe(task, TaskState.TASK_STATE_COMPLETED, 'hello there');
    const got = await this.client.getTask({ tenant: '', id: task.id, historyLength: 1 });
    mustBe(got, TaskState.TASK_STATE_COMPLETED, 'hello there');
    assert.deepEqual(got.history.map((message) => message.role), [Role.ROLE_USER]);
  }

  async stream() {
    let text = '', last;
    const kinds = [];
    for await (const { payload } of this.client.sendMessageStream(this.request('chunks a b c'))) {
      kinds.push(payload.$case);
      if (payload.$case === 'artifactUpdate') text += textOf(payload.value.artifact.parts);
      if (payload.$case === 'statusUpdate') last = payload.value.status.state;
    }
    assert.equal(kinds.lastIndexOf('task'), 0, `${kinds}`);
    assert.equal(text, 'abc');
    assert.equal(last, TaskState.TASK_STATE_COMPLETED);
  }

  /** Cancels a task that works, and follows it meanwhile. */
  async cancel() {
    const { id } = await this.client.sendMessage(this.request('hold', '', { returnImmediately: true,
      acceptedOutputModes: [], taskPushNotificationConfig: undefined, historyLength: undefined }));
    let last, canceled = false;
    for await (const { payload } of this.client.resubscribeTask({ tenant: '', id })) {
      last = payload.value.status.state;
      if (last === TaskState.TASK_STATE_WORKING && !canceled) {
        canceled = true;
        mustBe(await this.client.cancelTask({ tenant: '', id, metadata: undefined }),
          TaskState.TASK_STATE_CANCELED, '');
      }
    }
    assert.equal(last, TaskState.TASK_STATE_CANCELED);
    await assert.rejects(this.client.cancelTask({ tenant: '', id, metadata: undefined }), TaskNotCancelableError);
  }

  /** Answers a question of the agent. */
  async input() {
    const task = await this.client.sendMessage(this.request('ask'));
    mustBe(task, TaskState.TASK_STATE_INPUT_REQUIRED, '');
    assert.equal(textOf(task.status.message.parts), 'what?');
    mustBe(await this.client.sendMessage(this.request('blue', task.id)), TaskState.TASK_STATE_COMPLETED, 'blue');
  }

  /** Reads the tasks of the context, one on each page. */
  async list() {
    const seen = new Set();
    let pageToken = '';
    do {
      const page = await this.client.listTasks({ tenant: '', contextId: this.contextId,
        status: TaskState.TASK_STATE_UNSPECIFIED, pageSize: 1, pageToken, historyLength: undefined,
        statusTimestampAfter: undefined, includeArtifacts: undefined });
      assert.equal(page.totalSize, this.tasks);
      for (const task of page.tasks) seen.add(task.id);
      pageToken = page.nextPageToken;
    } while (pageToken);
    assert.equal(seen.size, this.tasks);
  }

  async errors() {
    await assert.rejects(this.client.getTask({ tenant: '', id: 'unknown', historyLength: undefined }),
      TaskNotFoundError);
  }
}

await signature();
for (const factory of [JsonRpcTransportFactory, RestTransportFactory]) {
  const transport = new factory({ fetchImpl });
  const options = ClientFactoryOptions.createFrom(ClientFactoryOptions.default,
    { transports: [transport], preferredTransports: [transport.protocolName] });
  const caller = new Caller(await new ClientFactory(options).createFromUrl(base));
  for (const step of ['send', 'stream', 'cancel', 'input', 'list', 'errors']) {
    if (step === 'input' && !input) continue;
    try {
      await caller[step]();
    } catch (error) {
      throw new Error(`${transport.protocolName}: ${step}`, { cause: error });
    }
  }
}
