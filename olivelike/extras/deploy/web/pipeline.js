// From a prompt to pixels: text encoders, the UNet step by step, the VAE. What `olivelike generate` does, in its order.

import { requireAttention } from "./attention.js";
import { FolderError } from "./folder.js";
import { keepsFiles } from "./kept.js";
import { BINARIES, filesOf, openNetwork, openRuntime, run } from "./networks.js";
import { makeNoise } from "./noise.js";
import { chunk, padded, parsePrompt, weigh } from "./prompt.js";
import { makePreprocessing } from "./safety.js";
import { makeSchedule } from "./schedule.js";
import { makeTokenizer } from "./tokenizer.js";

const CHANNELS = 4;
const SCALING = 0.18215;
const LEVELS = 4;
const CHECKER = "safety_checker";
const SCHEDULER = "scheduler";
const MOST_KEPT = 1e9;
const SEEDS = 64;
/** Times as long as a preview that is decoded took, the next one waits. */
const PATIENCE = 10;

/** Read what the folder says of itself, without its networks. */
export async function readPipeline(folder, signal) {
  const [index, unet, vae] = await Promise.all(
    ["model_index.json", "unet/config.json", "vae_decoder/config.json"].map((name) => folder.json(name, signal)),
  );
  const has = (name) => folder.names.includes(`${name}/model.onnx`);
  const isXl = has("text_encoder_2");
  const channels = vae.latent_channels ?? CHANNELS;
  if ((unet.in_channels ?? CHANNELS) !== channels) {
    throw new FolderError("unet/config.json: this UNet paints in pictures that it is given; the page has none to give.");
  }
  if (index.requires_aesthetics_score) throw new FolderError("model_index.json: a refiner has nothing to refine on this page.");
  const factor = 2 ** ((vae.block_out_channels?.length ?? LEVELS) - 1);
  const sides = [unet.sample_size ?? 64].flat();
  const encoders = ["text_encoder", "text_encoder_2"].filter((name, place) => place === 0 || isXl).filter(has);
  const missing = ["text_encoder", "unet", "vae_decoder", SCHEDULER].filter((name) => !has(name) && !(isXl && name === "text_encoder"));
  if (missing.length) throw new FolderError(`${missing[0]}/model.onnx is missing; convert the whole pipeline.`);
  const networks = [SCHEDULER, ...encoders, ...(has(CHECKER) ? [CHECKER] : []), "vae_decoder", "unet"];
  return {
    isXl,
    channels,
    factor,
    encoders,
    networks,
    bytes: networks.reduce((sum, name) => sum + bytesOf(folder, name), 0),
    /** Bytes of the largest network, which is in memory as a whole. */
    largest: Math.max(...networks.map((name) => bytesOf(folder, name))),
    checked: has(CHECKER),
    emptyIsZeros: isXl && index.force_zeros_for_empty_prompt === true,
    unit: factor * 2 ** ((unet.block_out_channels?.length ?? LEVELS) - 1),
    size: folder.size ?? [sides.at(-1) * factor, sides[0] * factor],
    fixed: folder.size !== null,
    scaling: vae.scaling_factor ?? SCALING,
    statistics: vae.latents_mean && vae.latents_std ? [vae.latents_mean, vae.latents_std] : null,
  };
}

const bytesOf = (folder, network) => filesOf(folder, network).reduce((sum, name) => sum + folder.bytesOf(name), 0);

/** Return how many bytes a picture takes on each device, how many the browser keeps of them, and whether it keeps any. */
export async function readDownload(folder) {
  const [wasm, webgpu, keeps] = await Promise.all([folder.download(BINARIES.wasm), folder.download(BINARIES.webgpu), keepsFiles()]);
  return { wasm, webgpu, keeps };
}

