// What made a picture: into the form, and as words for people.

import { $, make } from "./dom.js";
import { setField } from "./form.js";
import { setLoras } from "./loras.js";
import { model, modelNames, setModel, setScheduler } from "./models.js";
import { notice } from "./notices.js";
import { ask } from "./server.js";

const PLAIN = ["steps", "guidance_scale", "guidance_rescale", "eta", "seed", "width", "height", "strength", "clip_skip", "prompt_weights", "fit"];

/** What a record has only where it was used. */
const SELDOM = { variation_strength: 0, variation_seed: "", hires: "", hires_strength: 0.7, cache_interval: 1, tiled_vae: false };
const MASKED = { inpaint_area: "whole", inpaint_padding: 32, mask_blur: "" };

/** Fill the form in with a record. `leftOut` is the server's sentence on what the form can't take; it is asked for if need be. */
export async function applyRecipe(record, where = "the picture", leftOut = undefined) {
  const missing = [];
  // The form has to be in sight before its texts are typed over.
  location.hash = "#paint";
  await new Promise((shown) => setTimeout(shown));
  const told = leftOut === undefined ? (await ask("/api/recipes", { method: "POST", json: { record } }).catch((error) => ({ left_out: error.message }))).left_out : leftOut;
  if (record.model && record.model !== model()) {
    if (modelNames().includes(record.model)) await setModel(record.model);
    else missing.push(`the model ${record.model} is not served here`);
  }
  setField("prompt", record.prompt ?? "");
  setField("negative_prompt", record.negative_prompt ?? "");
  for (const name of PLAIN) {
    if (record[name] !== null && record[name] !== undefined) setField(name, record[name]);
  }
  for (const [name, plain] of Object.entries({ ...SELDOM, ...(record.mask ? MASKED : {}) })) setField(name, record[name] ?? plain);
  setScheduler(record.scheduler);
  // LoRAs that the prompt names itself would count twice.
  const named = new Set([...(record.prompt ?? "").matchAll(/<(?:lora|lyco):([^:<>]+)/g)].map((match) => match[1].trim().split(/[\\/]/).pop()));
  setLoras((record.loras ?? []).filter((lora) => !named.has(lora.name)));
  for (const [used, name] of [[record.init_image, "an initial picture"], [record.mask, "a mask"], ...(record.controls ?? []).map((one) => [one.image, "a picture that led"]), ...(record.ip_adapter_images ?? []).map((one) => [one, "a picture that was a prompt"])]) {
    if (used) missing.push(`it was made from ${name} (${used.name}), which you have to choose again`);
  }
  $("form").dispatchEvent(new Event("input", { bubbles: true }));
  $("prompt").focus();
  const text = `Recipe of ${where} loaded${missing.length ? `, but ${missing.join(", and ")}` : ""}.`;
  // What changes the picture stays until it is closed.
  if (told) notice(`${text} ${told[0].toUpperCase()}${told.slice(1)}.`, [], { stays: true });
  else notice(text);
}

const NAMES = {
  prompt: "Prompt", negative_prompt: "Negative prompt", model: "Model", model_hash: "Model hash", seed: "Seed", steps: "Steps",
  guidance_scale: "Guidance", guidance_rescale: "Guidance rescale", scheduler: "Scheduler", eta: "Eta", size: "Size",
  strength: "Strength", clip_skip: "Clip skip", loras: "LoRAs", init_image: "Initial picture", mask: "Mask",
  variation_strength: "Variation", variation_seed: "Variation seed", hires: "Drawn again", hires_strength: "Its strength",
  cache_interval: "Cache interval", tiled_vae: "Decoded in parts", controls: "Led by", provider: "Provider", version: "Program", prompt_weights: "Plain prompt", fit: "Cropped to fit",
};

const of = {
  size: (record) => record.width && record.height && `${record.width}×${record.height}`,
  loras: (record) => record.loras?.map((lora) => (lora.weight === null || lora.weight === undefined ? lora.name : `${lora.name} ${lora.weight}`)).join(", "),
  init_image: (record) => record.init_image?.name,
  mask: (record) => record.mask?.name,
  controls: (record) => record.controls?.map((one) => `${one.net} ${one.strength}: ${one.image.name}`).join(", "),
  prompt_weights: (record) => record.prompt_weights === false && "yes",
  fit: (record) => record.fit && "yes",
  scheduler: (record) => record.scheduler ?? record.sampler,
  guidance_rescale: (record) => record.guidance_rescale || null,
  eta: (record) => record.eta || null,
  clip_skip: (record) => record.clip_skip || null,
};

/** The recipe as pairs of a description list. */
export function recipeRows(record) {
  const rows = Object.entries(NAMES).map(([name, label]) => [label, of[name] ? of[name](record) : record[name]]);
  rows.push(...Object.entries(record.other ?? {}));
  return rows
    .filter(([, value]) => value !== null && value !== undefined && value !== "" && value !== false)
    .map(([label, value]) => make("div", {}, make("dt", {}, label), make("dd", {}, String(value))));
}
