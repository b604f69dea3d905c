// A model for the OpenAI Agents SDK without network. It calls the first tool, and then answers with what it has seen
// last.
import { Usage } from '@openai/agents';

const textOf = (v) => typeof v === 'string' ? v : v.text ?? v.map?.(textOf).join('') ?? textOf(v.output ?? v.content);
export const model = { getResponse: async ({ input, tools }) => {
  const last = typeof input === 'string' ? input : input.at(-1), isFresh = last.type !== 'function_call_result';
  const call = () => ({ type: 'function_call', id: '1', callId: '1', name: tools[0].name, status: 'completed',
    arguments: '{"text":"hello"}' });
  const answer = () => ({ type: 'message', role: 'assistant', status: 'completed',
    content: [{ type: 'output_text', text: textOf(last) }] });
  return { usage: new Usage(), output: [isFresh && tools.length > 0 ? call() : answer()] };
} };