/** Open tokenizers and runtime for a device; networks are opened as they are needed. `tell` is that of `paint`. */
export async function openPipeline(folder, facts, device, tell, signal) {
  const { total } = await folder.download(BINARIES[device]);
  const pipeline = { device, folder, facts, total, bytes: 0, sessions: {} };
  const runtime = (one) => openRuntime(one, folder, onBytes(pipeline, "ONNX Runtime", tell), signal);
  const ort = await runtime(device);
  if (device !== "wasm" && folder.fused_attention) await requireAttention(ort, device);
  const tokenizers = await Promise.all(
    facts.encoders.map(async (encoder) => {
      const from = encoder.replace("text_encoder", "tokenizer");
      const files = [`${from}/tokenizer.json`, `${from}/tokenizer_config.json`];
      return makeTokenizer(...(await Promise.all(files.map((name) => folder.json(name, signal)))));
    }),
  );
  const preprocessing = facts.checked
    ? makePreprocessing(await folder.json("feature_extractor/preprocessor_config.json", signal))
    : null;
  const plain = { ort: device === "wasm" ? ort : await runtime("wasm"), device: "wasm" };
  return Object.assign(pipeline, { ort, plain, tokenizers, preprocessing });
}

const onBytes = (pipeline, name, tell) => (more, kept) => {
  const { total, bytes } = pipeline;
  pipeline.bytes = Math.min(bytes + more, total);
  tell({ kind: "load", name, kept, bytes: pipeline.bytes, total });
};

/** Give back the memory of the networks. */
export async function closePipeline({ sessions }) {
  for (const session of Object.values(sessions)) await session.release();
}

/**
 * Do some `work` with the session of a network, opened if it is not. Small networks stay open for the next picture; of
 * large ones there is room for one at a time. `tell({kind: "load", name, kept, bytes, total})` says how much has come.
 */
async function using(pipeline, name, tell, signal, work) {
  const { folder, sessions, facts } = pipeline;
  const { ort, device } = name === SCHEDULER ? pipeline.plain : pipeline;
  if (!sessions[name]) {
    const before = pipeline.bytes;
    try {
      sessions[name] = await openNetwork(ort, device, folder, name, onBytes(pipeline, name, tell), signal);
    } catch (error) {
      pipeline.bytes = before;
      throw error;
    }
  }
  const found = await work((inputs, outputs) => run(ort, sessions[name], name, inputs, outputs(sessions[name].outputNames)));
  if (facts.bytes > MOST_KEPT) {
    await sessions[name].release();
    delete sessions[name];
  }
  return found;
}

/**
 * Draw pictures; of a batch, each has the seed behind that of the one before.
 *
 * `request` has fields of a Request: prompt, negative_prompt, scheduler, steps, guidance_scale, seed, width, height and
 * num_images. `tell` hears how far it is, `{kind: "step", number, total}` and `{kind: "decode"}`, how a picture will
 * look, `{kind: "preview", pixels, width, height}`, and each that is finished,
 * `{kind: "picture", pixels, width, height, seed, flagged, seconds}`: black, if the safety checker flagged it. Pixels are
 * RGBA. A `signal` that is aborted ends it with an `AbortError`.
 */
export async function paint(pipeline, request, tell, signal) {
  const { facts } = pipeline;
  const guided = request.guidance_scale > 1;
  const texts = guided ? [request.negative_prompt, request.prompt] : [request.prompt];
  const use = (name, work) => using(pipeline, name, tell, signal, work);
  const schedule = await use(SCHEDULER, (scheduler) => makeSchedule(scheduler, request.scheduler, request.steps));
  const conditions = await encode(pipeline, texts, request, guided, use);
  for (let number = 0; number < request.num_images; number++) {
    const seed = BigInt.asUintN(SEEDS, BigInt(request.seed) + BigInt(number)).toString();
    const began = performance.now();
    const one = { ...request, seed, done: number * schedule.timesteps.length };
    const latents = await denoise(pipeline, one, schedule, texts.length, conditions, use, tell, signal);
    await breathe(signal);
    tell({ kind: "decode" });
    const pixels = await use("vae_decoder", (decoder) => decode(facts, latents, shapeOf(facts, one), decoder));
    const flagged = facts.checked && (await use(CHECKER, (checker) => isFlagged(pipeline.preprocessing, pixels, one, checker)));
    if (flagged) pixels.forEach((_, i) => (pixels[i] = i % 4 === 3 ? 255 : 0));
    const seconds = (performance.now() - began) / 1000;
    tell({ kind: "picture", pixels, width: request.width, height: request.height, seed, flagged, seconds });
  }
}

