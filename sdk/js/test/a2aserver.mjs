// An A2A server that is made with the SDK of the A2A project, and its sample agent. ci/a2a has the same in Go, and says
// what the agent does. Prints the URL at which it listens. make a2a runs it.
import { AgentCard, Role, TaskState } from '@a2a-js/sdk';
import { AgentEvent, DefaultRequestHandler, InMemoryTaskStore } from '@a2a-js/sdk/server';
import { UserBuilder, agentCardHandler, jsonRpcHandler, restHandler } from '@a2a-js/sdk/server/express';
import express from 'express';

const part = (text) => ({ content: { $case: 'text', value: text }, metadata: undefined, filename: '', mediaType: '' });
const lists = { extensions: [], metadata: undefined };

/** The agent. */
class Sample {
  /** What ends a task that works, by its id. */
  held = new Map();

  async execute({ taskId, contextId, userMessage, task }, bus) {
    const ids = { taskId, contextId };
    let words = userMessage.parts[0].content.value.split(' ');
    if (task) words = ['echo', ...words]; // the answer to ask
    const status = (state, text) => bus.publish(AgentEvent.statusUpdate({ ...ids, metadata: undefined, status: {
      state, timestamp: new Date().toISOString(), message: text === undefined ? undefined :
        { messageId: crypto.randomUUID(), role: Role.ROLE_AGENT, parts: [part(text)], ...ids, referenceTaskIds: [],
          ...lists },
    } }));
    const artifact = (text, append) => bus.publish(AgentEvent.artifactUpdate({ ...ids, append, lastChunk: false,
      metadata: undefined,
      artifact: { artifactId: 'a1', name: '', description: '', parts: [part(text)], ...lists } }));
    bus.publish(AgentEvent.task(task ?? { id: taskId, contextId, artifacts: [], history: [userMessage],
      metadata: undefined,
      status: { state: TaskState.TASK_STATE_SUBMITTED, timestamp: new Date().toISOString(), message: undefined } }));
    status(TaskState.TASK_STATE_WORKING);
    switch (words[0]) {
      case 'hold':
        await new Promise((resolve) => this.held.set(taskId, resolve));
        status(TaskState.TASK_STATE_CANCELED);
        break;
      case 'ask':
        status(TaskState.TASK_STATE_INPUT_REQUIRED, 'what?');
        break;
      case 'chunks':
        words.slice(1).forEach((word, i) => artifact(word, i > 0));
        status(TaskState.TASK_STATE_COMPLETED);
        break;
      default:
        artifact(words.slice(1).join(' '), false);
        status(TaskState.TASK_STATE_COMPLETED);
    }
    bus.finished();
  }

  async cancelTask(taskId) {
    this.held.get(taskId)?.();
  }
}

const app = express();
const server = app.listen(0, '127.0.0.1', () => {
  const base = `http://127.0.0.1:${server.address().port}`;
  const modes = ['text/plain'];
  const card = AgentCard.fromJSON({
    name: 'Sample in JavaScript', description: 'Does what the first word says. „Ja?“', version: '1.0.0',
    supportedInterfaces: [{ url: `${base}/rest`, protocolBinding: 'HTTP+JSON', protocolVersion: '1.0' },
      { url: `${base}/rpc`, protocolBinding: 'JSONRPC', protocolVersion: '1.0' }],
    capabilities: { streaming: true }, defaultInputModes: modes, defaultOutputModes: modes,
    skills: [{ id: 'sample', name: 'Sample', description: 'Does what the first word says.', tags: modes }],
  });
  const requestHandler = new DefaultRequestHandler(card, new InMemoryTaskStore(), new Sample());
  const userBuilder = UserBuilder.noAuthentication;
  app.use('/.well-known/agent-card.json', agentCardHandler({ agentCardProvider: requestHandler }));
  app.use('/rpc', jsonRpcHandler({ requestHandler, userBuilder }));
  app.use('/rest', restHandler({ requestHandler, userBuilder }));
  console.log(base);
});
