// Vercel's AI SDK: one conversation with a tool per case. Prints the answers as one line of JSON, by case.
// Arguments: the file with the cases, the folder with the packages.
import { readFileSync } from 'node:fs';
import { createRequire } from 'node:module';

const [casesFile, packages] = process.argv.slice(2);
const require = createRequire(`${packages}/program.js`);
const { generateText, isStepCount, stepCountIs, streamText, tool } = require('ai');
const { z } = require('zod');

const MODELS = {
  chat: () => require('@ai-sdk/openai').createOpenAI().chat('policy'),
  responses: () => require('@ai-sdk/openai').createOpenAI()('policy'),
  messages: () => require('@ai-sdk/anthropic').createAnthropic()('policy'),
  // The one provider of the four that reads no address from the environment.
  gemini: () =>
    require('@ai-sdk/google').createGoogleGenerativeAI({
      baseURL: `${process.env.GOOGLE_GEMINI_BASE_URL}/v1beta`,
    })('policy'),
};

async function play({ env, protocol, streams, prompt }) {
  Object.assign(process.env, env);
  const find = tool({
    description: 'Find the value of a key.',
    inputSchema: z.object({ key: z.string() }),
    execute: async ({ key }) => `${key} is 47`,
  });
  const stopWhen = (stepCountIs ?? isStepCount)(4);
  const request = { model: MODELS[protocol](), tools: { find }, stopWhen, prompt, maxRetries: 0 };
  if (!streams) return (await generateText(request)).text;
  const result = streamText({ ...request, onError: ({ error }) => { throw error; } });
  await result.consumeStream();
  return await result.text;
}

const answers = {};
for (const item of JSON.parse(readFileSync(casesFile, 'utf8'))) answers[item.name] = await play(item);
console.log(JSON.stringify(answers));
