// Whether a graphics card computes attention rightly. With some drivers (Vulkan) onnxruntime-web's own operator carries
// probabilities over from one tile of keys into the next, and pictures come out wrong without a word.

import { DeviceError } from "./networks.js";

const HEADS = 2;
const TOKENS = 96;
const WIDTH = 64;
const MOST_ERROR = 1e-3;

/** Throw if the device's attention is not that of the formula, computed here. */
export async function requireAttention(ort, device) {
  const model = new Uint8Array(await (await fetch(new URL("attention.onnx", import.meta.url))).arrayBuffer());
  const session = await ort.InferenceSession.create(model, { executionProviders: [device], logSeverityLevel: 3 });
  const inputs = ["query", "key", "value"].map((name, place) => {
    return [name, Float32Array.from({ length: TOKENS * WIDTH }, (_, i) => Math.sin((i + 1) * (place + 0.7)))];
  });
  const feeds = Object.fromEntries(inputs.map(([name, data]) => [name, new ort.Tensor("float32", data, [1, TOKENS, WIDTH])]));
  const { output } = await session.run(feeds);
  const expected = attention(...inputs.map(([, data]) => data));
  await session.release();
  if (output.data.every((value, i) => Math.abs(value - expected[i]) < MOST_ERROR)) return;
  throw new DeviceError(
    "Attention comes out wrong on this graphics card (a fault of onnxruntime-web with its driver), and this pipeline has " +
      "it as one operator. One that is converted with “-t webgpu” has it in plain ones.",
  );
}

function attention(query, key, value) {
  const size = WIDTH / HEADS;
  const output = new Float32Array(TOKENS * WIDTH);
  for (let head = 0; head < HEADS; head++) {
    for (let row = 0; row < TOKENS; row++) {
      const at = (token, i) => token * WIDTH + head * size + i;
      const weights = Array.from({ length: TOKENS }, (_, token) => {
        let sum = 0;
        for (let i = 0; i < size; i++) sum += query[at(row, i)] * key[at(token, i)];
        return Math.exp(sum / Math.sqrt(size));
      });
      const total = weights.reduce((sum, weight) => sum + weight, 0);
      for (let i = 0; i < size; i++) {
        output[at(row, i)] = weights.reduce((sum, weight, token) => sum + weight * value[at(token, i)], 0) / total;
      }
    }
  }
  return output;
}
