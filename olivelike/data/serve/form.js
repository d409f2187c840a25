// The fields of the form: what they hold, their bounds, what is kept of them, and the order that they make.

import { FORM } from "./declared.js";
import { $, exact, make, on, onFilled, option, recall, remember, settled, tellFilled, tellInput, typeOver, within } from "./dom.js";
import { t } from "./language.js";

const KEY = "olivelike.form";
/** Two shares of the steps, as on the command line. */
const PAIR = "\\s*[0-9.]+\\s*:\\s*[0-9.]+\\s*";
const fields = () => [...document.querySelectorAll("#form [data-field]")];
const kept = () => [...document.querySelectorAll("#form [data-field], #form [data-kept]")];

/** What a model has by itself, and what the form begins with in its place. */
const standard = {};
const defaults = {};
let optionsOf = "";

const DEFAULTS = "olivelike.defaults";
const WORDS = ["prompt", "negative_prompt"];
/** Fields whose defaults are those of a model, and of no other. */
const OF_MODEL = ["width", "height", "steps", "guidance_scale", "scheduler"];

/** Put an input for each declared field that has no place of its own into its group: numbers, choices, then boxes to tick. */
function buildFields() {
  const later = (one) => one.type === "boolean";
  const inputs = FORM.fields.filter((one) => one.group).sort((one, other) => later(one) - later(other));
  for (const one of inputs) document.querySelector(`[data-group="${one.group}"]`).append(...inputOf(one));
}

/** The input of a declared field, with its label and hint; `place` has its id, and what is to be found by it. */
export function inputOf({ name, label, type, min, max, step = 1, default: plain, value = plain, enum: choices, words = [], hint }, place = { id: name, data: { field: name } }) {
  const hints = hint ? [make("p", { className: "hint wide", id: `${name}-hint` }, hint)] : [];
  const base = { ...place, ...(hint ? { "aria-describedby": `${name}-hint` } : {}) };
  if (type === "boolean") {
    return [make("label", { className: "check wide" }, make("input", { ...base, type: "checkbox", defaultChecked: value }), ` ${label}`), ...hints];
  }
  // Words that no list of the declaration has are those of the server, which are read later.
  const input = choices || type === "string"
    ? make("select", base, ...(choices ?? [""]).map((choice, place) => option(choice, words[place])))
    : make("input", type === "array" ? { ...base, type: "text", pattern: PAIR } : { ...base, type: "number", min: min ?? "", max: max ?? "", step, defaultValue: value ?? "" });
  return [make("label", {}, `${label} `, input), ...hints];
}

buildFields();

/** Give an input elsewhere label, bounds and value of the field that it is one with, both ways. */
function joinTwin(twin) {
  const { name, label } = FORM.fields.find((one) => one.name === twin.dataset.twin);
  const follow = () => {
    const { min, max, value } = $(name);
    Object.assign(twin, { min, max });
    if (twin.value !== value) twin.value = value;
  };
  twin.before(`${label} `);
  twin.addEventListener("input", () => setField(name, twin.value));
  on("form", "input", follow);
  onFilled(follow);
  follow();
}

document.querySelectorAll("[data-twin]").forEach(joinTwin);

/** What an input holds. */
export const get = (input) => (input.type === "checkbox" ? input.checked : input.value);

/** Let an input hold a value. */
export function set(input, value) {
  if (input.type === "checkbox") input.checked = Boolean(value);
  else {
    const text = Array.isArray(value) ? value.join(":") : value ?? "";
    // What is chosen may be listed later: it is kept until then.
    if (input.tagName === "SELECT" && text && ![...input.options].some((one) => one.value === text)) input.append(option(text));
    input.value = text;
  }
}

/** Set one field and tell everybody who listens, as if it was typed; what was typed into a prompt can be had back by Ctrl+Z. */
export function setField(name, value) {
  const input = $(name);
  if (input.tagName === "TEXTAREA") return typeOver(input, value ?? "");
  set(input, value);
  tellInput(input);
}

/** Return the fields of a group of the form that hold something. */
export function readGroup(group) {
  const names = new Set(FORM.fields.filter((one) => one.group === group).map((one) => one.name));
  return Object.fromEntries(Object.entries(readFields()).filter(([name]) => names.has(name)));
}

