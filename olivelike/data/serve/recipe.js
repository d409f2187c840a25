// What made a picture: into the form, and as words for people.

import { FORM } from "./declared.js";
import { $, make, newest, tellInput } from "./dom.js";
import { fillForm, formState, markField, setField } from "./form.js";
import { fillPictures, picturesOf } from "./form_pictures.js";
import { t } from "./language.js";
import { setLoras } from "./loras.js";
import { model, modelNames, setModel } from "./models.js";
import { notice } from "./notices.js";
import { clearAxes } from "./plot.js";
import { ask, path } from "./server.js";
import { hasUpscaler } from "./upscale.js";

/** Fields that are filled in otherwise: typed over, so that what was there can be had back, or chosen from a list. */
const TEXTS = new Set(["negative_prompt", "scheduler", "upscaler"]);

const applying = newest();

/** Fill the form in with a record. `leftOut` is the server's sentence on what the form can't take; it is asked for if need be. */
export async function applyRecipe(record, where = t`the picture`, leftOut = undefined, actions = [], script = null) {
  const isNewest = applying();
  const missing = [];
  const before = formState();
  const told = leftOut === undefined ? ask("/api/recipes", { method: "POST", json: { record } }).then((found) => found.left_out, (error) => error.message) : leftOut;
  // The form has to be in sight before its texts are typed over.
  location.hash = "#paint";
  await new Promise((shown) => setTimeout(shown));
  if (record.model && record.model !== model()) {
    if (modelNames().includes(record.model)) await setModel(record.model);
    else missing.push(t`the model ${record.model} is not served here`);
  }
  const given = await picturesOf(record).catch(() => picturesOf({}));
  if (!isNewest()) return;
  await fillPictures(given.pictures);
  missing.push(...given.missing);
  setField("prompt", record.prompt ?? "");
  setField("negative_prompt", record.negative_prompt ?? "");
  for (const side of ["width", "height"]) if (record[side]) setField(side, record[side]);
  const without = new Set([record.mask ? "" : "mask", record.ip_adapter_images?.length ? "" : "ip_adapter_images"]);
  for (const { name, about, always, default: plain } of FORM.fields.filter((one) => one.recorded && !TEXTS.has(one.name))) {
    if (without.has(about)) {
      without.add(name);
      continue;
    }
    // What the model hasn't is left as other models have it.
    if ($(name).disabled) continue;
    const value = record[name] ?? (always ? undefined : plain ?? "");
    if (value !== undefined) setField(name, value);
  }
  setField("scheduler", record.scheduler ?? "");
  const enlarger = enlargerOf(record);
  if (hasUpscaler(enlarger)) setField("upscaler", enlarger);
  else missing.push(t`the upscaler ${enlarger} is not served here`);
  setLoras(lorasOf(record));
  // It is the recipe of one picture.
  for (const name of ["num_images", "batch_size"]) setField(name, 1);
  for (const name of ["sheet", "fast", "lines"]) setField(name, false);
  clearAxes();
  for (const [side, { field, text }] of Object.entries(script ?? {})) {
    setField(`${side}-field`, field);
    setField(`${side}-values`, text);
  }
  tellInput($("form"));
  markField(null);
  $("prompt").focus();
  const text = missing.length ? t`Recipe of ${where} loaded, but ${missing.join("; ")}.` : t`Recipe of ${where} loaded.`;
  const lost = await told;
  // What changes the picture stays until it is closed.
  notice(lost ? `${text} ${lost[0].toUpperCase()}${lost.slice(1)}.` : text, [[t`Undo`, () => fillForm(before)], ...actions], { stays: Boolean(lost) });
}

const enlargerOf = ({ upscaler }) => upscaler?.name.replace(/\.onnx$/, "") ?? "";

/** LoRAs beside those that the prompt names itself, which would count twice. */
function lorasOf({ prompt, loras }) {
  const named = new Set([...(prompt ?? "").matchAll(/<(?:lora|lyco):([^:<>]+)/g)].map((match) => match[1].trim().split(/[\\/]/).pop()));
  return (loras ?? []).filter(({ name }) => !named.has(name)).map(({ name, weight }) => ({ name, weight: weight ?? 1 }));
}

/** The order that makes a picture again, of its record and of the pictures that its job was given. */
export async function orderOf({ record, seed, job }) {
  const found = { prompt: record.prompt ?? "", negative_prompt: record.negative_prompt, seed, width: record.width, height: record.height, scheduler: record.scheduler };
  if (modelNames().includes(record.model)) found.model = record.model;
  for (const { name } of FORM.fields.filter((one) => one.recorded)) if (record[name] !== undefined) found[name] = record[name];
  if (record.upscaler) found.upscaler = enlargerOf(record);
  found.loras = lorasOf(record);
  const used = ["init_image", "mask", "controls", "ip_adapter_images", "references"].filter((name) => (Array.isArray(record[name]) ? record[name].length : record[name]));
  if (used.length) {
    const { order } = await ask(path("jobs", job ?? "none")).catch(() => ({ order: null }));
    if (!order) throw new Error(t`It was made from pictures that the server has no more; use its recipe, and choose them again.`);
    for (const name of used) found[name] = order[name];
  }
  return Object.fromEntries(Object.entries(found).filter(([, value]) => value !== null && value !== undefined));
}

const TEMPLATE = /\{(\w+)(?:\[(\d)\])?(?::g)?\}/g;

/** A value of a record in words: numbers and texts as they are, files by name and weight, pictures that led by how. */
function said(value) {
  if (Array.isArray(value)) return value.map(said).join(value[0]?.image ? "; " : ", ");
  if (value?.image) {
    const made = FORM.preprocessors.filter(({ name }) => name === value.preprocessor).map(({ label }) => label);
    const steps = value.start > 0 || value.end < 1 ? [`${value.start}–${value.end}`] : [];
    return [`${value.net} ${value.strength}: ${value.image.name}`, ...made, ...steps].join(", ");
  }
  if (value?.name) return value.weight === null || value.weight === undefined ? value.name : `${value.name} ${value.weight}`;
  return String(value);
}

/** What a field has that a record says nothing of. */
const plainOf = (field) => FORM.fields.find(({ name }) => name === field)?.default;

// What is no, or an empty list, is declared as nothing.
const isSaid = (value, plain = Array.isArray(value) ? [] : false) => value !== undefined && value !== null && value !== "" && JSON.stringify(value) !== JSON.stringify(plain);

/** The recipe as pairs of a label and a value in words. */
export function recipeFacts(record) {
  const whole = { ...record, scheduler: [record.sampler, record.sampler && record.schedule].filter(Boolean).join(" ") || record.scheduler, model: [record.model, record.model_hash].filter(Boolean).join(" ") };
  const told = FORM.record.filter(({ name, default: plain }) => isSaid(whole[name], plain));
  const rows = told.map(({ name, label, text }) => [
    label,
    text ? text.replace(TEMPLATE, (_, field, place) => (place ? record[field][place] : record[field] ?? plainOf(field))) : said(whole[name]),
  ]);
  rows.push(...Object.entries(record.other ?? {}));
  return rows;
}

/** The recipe as pairs of a description list. */
export const recipeRows = (record) => recipeFacts(record).map(([label, value]) => make("div", {}, make("dt", {}, label), make("dd", {}, String(value))));
