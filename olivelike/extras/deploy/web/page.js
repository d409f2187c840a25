// The form, and what it shows while the worker paints; everything heavy is in worker.js.

import { $, button, inMegabytes, inWords, nameKeys, on, option, settled, startStrip, tellFilled } from "./dom.js";
import { followsBrowser, LANGUAGE, LANGUAGES, setLanguage, t } from "./language.js";
import { announce, confirmed, problem, say } from "./notices.js";
import { addPicture, allPictures, endPreview, readPictures, removePicture, showPreview, shownPicture } from "./pictures.js";
import { namedSampler, startSamplers, takeSamplers } from "./samplers.js";
import "./theme.js";

const KEY = `olivelike.page ${location.pathname}`;
const MOST_OF_WASM = 4 * 2 ** 30;
/** Times as much memory as its largest network a pipeline was seen to take (docs/web.md). */
const MEMORY = 4;
/** Bytes that nobody waits for: configs, which are read for facts. */
const LITTLE = 1e5;

let worker = null;
let facts = null;
let graphics = null;
let remembered = {};
let asked = null;
let began = 0;
let finished = [];
let loaded = null;
let total = 0;

const fields = () => [...document.querySelectorAll("[data-field]")];
const words = new Set(["prompt", "negative_prompt"]);
const choice = (device) => document.querySelector(`input[value=${device}]`);
const device = () => document.querySelector("input[name=device]:checked").value;

function show(id, text) {
  $(id).textContent = text;
  $(id).hidden = !text;
}

function showProblem(text, offersWasm = false) {
  problem($("problem"), text);
  $("use-wasm").hidden = !offersWasm;
}

function setPainting(request) {
  asked = request;
  const idle = !request && facts && !choice(device()).disabled;
  for (const id of ["generate", "forget-files", "forget-pictures"]) $(id).disabled = !idle;
  $("cancel").disabled = !request;
  if (!facts) return;
  showKept();
  showDownload();
}

/** Say how much comes before the first picture on this device. */
function showDownload() {
  const { total: all, kept } = facts.download[device()];
  const [rest, whole, here] = [all - kept, all, kept].map(inMegabytes);
  const some = kept > LITTLE ? t`Downloads ${rest} before the first picture; ${here} are here.` : t`Downloads ${rest} before the first picture, once.`;
  const complete = facts.download.keeps && all - kept < LITTLE;
  $("download").classList.toggle("complete", complete);
  const told = facts.download.keeps ? (complete ? t`Nothing to download: all ${whole} are here.` : some) : t`Downloads ${whole} before the first picture.`;
  show("download", asked || (loaded === device() && !facts.download.keeps) ? "" : told);
}

function showKept() {
  const { keeps, webgpu } = facts.download;
  const pictures = allPictures();
  const bytes = pictures.reduce((sum, one) => sum + one.bytes, 0);
  const why = t`Browsers keep files for pages from https and from this machine alone: when this page is closed, its pictures are gone.`;
  show("kept-note", keeps ? t`The model and what runs it: ${inMegabytes(webgpu.kept)}. Pictures: ${pictures.length}, ${inMegabytes(bytes)}.` : why);
  $("forget-files").disabled ||= webgpu.kept < LITTLE;
  $("forget-pictures").disabled ||= !pictures.length;
}

/** Say why the graphics card can't be used; nothing if it can. */
async function whyNoGraphics() {
  if (!self.isSecureContext) return t`Browsers offer WebGPU to pages from https and from this machine alone.`;
  if (!navigator.gpu) return t`This browser has no WebGPU here; current ones of Chrome, Edge and Safari have.`;
  const adapter = await navigator.gpu.requestAdapter().catch(() => null);
  if (!adapter) return t`This browser has WebGPU, but gives this page no graphics card.`;
  graphics = adapter;
  return "";
}

/** Offer the devices that the pipeline can be painted with, and choose one. */
async function offerDevices() {
  const why = await whyNoGraphics();
  const fits = facts.largest <= MOST_OF_WASM;
  const large = t`Its largest network has ${inMegabytes(facts.largest)}, and the processor (wasm) has room for ${inMegabytes(MOST_OF_WASM)} at most.`;
  choice("webgpu").disabled = Boolean(why);
  choice("wasm").disabled = !fits;
  show("device-note", [why && fits ? `${why} ${t`So the processor paints.`}` : why, fits ? "" : large].filter(Boolean).join(" "));
  const needed = MEMORY * facts.largest;
  const has = (navigator.deviceMemory ?? Infinity) * 2 ** 30;
  show("memory-note", needed > has ? t`Painting takes about ${inMegabytes(needed)} of memory, and this device says that it has ${inMegabytes(has)}: it may not suffice.` : "");
  const isReal = graphics && !(graphics.info?.isFallbackAdapter ?? graphics.isFallbackAdapter);
  const best = isReal && (facts.device === "webgpu" || !fits) ? "webgpu" : "wasm";
  const wanted = [remembered.device, best, "wasm", "webgpu"].find((one) => one && !choice(one).disabled);
  if (wanted) choice(wanted).checked = true;
  else showProblem([t`This pipeline can’t be painted here.`, why, large, t`Another browser or device may have room.`].join(" "));
}

