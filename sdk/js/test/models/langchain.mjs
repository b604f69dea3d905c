// A model for LangChain without network. It calls the first tool, and then answers with what it has seen last.
import { BaseChatModel } from '@langchain/core/language_models/chat_models';
import { AIMessage } from '@langchain/core/messages';

class Model extends BaseChatModel {
  _llmType() { return 'test'; }

  bindTools(tools) { return this.withConfig({ tools }); }

  async _generate(messages, { tools = [] }) {
    const last = messages.at(-1), isFresh = last.type !== 'tool' && tools.length > 0;
    const call = () => ({ name: tools[0].name, args: { text: 'hello' }, id: '1', type: 'tool_call' });
    const message = new AIMessage(isFresh ? { content: '', tool_calls: [call()] } : last.text);
    return { generations: [{ text: message.text, message }] };
  }
}

export const model = new Model({});
