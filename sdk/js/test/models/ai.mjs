// A model for the AI SDK without network. It calls the first tool, and then answers with what it has seen last.
import { MockLanguageModelV3 } from 'ai/test';

const tokens = { total: 1 }, usage = { inputTokens: tokens, outputTokens: tokens };
export const model = new MockLanguageModelV3({ doGenerate: async ({ prompt, tools = [] }) => {
  const [last] = prompt.at(-1).content, isFresh = last.type === 'text' && tools.length > 0;
  const call = () => ({ type: 'tool-call', toolCallId: '1', toolName: tools[0].name, input: '{"text":"hello"}' });
  const content = isFresh ? call() : { type: 'text', text: last.text ?? last.output.value };
  const reason = isFresh ? 'tool-calls' : 'stop';
  return { content: [content], finishReason: { unified: reason, raw: reason }, usage, warnings: [] };
} });