/** Return the fields as the server takes them; an empty one is left to its default. */
export function readFields() {
  const order = {};
  for (const input of fields().filter((one) => !one.disabled)) {
    const name = input.dataset.field;
    const value = get(input);
    if (input.type === "number" || input.type === "range") {
      if (value !== "") order[name] = exact(value);
    } else if (typeof value === "boolean" || name === "prompt") order[name] = value;
    else if (input.pattern === PAIR) {
      if (value.trim() !== "") order[name] = value.split(":").map(Number);
    }
    else if (value !== "") order[name] = value;
  }
  if (order.seed === -1) delete order.seed;
  // A batch is what is made at once, as in A1111.
  if (order.num_images && order.batch_size) order.num_images *= order.batch_size;
  // What nobody changed is not asked for, so that a few-step model may take its own.
  for (const name of order.fast ? [...FEW, "eta"] : []) {
    if (String(order[name]) === String(few[name] ?? defaults[name] ?? "")) delete order[name];
  }
  return order;
}

const FEW = ["steps", "guidance_scale", "scheduler"];
/** What fields that nobody changed have of a LoRA of few steps. */
let few = {};

/** Show what few steps are drawn with where nobody changed it; `null` is without, by who `unticked` it as it was before. */
export function showFewSteps(found, unticked) {
  const [before, shown] = [few, found ?? {}];
  few = shown;
  if (!found && !unticked) return;
  const changed = FEW.filter((name) => get($(name)) === String(before[name] ?? defaults[name] ?? "") && get($(name)) !== String(shown[name] ?? defaults[name] ?? ""));
  for (const name of changed) set($(name), shown[name] ?? defaults[name]);
  if (changed.length) tellFilled();
}

/** Show a field, or hide one that has no meaning for a model, with its label and hint; what is hidden is not sent. */
function showField(input, shown) {
  const around = input.closest("label, .editor") ?? input;
  const heading = around.matches(".editor") ? around.previousElementSibling : null;
  for (const part of [around, heading, $(`${input.id}-hint`)]) if (part) part.hidden = !shown;
  input.disabled = !shown;
}

/** Take bounds and defaults of a model; a field that held the last model's default gets that of this one. */
export function takeOptions({ model, fields: given = {} }) {
  // The page begins with another value than the default for some.
  const own = new Map(FORM.fields.filter((one) => "value" in one).map((one) => [one.name, one.value]));
  optionsOf = model;
  for (const input of fields()) {
    const name = input.dataset.field;
    const bounds = given[name];
    if (!bounds) continue;
    showField(input, !bounds.absent);
    for (const side of ["min", "max", "step"]) {
      if (typeof bounds[side] === "number" && "min" in input) input[side] = bounds[side];
    }
    if (name === "seed") input.min = -1;
    // A scheduler's default is the model's own, which the empty choice says; without a default the page has its own.
    standard[name] = name === "scheduler" ? "" : bounds.value ?? own.get(name) ?? bounds.default ?? (input.type === "checkbox" ? input.defaultChecked : input.defaultValue);
  }
  beginWithDefaults();
  tellFilled();
  keep();
}

/** Give fields that nobody has changed what they begin with: what was kept as a default, else the model's own. */
function beginWithDefaults() {
  const wished = { ...keptDefaults()[""], ...keptDefaults()[optionsOf] };
  for (const input of fields()) {
    const name = input.dataset.field;
    if (!(name in standard)) continue;
    const untouched = !(name in remembered) || (name in defaults && String(get(input)) === String(defaults[name] ?? ""));
    const value = wished[name] ?? standard[name];
    if (untouched && !WORDS.includes(name)) set(input, value ?? "");
    defaults[name] = value;
  }
}

/** Defaults that this browser keeps: by model, and for all under "". */
const keptDefaults = () => recall(DEFAULTS, {});

function writeDefaults(kept) {
  remember(DEFAULTS, Object.fromEntries(Object.entries(kept).filter(([, values]) => Object.keys(values).length)));
  beginWithDefaults();
  tellFilled();
}

/** Keep what the form has otherwise than the model as defaults; return how many fields that are. */
export function keepDefaults() {
  const found = { "": {}, [optionsOf]: {} };
  for (const input of fields().filter((one) => !one.disabled)) {
    const name = input.dataset.field;
    if (!(name in standard) || WORDS.includes(name) || name === "seed") continue;
    if (String(get(input)) !== String(standard[name] ?? "")) found[OF_MODEL.includes(name) ? optionsOf : ""][name] = get(input);
  }
  writeDefaults({ ...keptDefaults(), ...found });
  return Object.values(found).reduce((sum, values) => sum + Object.keys(values).length, 0);
}

/** Go back to the model's own defaults: of one model, or of what holds for all, which is "". */
export function forgetDefaults(model) {
  writeDefaults({ ...keptDefaults(), [model]: {} });
}

