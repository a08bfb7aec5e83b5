// Vercel's AI SDK: one conversation with a tool per case. Prints the answers as one line of JSON, by case.
// Arguments: the file with the cases, the folder with the packages.
import { spawnSync } from 'node:child_process';
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const [casesFile, packages] = process.argv.slice(2);
const require = createRequire(`${packages}/program.js`);
const { generateText, isStepCount, streamText, tool } = require('ai');
const { createOpenAI } = require('@ai-sdk/openai');
const { z } = require('zod');

const MODELS = {
  chat: () => createOpenAI().chat('policy'),
  responses: () => createOpenAI()('policy'),
  messages: () => require('@ai-sdk/anthropic').createAnthropic()('policy'),
  // The one provider of the four that reads no address from the environment.
  gemini: () =>
    require('@ai-sdk/google').createGoogleGenerativeAI({
      baseURL: `${process.env.GOOGLE_GEMINI_BASE_URL}/v1beta`,
    })('policy'),
};

// OpenAI's tools that the client runs itself, by the first word of the case.
const pixel = 'data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==';
const OWN_TOOLS = {
  shell: (tools) =>
    tools.shell({
      execute: async ({ action }) => ({
        output: action.commands.map((command) => ({
          stdout: spawnSync(command, { shell: true, encoding: 'utf8' }).stdout,
          stderr: '',
          outcome: { type: 'exit', exitCode: 0 },
        })),
      }),
    }),
  local_shell: (tools) =>
    tools.localShell({
      execute: async ({ action: { command } }) => ({
        output: spawnSync(command[0], command.slice(1), { encoding: 'utf8' }).stdout,
      }),
    }),
  apply_patch: (tools) =>
    tools.applyPatch({
      execute: async ({ operation }) => ({ status: 'completed', output: `Created ${operation.path}` }),
    }),
  computer: (tools) =>
    tools.computer({
      execute: async () => ({ output: { type: 'computer_screenshot', imageUrl: pixel } }),
    }),
};
const find = tool({
  description: 'Find the value of a key.',
  inputSchema: z.object({ key: z.string() }),
  execute: async ({ key }) => `${key} is 47`,
});

async function play({ name, env, protocol, streams, prompt }) {
  Object.assign(process.env, env);
  const own = name.split(' ')[0];
  const tools = own in OWN_TOOLS ? { [own]: OWN_TOOLS[own](createOpenAI().tools) } : { find };
  const request = { model: MODELS[protocol](), tools, stopWhen: isStepCount(4), prompt, maxRetries: 0 };
  if (!streams) return (await generateText(request)).text;
  const errors = [];
  const result = streamText({ ...request, onError: ({ error }) => { errors.push(error); } });
  await result.consumeStream();
  if (errors.length) throw errors[0];
  return await result.text;
}

// A screenshot is refused for a policy that reads text; what the SDK reports is the answer then.
async function told(item) {
  try {
    return await play(item);
  } catch (error) {
    if (item.name.startsWith('computer')) return error.message;
    throw error;
  }
}

const answers = {};
for (const item of JSON.parse(readFileSync(casesFile, 'utf8'))) answers[item.name] = await told(item);
console.log(JSON.stringify(answers));
