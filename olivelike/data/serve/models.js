// The model that paints: picker, bounds of the form, samplers.

import { $, inMegabytes, make, newest, offer, on, option, tellFilled } from "./dom.js";
import { takeControlNets } from "./controls.js";
import { takeOptions } from "./form.js";
import { t } from "./language.js";
import { announce, notice, problem } from "./notices.js";
import { pick } from "./picker.js";
import { imagePrompts, references } from "./picture_lists.js";
import { recount } from "./prompts.js";
import { takeSamplers } from "./samplers.js";
import { ask, query } from "./server.js";

let models = [];
let current = null;
const pictures = new Map();
const choosing = newest();

const found = (name) => models.find((one) => one.name === name);

export const model = () => current;
/** Whether a LoRA of that family, or for prompts of that width, is for another kind of model, by its layers. */
export function isForAnother({ family, families, text_width: width }) {
  const now = found(current);
  return Boolean(now) && ((families?.length > 0 && !families.includes(now.family)) || [[family, now.family], [width, now.text_width]].some(([one, other]) => one && other && one !== other));
}
export const family = () => found(current)?.family ?? null;
export const examples = () => found(current)?.examples ?? [];
export const usualSize = (name) => found(name)?.default_size ?? [512, 512];
export const titleOf = (name) => found(name)?.title ?? name;
export const modelNames = () => models.map((one) => one.name);

/** What the model picker and the gallery's filter offer, read anew. */
export async function readModels(wanted = null) {
  models = await ask("/api/models");
  const usable = models.filter((one) => one.state !== "missing");
  const asked = wanted ?? current;
  const next = usable.find((one) => one.name === asked) ?? usable[0];
  offer($("search-model"), [option("", t`Any model`), ...models.map((one) => option(one.name, one.title))]);
  if (next && asked && next.name !== asked) notice(t`The model “${asked}” is no longer served; “${next.name}” is chosen.`);
  if (next) await setModel(next.name);
  else show();
}

export async function setModel(name) {
  const isNewest = choosing();
  const changed = current !== null && current !== name;
  current = name;
  show();
  try {
    const options = await ask(query("/api/options", { model: name }));
    if (!isNewest()) return;
    takeOptions(options);
    takeSamplers(options.samplers, changed);
    takeControlNets(options.controlnets);
    imagePrompts.allow(options.ip_adapter ? Infinity : 0);
    references.allow(options.most_references);
    recount();
    if (changed) announce(t`Model: ${titleOf(name)}`);
  } catch (error) {
    if (isNewest()) problem($("order-problem"), error);
  }
  tellFilled();
}

function detailOf(one) {
  const size = one.default_size ? `${one.default_size[0]}×${one.default_size[1]}` : "";
  const parts = [one.family, size, one.made_for?.replace(" in ", " · "), one.size ? inMegabytes(one.size) : "", one.inpaints ? t`inpainting` : "", one.state === "missing" ? t`its folder is gone` : one.loaded ? t`loaded` : ""];
  return parts.filter(Boolean).join(" · ");
}

function show() {
  const one = found(current);
  $("stage-no-model").hidden = Boolean(one);
  $("model-button").replaceChildren(
    make("span", { className: "hint" }, t`Model`),
    make("strong", {}, one?.title ?? t`no model`),
    make("span", { className: "hint" }, one ? detailOf(one) : t`The server has no folder that can paint.`),
  );
}

async function cards() {
  // A model has no picture of its own: the last one that it painted, and that is not black, stands for it.
  await readModels().catch(() => {});
  await Promise.all(models.map(async (one) => {
    const last = await ask(query("/api/pictures", { model: one.name, search: "flagged:no", limit: 1 })).catch(() => ({ pictures: [] }));
    pictures.set(one.name, last.pictures[0]?.thumb ?? null);
  }));
  return known();
}

function known() {
  return models.map((one) => ({
    name: one.name, title: one.title, detail: detailOf(one), picture: pictures.get(one.name),
    current: one.name === current, disabled: one.state === "missing",
  }));
}

/** What there is to know of each model. */
export const modelFacts = () => models.map((one) => ({ title: one.title, detail: detailOf(one), sha256: one.sha256, loaded: one.loaded, current: one.name === current }));

/** Read what is loaded, and nothing else: the form stays as it is. */
export const readLoaded = async () => (models = await ask("/api/models"));

export async function unloadModels() {
  await ask("/api/models/unload", { method: "POST" });
  notice(t`What is open is closed as soon as nothing is drawn; the next picture opens it again.`);
}

function open() {
  pick(t`Model`, known(), setModel, { again: cards, more: () => (models.some((one) => one.loaded) ? [t`Free memory`, unloadModels] : null) });
}

export function startModels() {
  on("model-button", "click", open);
}