/** What a field is called on the page: the words of its label, without what it holds. */
export function labelOf(name) {
  const { labels } = $(name === "scheduler" ? "sampler" : name) ?? {};
  const words = [...(labels?.[0]?.childNodes ?? [])].filter((node) => node.nodeType === Node.TEXT_NODE);
  return words.map((node) => node.data.trim()).join("") || name;
}

/** A sentence of the server in words of the page: fields, and options of the command line that are fields here, by their labels. */
export const inWordsOfThePage = (text) => text.replace(/--([a-z]+(?:-[a-z]+)*)(?:, \w+=True)?|\b[a-z]+(?:_[a-z]+)+\b|^[a-z]+\b/g, (whole, flag) => {
  const name = flag?.replaceAll("-", "_") ?? whole;
  const label = labelOf(name);
  return label === name ? whole : `“${label}”`;
});

/** Pixels that the model was trained on; unknown before its options are. */
export const ownArea = () => Number(standard.width) * Number(standard.height) || Infinity;

/** Say something about width and height, until they are changed. */
export function noteSize(text) {
  $("size-note").textContent = text;
  $("size-note").hidden = !text;
}

/** What is kept, in words. */
export function defaultsKept() {
  return Object.entries(keptDefaults()).map(([model, values]) => ({
    model, words: Object.entries(values).map(([name, value]) => `${labelOf(name)} ${value === true ? t`on` : value === false ? t`off` : value}`).join(" · "),
  }));
}

/** Put every option, but not the words, back to what the model has. */
export function resetFields() {
  for (const input of fields()) {
    const name = input.dataset.field;
    if (!WORDS.includes(name) && name in defaults) set(input, defaults[name]);
  }
  for (const input of kept().filter((one) => !one.dataset.field)) {
    if (input.tagName === "SELECT") input.selectedIndex = 0;
    else if (input.type === "checkbox") input.checked = input.defaultChecked;
    else input.value = input.defaultValue;
  }
  tellInput($("form"));
  tellFilled();
}

let remembered = {};

/** What the form holds, with what others keep beside it. */
export function formState() {
  return { fields: Object.fromEntries(kept().map((input) => [input.id, get(input)])), more: more() };
}

/** Fill the form in with such a state; fields that it has not stay as they are. */
export async function fillForm(state) {
  await fillMore(state.more ?? {});
  for (const input of kept()) {
    if (!(input.id in (state.fields ?? {}))) continue;
    if (input.tagName === "TEXTAREA") typeOver(input, String(state.fields[input.id]));
    else set(input, state.fields[input.id]);
  }
  tellInput($("form"));
  tellFilled();
}

function keep() {
  const state = formState();
  // Until a model says what it takes, words alone are somebody's choice.
  if (!optionsOf) state.fields = { ...remembered, ...Object.fromEntries(WORDS.map((name) => [name, state.fields[name]])) };
  remembered = state.fields;
  remember(KEY, state);
}

let more = () => ({});
let fillMore = async () => {};

/** Fill in what was there when the page was last open. `extra` returns further values to keep, `fillExtra` takes them; returns the last ones. */
export function rememberForm(extra, fillExtra) {
  [more, fillMore] = [extra, fillExtra];
  const found = recall(KEY, {});
  remembered = found.fields ?? {};
  for (const input of kept()) {
    // What somebody wrote while the page was loading stays.
    if (input.id in remembered && !(WORDS.includes(input.id) && input.value)) set(input, remembered[input.id]);
  }
  const later = settled(keep, 300);
  on("form", "input", later);
  on("form", "change", later);
  addEventListener("pagehide", keep);
  return found.more ?? {};
}

/** Bring sides to sizes that the model draws, and say so; with "fit" the server does that with the picture. */
function snapSize() {
  if ($("fit").checked) return;
  const told = ["width", "height"].map((id) => {
    const input = $(id);
    const [unit, value] = [Number(input.step) || 8, Number(input.value)];
    if (!input.value || value % unit === 0) return "";
    const most = Math.floor(Number(input.max) / unit) * unit;
    set(input, within(Math.round(value / unit) * unit, unit, most));
    return t`${value} became ${input.value}: sides are multiples of ${unit} with this model, at most ${most}.`;
  }).filter(Boolean);
  if (!told.length) return;
  noteSize([...new Set(told)].join(" "));
  keep();
}

/** Width by height as it is to stay while one of them is typed. */
let ratio = 1;

const takeRatio = () => (ratio = $("width").value / $("height").value || ratio);

/** Let the other side follow the one that is typed, where the aspect ratio is kept. */
function followSide({ target }) {
  const isWidth = target.id === "width";
  const other = $(isWidth ? "height" : "width");
  if (!$("keep-ratio").checked || !Number(target.value)) return;
  const unit = Number(other.step) || 8;
  const wished = isWidth ? target.value / ratio : target.value * ratio;
  set(other, within(Math.round(wished / unit) * unit, unit, Math.floor(Number(other.max) / unit) * unit));
}