const shapeOf = ({ channels, factor }, { width, height }) => [channels, height / factor, width / factor];

/** Return the latents of a picture. */
function denoise({ facts, folder }, request, schedule, copies, conditions, use, tell, signal) {
  const shape = shapeOf(facts, request);
  const count = shape.reduce((one, other) => one * other);
  const draw = makeNoise(request.seed);
  const total = schedule.timesteps.length * request.num_images;
  const look = makeLook(facts, folder.colours, request, use);
  // The latents, and what the schedule keeps beside them.
  let state = [draw(count).map((value) => value * schedule.initial)];
  return use("unet", async (unet) => {
    for (const [call, moment] of schedule.timesteps.entries()) {
      await breathe(signal);
      tell({ kind: "step", number: request.done + call, total });
      const inputs = {
        sample: ["float32", repeated(schedule.scaled(state[0], call), copies), [copies, ...shape]],
        timestep: ["float32", new Float32Array([moment]), [1]],
        ...conditions,
      };
      const predicted = (await unet(inputs, () => ["out_sample"])).out_sample.data;
      const output = copies > 1 ? guide(predicted, request.guidance_scale) : predicted;
      const next = schedule.advance(state, output, schedule.draws(call) ? draw(count) : null, call);
      state = next.state;
      const preview = await look(next.foretold);
      if (preview) tell({ kind: "preview", ...preview });
    }
    return Float32Array.from(state[0]);
  });
}

/**
 * Return what makes a preview of latents: a pixel for each where their `colours` are known, else what the VAE makes of
 * them, at most a tenth of the time, where it is open beside the UNet; `null` for none.
 */
function makeLook(facts, colours, request, use) {
  const [channels, height, width] = shapeOf(facts, request);
  if (colours?.factors.length === channels) return (latents) => ({ pixels: coloured(latents, colours, width * height), width, height });
  let next = facts.bytes > MOST_KEPT ? Infinity : 0;
  return async (latents) => {
    const began = performance.now();
    if (began < next) return null;
    const pixels = await use("vae_decoder", (decoder) => decode(facts, Float32Array.from(latents), [channels, height, width], decoder));
    next = performance.now() + PATIENCE * (performance.now() - began);
    return { pixels, width: request.width, height: request.height };
  };
}

function coloured(latents, { factors, bias }, plane) {
  const pixels = new Uint8ClampedArray(plane * 4).fill(255);
  for (let i = 0; i < plane; i++) {
    for (let colour = 0; colour < 3; colour++) {
      const value = factors.reduce((sum, row, channel) => sum + row[colour] * latents[channel * plane + i], bias[colour]);
      pixels[i * 4 + colour] = (value * 0.5 + 0.5) * 255;
    }
  }
  return pixels;
}

async function isFlagged(preprocessing, pixels, { width, height }, checker) {
  const { data, dims } = preprocessing(pixels, width, height);
  // `images` is what the checker would blacken; a pixel will do, since that output is not asked for.
  const inputs = { clip_input: ["float32", data, dims], images: ["float32", new Float32Array(3), [1, 1, 1, 3]] };
  const found = await checker(inputs, () => ["has_nsfw_concepts"]);
  return Boolean(found.has_nsfw_concepts.data[0]);
}

/** Let messages in, and end if one of them said so. */
async function breathe(signal) {
  await new Promise((resolve) => setTimeout(resolve));
  signal.throwIfAborted();
}

function guide(predicted, scale) {
  const half = predicted.length / 2;
  const found = new Float32Array(half);
  for (let i = 0; i < half; i++) found[i] = predicted[i] + scale * (predicted[half + i] - predicted[i]);
  return found;
}