function fill(values) {
  for (const input of fields()) if (values[input.id] !== undefined) input.value = values[input.id];
  tellFilled();
  keep();
}

function keep() {
  const values = Object.fromEntries(fields().map((input) => [input.id, input.value]));
  remembered = { ...values, device: remembered.device };
  try {
    localStorage.setItem(KEY, JSON.stringify(remembered));
  } catch {
    // A browser without room or in private mode: the form lives as long as the page.
  }
}

function recall() {
  try {
    remembered = JSON.parse(localStorage.getItem(KEY)) ?? {};
  } catch {
    remembered = {};
  }
}

const usual = () => ({ ...Object.fromEntries(fields().map((input) => [input.id, input.defaultValue])), width: facts.size[0], height: facts.size[1], scheduler: "" });

/** Return the fields as a Request has them; a seed stays text, since numbers of JavaScript have 53 bits. */
function readForm() {
  const values = Object.fromEntries(fields().map((input) => [input.id, input.type === "number" && input.id !== "seed" ? Number(input.value) : input.value]));
  const seed = values.seed === "-1" ? String(crypto.getRandomValues(new Uint32Array(1))[0]) : values.seed;
  return { ...values, seed };
}

function generate() {
  if (asked || $("generate").disabled || !$("form").reportValidity()) return;
  keep();
  showProblem("");
  finished = [];
  began = 0;
  setPainting(readForm());
  say(t`Beginning…`, 0);
  announce(t`Painting has begun.`);
  // Where the picture is above the options, it is brought into sight.
  if (matchMedia("(max-width: 56rem)").matches) $("frame").scrollIntoView({ block: "center" });
  worker.postMessage({ kind: "paint", device: device(), request: asked });
}

/** What comes after the end of a request, whichever it was. */
function ended(text) {
  if (!$("preview").hidden) endPreview();
  say(text);
  announce(text);
  setPainting(null);
  worker.postMessage({ kind: "download" });
}

const heard = {
  async facts(found) {
    facts = found;
    for (const [id, side] of [["width", found.size[0]], ["height", found.size[1]]]) {
      Object.assign($(id), { min: found.unit, step: found.unit, value: side, readOnly: found.fixed });
    }
    $("swap").disabled = found.fixed;
    takeSamplers(found.samplers, false);
    fill({ ...usual(), prompt: found.examples[0], ...remembered, ...(found.fixed ? { width: found.size[0], height: found.size[1] } : {}) });
    if (found.samplers.own === null) withoutOwn();
    const example = (text) => button(text, () => {
      fill({ prompt: text });
      $("generate").focus();
    }, { className: "quiet" });
    $("examples").replaceChildren(t`Try: `, ...found.examples.map(example));
    await readPictures();
    await offerDevices();
    const other = found.samplers.own === null ? t`${found.samplers.class}, the model’s own sampler, is not known here; choose another one.` : "";
    say(`${t`Ready.`} ${other}`.trim());
    setPainting(null);
    document.documentElement.dataset.ready = "yes";
  },
  download({ download }) {
    facts.download = download;
    setPainting(asked); // The next picture may have begun.
  },
  load({ name, kept, bytes, total: all }) {
    const [what, come, whole] = [name.replaceAll("_", " "), inMegabytes(bytes), inMegabytes(all)];
    say(kept ? t`Reading ${what}: ${come} of ${whole}` : t`Downloading ${what}: ${come} of ${whole}`, bytes / all);
  },
  step({ number, total: all }) {
    total = all;
    if (!began) began = performance.now();
    const each = number ? (performance.now() - began) / number / 1000 : 0;
    const steps = all / asked.num_images;
    const [step, picture, pictures] = [(number % steps) + 1, Math.floor(number / steps) + 1, asked.num_images];
    const left = number ? ` · ${t`${inWords(each * (all - number))} left`}` : "";
    say((pictures > 1 ? t`Step ${step} of ${steps}, picture ${picture} of ${pictures}` : t`Step ${step} of ${steps}`) + left, number / all);
  },
  preview: showPreview,
  decode() {
    say(t`Decoding the picture…`, Math.max($("step-bar").value, 1 / total));
  },
  picture({ pixels, seed, flagged, seconds }) {
    const { num_images: _, ...recipe } = { ...asked, seed };
    const told = { ...recipe, ...facts.made, ...namedSampler(recipe.scheduler) };
    const isAlike = !facts.samplers.other_noise.includes(recipe.scheduler);
    const note = isAlike ? "" : t`It draws the noise of this sampler otherwise: its picture has other details.`;
    finished.push(addPicture(pixels, { recipe, told, flagged, seconds, note }));
  },
  async painted({ seconds }) {
    await Promise.all(finished);
    const flagged = allPictures().slice(-finished.length).filter((one) => one.flagged).length;
    const also = flagged ? ` ${t`${flagged} flagged by the safety checker, and black.`}` : "";
    loaded = device();
    const [number, took] = [finished.length, inWords(seconds)];
    ended((number === 1 ? t`Painted in ${took}.` : t`${number} pictures painted in ${took}.`) + also);
  },
  async cancelled() {
    await Promise.all(finished);
    ended(finished.length ? t`Cancelled; ${finished.length} finished.` : t`Cancelled.`);
  },
  failed({ type, message }) {
    const onGraphics = device() === "webgpu";
    if (type === "MemoryError") {
      startWorker(); // What the old one holds would be missed by the next attempt.
      const card = t`There is too little memory on the graphics card: ${message}. The processor may have it.`;
      const browser = t`There is too little memory in this browser: ${message}. Close other tabs, or take a smaller picture or pipeline.`;
      showProblem(onGraphics ? card : browser, onGraphics && !choice("wasm").disabled);
    } else showProblem(message, onGraphics && type === "DeviceError" && !choice("wasm").disabled);
    if (facts) ended(t`Stopped.`);
    else say(t`Stopped.`);
  },
};

