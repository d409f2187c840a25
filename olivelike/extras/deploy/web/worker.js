// Draws apart from the page, which stays alive meanwhile. Messages in: {kind: "facts" | "paint" | "cancel"}; out: what
// `tell` is given, and {kind: "facts" | "picture" | "cancelled" | "failed"}.

import { FolderError, MemoryError, openFolder } from "./folder.js";
import { DeviceError } from "./networks.js";
import { closePipeline, openPipeline, paint, readPipeline } from "./pipeline.js";

const MODEL = new URL("model/", import.meta.url).href;

let known = null;
let opened = null;
let stop = new AbortController();

async function read(signal) {
  if (!known) {
    const folder = await openFolder(MODEL, signal);
    known = { folder, facts: await readPipeline(folder, signal) };
  }
  return known;
}

async function open(device, signal) {
  if (opened?.device !== device) {
    await close();
    const { folder, facts } = await read(signal);
    opened = { device, pipeline: await openPipeline(folder, facts, device, signal) };
  }
  return opened.pipeline;
}

async function close() {
  const before = opened;
  opened = null;
  if (before) await closePipeline(before.pipeline);
}

const answers = {
  async facts(_, signal) {
    const { facts } = await read(signal);
    const { size, unit, fixed, samplers, download } = facts;
    return { kind: "facts", size, unit, fixed, samplers, download };
  },
  async paint({ device, request }, signal) {
    const pipeline = await open(device, signal);
    const began = performance.now();
    const picture = await paint(pipeline, request, postMessage, signal);
    return { kind: "picture", ...picture, seconds: (performance.now() - began) / 1000 };
  },
};

function failure(error) {
  const named = [FolderError, MemoryError, DeviceError].find((kind) => error instanceof kind);
  return { kind: "failed", type: named?.name ?? "Error", message: String(error?.message ?? error) };
}

self.onmessage = async ({ data }) => {
  if (data.kind === "cancel") {
    stop.abort();
    return;
  }
  stop = new AbortController();
  const { signal } = stop;
  try {
    postMessage(await answers[data.kind](data, signal));
  } catch (error) {
    postMessage(signal.aborted ? { kind: "cancelled" } : failure(error));
  }
};
