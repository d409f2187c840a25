// Networks of the folder as sessions of onnxruntime-web.

import { MemoryError } from "./folder.js";

const RUNTIMES = {
  wasm: ["ort.wasm.min.mjs", "ort-wasm-simd-threaded.wasm"],
  webgpu: ["ort.webgpu.min.mjs", "ort-wasm-simd-threaded.asyncify.wasm"],
};
/** Files of onnxruntime-web that are loaded for a device: its build for WebGPU can’t compare texts, which names of samplers are. */
export const BINARIES = { wasm: [RUNTIMES.wasm[1]], webgpu: [RUNTIMES.wasm[1], RUNTIMES.webgpu[1]] };
const PLACE = new URL("ort/", import.meta.url).href;
const MOST_THREADS = 8;
// What goes wrong is thrown and told on the page; the console need not have it, too.
const QUIET = 4;

/** The device can't be used; the message says why. */
export class DeviceError extends Error {}

/** Load onnxruntime-web for a device: `wasm` or `webgpu`. `onBytes` is told how many more bytes have come. */
export async function openRuntime(device, folder, onBytes, signal) {
  if (device === "webgpu") await requireWebGpu();
  const [script, binary] = RUNTIMES[device];
  const ort = await import(PLACE + script);
  ort.env.wasm.wasmPaths = PLACE;
  ort.env.wasm.wasmBinary = (await folder.readRuntime(binary, onBytes, signal)).buffer;
  // Threads share memory, which browsers allow to isolated pages alone: those with COOP and COEP headers.
  ort.env.wasm.numThreads = self.crossOriginIsolated ? Math.min(navigator.hardwareConcurrency, MOST_THREADS) : 1;
  ort.env.logLevel = "error";
  return ort;
}

async function requireWebGpu() {
  if (!navigator.gpu) throw new DeviceError("This browser has no WebGPU.");
  let adapter = null;
  try {
    adapter = await navigator.gpu.requestAdapter();
  } catch {
    // What it says is of no use to who reads the page.
  }
  if (!adapter) throw new DeviceError("This browser has WebGPU, but gives this page no graphics adapter.");
}

/** Open a network: its model file, and the data files beside it. `onBytes` is told how many more bytes have come. */
export async function openNetwork(ort, device, folder, name, onBytes, signal) {
  const model = await folder.read(`${name}/model.onnx`, onBytes, signal);
  const externalData = [];
  for (const path of dataFiles(folder, name)) {
    externalData.push({ path: path.slice(name.length + 1), data: await folder.read(path, onBytes, signal) });
  }
  try {
    return await ort.InferenceSession.create(model, {
      executionProviders: [device],
      externalData,
      logSeverityLevel: QUIET,
    });
  } catch (error) {
    throw explained(error, name, `${name} can’t be opened`);
  }
}

/** Return the files of a network, its model first. */
export function filesOf(folder, name) {
  return [`${name}/model.onnx`, ...dataFiles(folder, name)];
}

function dataFiles(folder, name) {
  return folder.names.filter((path) => path.startsWith(`${name}/`) && /\.(pb|data)$/.test(path));
}

/** Run a network on `{name: [type, data, dims]}`; inputs that it lacks are left out. */
export async function run(ort, session, name, inputs, outputs) {
  const feeds = {};
  for (const input of session.inputNames) {
    if (!(input in inputs)) throw new DeviceError(`${name} takes an input “${input}”, which this page has nothing for.`);
    const [type, data, dims] = inputs[input];
    feeds[input] = new ort.Tensor(type, data, dims);
  }
  try {
    return await session.run(feeds, outputs, { logSeverityLevel: QUIET });
  } catch (error) {
    throw explained(error, name, `${name} can’t be run`);
  }
}

function explained(error, name, what) {
  const text = typeof error === "number" ? "out of memory" : String(error?.message ?? error);
  if (error instanceof RangeError || /memory|alloc/i.test(text)) return new MemoryError(`${name} does not fit`);
  return new DeviceError(`${what}: ${text.split("\n")[0].slice(0, 300)}`, { cause: error });
}
