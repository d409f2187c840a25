// Draws apart from the page, which stays alive meanwhile. Messages in: {kind: "facts" | "download" | "forget" | "paint" | "cancel"};
// out: what `tell` is given, and {kind: "facts" | "download" | "painted" | "cancelled" | "failed"}.

import { FolderError, MemoryError, openFolder } from "./folder.js";
import { forgetOthers } from "./kept.js";
import { DeviceError } from "./networks.js";
import { closePipeline, openPipeline, paint, readDownload, readPipeline } from "./pipeline.js";

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
    opened = { device, pipeline: await openPipeline(folder, facts, device, postMessage, signal) };
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
    const { folder, facts } = await read(signal);
    const { size, unit, fixed, bytes, largest } = facts;
    const { samplers, device, examples, made } = folder;
    return { kind: "facts", size, unit, fixed, bytes, largest, samplers, device, examples, made, download: await readDownload(folder) };
  },
  async download(_, signal) {
    return { kind: "download", download: await readDownload((await read(signal)).folder) };
  },
  async forget(_, signal) {
    await forgetOthers();
    return answers.download(_, signal);
  },
  async paint({ device, request }, signal) {
    const began = performance.now();
    await paint(await open(device, signal), request, postMessage, signal);
    return { kind: "painted", seconds: (performance.now() - began) / 1000 };
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