/** Where the model's own sampler is not known, the first of the list is chosen. */
function withoutOwn() {
  $("sampler").querySelector('option[value=""]').remove();
  if ($("scheduler").value) return;
  $("sampler").selectedIndex = 0;
  $("sampler").dispatchEvent(new Event("change"));
}

function startWorker() {
  worker?.terminate();
  worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
  worker.onmessage = ({ data }) => heard[data.kind](data);
  worker.onerror = onLoadError;
}

function onLoadError(event) {
  event.preventDefault();
  heard.failed({ type: "Error", message: t`The page’s own code can’t be loaded: ${event.message ?? t`a file is missing`}. Export it again.` });
}

function startForm() {
  on("form", "submit", (event) => {
    event.preventDefault();
    generate();
  });
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]")) return;
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      generate();
    } else if (event.key === "Escape" && asked) $("cancel").click();
  });
  on("cancel", "click", () => {
    say(t`Cancelling: this step ends first.`, $("step-bar").value);
    worker.postMessage({ kind: "cancel" });
  });
  on("use-wasm", "click", () => {
    choice("wasm").checked = true;
    generate();
  });
  on("swap", "click", () => fill({ width: $("height").value, height: $("width").value }));
  on("seed-random", "click", () => fill({ seed: -1 }));
  on("seed-last", "click", () => shownPicture() && fill({ seed: shownPicture().recipe.seed }));
  on("form-reset", "click", () => {
    fill(Object.fromEntries(Object.entries(usual()).filter(([id]) => !words.has(id))));
    if (facts.samplers.own === null) withoutOwn();
  });
  for (const one of ["wasm", "webgpu"]) {
    choice(one).addEventListener("change", () => {
      remembered.device = one;
      showDownload();
    });
  }
  const later = settled(keep, 300);
  for (const type of ["input", "change"]) on("form", type, later);
}

function startPictures() {
  startStrip();
  on("picture-seed", "click", () => fill({ seed: shownPicture().recipe.seed }));
  on("picture-use", "click", () => fill(shownPicture().recipe));
  on("picture-delete", "click", async () => {
    if (!(await confirmed(t`Delete this picture? It is gone for good.`, t`Delete`))) return;
    await removePicture(shownPicture());
    showKept();
  });
  on("forget-pictures", "click", async () => {
    if (!(await confirmed(t`Delete all pictures? They are gone for good.`, t`Delete`))) return;
    for (const picture of [...allPictures()]) await removePicture(picture);
    showKept();
  });
  on("forget-files", "click", () => worker.postMessage({ kind: "forget" }));
}

function startLanguage() {
  const codes = ["", ...Object.keys(LANGUAGES)];
  $("language").replaceChildren(...codes.map((code) => option(code, LANGUAGES[code] ?? t`As the browser`)));
  $("language").value = followsBrowser() ? "" : codes.find((code) => code && LANGUAGE.startsWith(code));
  on("language", "change", () => setLanguage($("language").value));
}

recall();
nameKeys();
startLanguage();
startSamplers();
startForm();
startPictures();
startWorker();
worker.postMessage({ kind: "facts" });