async function encode(pipeline, texts, request, guided, use) {
  const { facts, tokenizers } = pipeline;
  const parsed = texts.map(parsePrompt);
  const chunked = tokenizers.map((tokenizer) => parsed.map((parts) => chunk(tokenizer, parts)));
  const count = Math.max(...chunked.flat().map((chunks) => chunks.length));
  const encoded = [];
  for (const [place, encoder] of facts.encoders.entries()) {
    const all = chunked[place].flatMap((chunks) => padded(tokenizers[place], chunks, count));
    const { length } = tokenizers[place];
    encoded.push(await use(encoder, (network) => encodeRows(network, all, length, facts.isXl)));
  }
  const length = count * tokenizers[0].length;
  const width = encoded.reduce((sum, one) => sum + one.width, 0);
  const states = new Float32Array(texts.length * length * width);
  let column = 0;
  for (const one of encoded) {
    for (let token = 0; token < texts.length * length; token++) {
      states.set(one.states.subarray(token * one.width, (token + 1) * one.width), token * width + column);
    }
    column += one.width;
  }
  const zeros = guided && facts.emptyIsZeros && request.negative_prompt === "";
  if (zeros) states.fill(0, 0, length * width);
  const conditions = { encoder_hidden_states: ["float32", states, [texts.length, length, width]] };
  if (!facts.isXl) return conditions;
  const { pooled, pooledWidth } = encoded.at(-1);
  const first = new Float32Array(texts.length * pooledWidth);
  // The pooled text is that of each text's first chunk.
  texts.forEach((_, text) => first.set(pooled.subarray(text * count * pooledWidth, (text * count + 1) * pooledWidth), text * pooledWidth));
  if (zeros) first.fill(0, 0, pooledWidth);
  const { width: across, height: down } = request;
  return {
    ...conditions,
    text_embeds: ["float32", first, [texts.length, pooledWidth]],
    time_ids: ["float32", repeated(Float32Array.of(down, across, 0, 0, down, across), texts.length), [texts.length, 6]],
  };
}

async function encodeRows(network, rows, length, isXl) {
  let output = "last_hidden_state";
  const chosen = (names) => {
    const layers = names.filter((name) => name.startsWith("hidden_states.")).length - 1;
    // SDXL's UNet was trained on the last layer but one.
    if (isXl) output = `hidden_states.${layers - 1}`;
    return names.filter((name) => name === output || name === "text_embeds");
  };
  const ids = Int32Array.from(rows.flatMap((row) => row.ids));
  const found = await network({ input_ids: ["int32", ids, [rows.length, length]] }, chosen);
  const states = found[output].data;
  const width = states.length / rows.length / length;
  rows.forEach((row, place) => weigh(states.subarray(place * length * width, (place + 1) * length * width), row.weights));
  const pooled = found.text_embeds?.data;
  return { states, width, pooled, pooledWidth: pooled && pooled.length / rows.length };
}

async function decode({ scaling, statistics }, latents, shape, decoder) {
  const plane = shape[1] * shape[2];
  const unscaled = latents.map((value, i) => {
    if (!statistics) return value / scaling;
    const channel = Math.floor(i / plane);
    return (value * statistics[1][channel]) / scaling + statistics[0][channel];
  });
  const inputs = { latent_sample: ["float32", unscaled, [1, ...shape]] };
  const planes = (await decoder(inputs, () => ["sample"])).sample.data;
  const count = planes.length / 3;
  const pixels = new Uint8ClampedArray(count * 4);
  for (let i = 0; i < count; i++) {
    for (let colour = 0; colour < 3; colour++) pixels[i * 4 + colour] = (planes[colour * count + i] * 0.5 + 0.5) * 255;
    pixels[i * 4 + 3] = 255;
  }
  if (!planes.every(Number.isFinite)) throw new FolderError("The picture has values that are no numbers: its weights are broken, as `olivelike info` of the folder would say, or this device computes wrongly.");
  return pixels;
}

function repeated(values, times) {
  const all = new Float32Array(values.length * times);
  for (let i = 0; i < times; i++) all.set(values, i * values.length);
  return all;
}