const RATIOS = [[1, 1], [4, 3], [3, 2], [16, 9], [21, 9], [3, 4], [2, 3], [9, 16]];

/** Offer sizes of the area that the model was trained on: of each width the largest, in steps of 64 as SDXL's buckets are, next to a ratio. */
function offerShapes() {
  const [area, unit] = [ownArea(), Math.max(Number($("width").step), 64)];
  const sizes = [];
  for (let width = unit; width * unit <= area && area < 1e8; width += unit) sizes.push([width, Math.floor(area / width / unit) * unit]);
  const found = new Map(sizes.length ? RATIOS.map(([wide, high]) => {
    const away = ([width, height]) => Math.abs(Math.log((width * high) / (height * wide)));
    return [[...sizes].sort((one, other) => away(one) - away(other))[0].join("×"), `${wide}:${high}`];
  }).reverse() : []);
  $("shape").hidden = found.size < 2;
  $("shape").replaceChildren(option("", "▭"), ...[...found].reverse().map(([size, ratio]) => option(size, `${ratio} · ${size}`)));
}

/** Say how many of the rare options are not at their defaults. */
function tellRare() {
  const begins = (input) => defaults[input.dataset.field] ?? (input.type === "checkbox" ? input.defaultChecked : "");
  const changed = kept().filter((input) => input.closest("#fold-rare") && !input.disabled && String(get(input)) !== String(begins(input)));
  $("rare-badge").textContent = changed.length || "";
}

export function startSizes() {
  on("form", "input", tellRare);
  onFilled(tellRare);
  for (const id of ["width", "height"]) {
    on(id, "input", () => noteSize(""));
    on(id, "change", snapSize);
    for (const event of ["input", "change"]) on(id, event, (said) => said.isTrusted && followSide(said));
  }
  // A size that nobody types, as one of the list or of a recipe, has its own.
  on("form", "input", ({ isTrusted, target }) => (!isTrusted || target.id === "keep-ratio") && takeRatio());
  onFilled(takeRatio);
  on("fit", "change", snapSize);
  onFilled(offerShapes);
  on("shape", "change", () => {
    const [width, height] = $("shape").value.split("×");
    setField("width", width);
    setField("height", height);
    $("shape").value = "";
  });
  onFilled(snapSize);
}

/** Show at which field the server or the browser finds fault, and open what it is folded in; `mended` is called once it is changed. */
export function markField(name, mended = () => {}) {
  const axes = [...document.querySelectorAll(".axis input")];
  for (const input of [...fields(), $("sampler"), ...axes]) input.removeAttribute("aria-invalid");
  const input = name && (fields().find((one) => one.dataset.field === name) ?? axes.find((one) => one.id === name));
  if (!input) return;
  // What is made of two lists is seen as the first of them.
  const seen = input.type === "hidden" ? $("sampler") : input;
  seen.setAttribute("aria-invalid", "true");
  const fold = seen.closest("details");
  if (fold) fold.open = true;
  seen.focus();
  seen.addEventListener("input", () => {
    markField(null);
    mended();
  }, { once: true });
}

/** What shares of the steps have to be. */
export const twoShares = () => t`two shares of the steps, the first one smaller, such as 0.2:0.8.`;

/** Why a field's bounds refuse its value, in the page's language where the browser has its own. */
export function whyInvalid(input) {
  const { patternMismatch, rangeOverflow, rangeUnderflow } = input.validity;
  if (patternMismatch) return twoShares();
  if (rangeUnderflow) return t`at least ${input.min}.`;
  return rangeOverflow ? t`at most ${input.max}.` : input.validationMessage;
}

/** The first field whose value its own bounds refuse, with a sentence about it. */
export function firstFault() {
  snapSize();
  const input = fields().find((one) => !mayStand(one));
  if (!input) return null;
  return { field: input.dataset.field, message: `${labelOf(input.id)}: ${whyInvalid(input)}` };
}

/**
 * Whether a field's bounds take its value.
 *
 * Spinners go in steps, but any number between is one; a size may be between those that there are if it is to be fit.
 */
export function mayStand(input) {
  const { badInput, rangeOverflow, rangeUnderflow, stepMismatch, valid } = input.validity;
  if (!stepMismatch || badInput || rangeOverflow || rangeUnderflow) return valid;
  const size = input.id === "width" || input.id === "height";
  return Number(input.step) % 1 !== 0 || (size && $("fit").checked);
}
