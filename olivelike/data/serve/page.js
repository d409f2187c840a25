// Starts everything, and joins the parts: the form makes an order, the order a job, the job is shown.

import { FORM } from "./declared.js";
import { startCanvas } from "./canvas.js";
import { $, button, nameKeys, on, onFilled, recall, remember, tellFilled } from "./dom.js";
import { startCompare } from "./compare.js";
import { readNames, startOffers } from "./complete.js";
import { controlFields, countUnits, placeOfUnit, startControls } from "./controls.js";
import { fillForm, firstFault, formState, inWordsOfThePage, markField, readFields, rememberForm, resetFields, setField, showFewSteps, startSizes } from "./form.js";
import { NO_PICTURES, fillPictures, forgetGone, formPictures } from "./form_pictures.js";
import { addToGallery, listed, readNewest, removeFromGallery, search, startGallery, wanted } from "./gallery.js";
import { limitUploads } from "./given.js";
import { startIncoming } from "./incoming.js";
import { hasMask, hasPicture, initialFields, startInitial } from "./initial.js";
import { current, end, readQueue, startJobs, submit } from "./jobs.js";
import { t } from "./language.js";
import { chosenLoras, fewStepsOf, loraNames, readLoras, setLoras, showLoras, startLoras } from "./loras.js";
import { examples, model, modelNames, readModels, setModel, startModels, titleOf, usualSize } from "./models.js";
import { startNotebook } from "./notebook.js";
import { notice, problem, say } from "./notices.js";
import { startPicker } from "./picker.js";
import { PICTURE_LISTS } from "./picture_lists.js";
import { axes, startPlot, unitOf } from "./plot.js";
import { lorasOfPrompt, recount, startPrompts } from "./prompts.js";
import { inThePagesLanguage } from "./refusals.js";
import { readRuns, startRuns } from "./runs.js";
import { sampler, samplers, schedules, startSamplers } from "./samplers.js";
import { startSelection } from "./selection.js";
import { ask, askAhead, listen, onReturn } from "./server.js";
import { showLoaded, showServer, showSettings, startSettings } from "./settings.js";
import { onStage, removeFromStage, restoreStage, shownPicture, startStage } from "./stage.js";
import { offerUpscalers, readUpscalers, removeFromUpscale, startUpscale } from "./upscale.js";
import { leaveViewer, startViewer } from "./viewer.js";

const VIEWS = ["paint", "upscale", "gallery", "workflows", "settings"];
const QUEUE = new Set(["queued", "queue", "started", "done", "failed", "cancelled"]);

let features = {};

/** What the form asks for. Throws an `Error` where it can't be read. */
async function order() {
  const found = { ...readFields(), model: model(), loras: chosenLoras(), ...(await initialFields()), ...(await controlFields()), ...Object.assign({}, ...PICTURE_LISTS.map((list) => list.fields())) };
  const given = { init_image: hasPicture(), mask: hasMask(), controls: found.controls, ip_adapter_images: found.ip_adapter_images, references: found.references, hires: found.hires ?? Object.values(axes()).some((axis) => axis?.field === "hires") };
  const missing = new Set(Object.keys(given).filter((name) => !given[name]));
  for (const { name, about, group } of FORM.fields) {
    if (!missing.has(about) && !(group === "picture" && !given.init_image && !given.controls)) continue;
    missing.add(name);
    delete found[name];
  }
  if (found.num_images < 2) found.sheet = false;
  if (found.hires && given.init_image) throw Object.assign(new Error(t`Hires fix is for pictures from a prompt alone: remove the initial picture, or set a larger size.`), { field: "hires" });
  for (const [side, axis] of Object.entries(axes())) {
    if (axis) found[side] = withPlace(axis);
    if (axis?.field === "schedule") found.scheduler ??= sampler();
  }
  return found;
}

/** An axis over the weight of one unit, by its place among those that lead. */
function withPlace(axis) {
  const unit = unitOf(axis.field);
  if (!unit) return axis;
  const place = placeOfUnit(unit);
  if (!place) throw Object.assign(new Error(t`ControlNet ${unit} has no picture, so nothing has a weight`), { plot: true });
  return { ...axis, field: axis.field.replace(unit, place) };
}

/** One prompt, or that of each line; as in files of prompts, empty lines and those with # in front are none. */
function prompts(text) {
  const lines = text.split("\n").map((line) => line.trim()).filter((line) => line && !line.startsWith("#"));
  return $("lines").checked && lines.length ? lines : [text];
}

function fault(error) {
  // The server calls an axis by its field.
  const [whole, name] = /^axis ([a-z_]+): /.exec(error.message) ?? [""];
  if (name) Object.assign(error, { plot: true, field: `${["x", "y", "z"].find((side) => $(`${side}-field`).value === name)}-values` });
  const label = name ? `${FORM.axes.find((one) => one.name === name)?.label ?? name}: ` : "";
  const text = error.message.slice(whole.length);
  const place = error.plot ? "plot-problem" : "order-problem";
  if (error.plot) $("fold-plot").open = true;
  // Sampler and schedule type are one field of an order.
  const named = /^(?:body\.)?([a-z_]+)\b/.exec(text)?.[1].replace(/^sampler$/, "scheduler");
  const said = inThePagesLanguage({ code: error.code, status: error.status, message: text });
  problem($(place), said ? label + said : Object.assign(error, { message: label + inWordsOfThePage(text) }));
  if (error.plot) $(place).scrollIntoView({ block: "nearest" });
  markField(error.field ?? named, () => problem($(place), ""));
  if (error.code === "source" && /upload|picture/.test(text)) forgetGone().catch(() => {});
}

let halted = false;

/** Ask for what the form says; `repeated` where *Generate forever* does, which may be cancelled meanwhile. */
async function generate(repeated = false) {
  halted = false;
  const ended = () => repeated && halted;
  problem($("order-problem"), "");
  problem($("plot-problem"), "");
  markField(null);
  const wrong = firstFault();
  if (wrong) return fault(wrong);
  try {
    axes();
  } catch (error) {
    return fault(Object.assign(error, { plot: true }));
  }
  // Where the picture is above the options, it is brought into sight.
  if (matchMedia("(max-width: 56rem)").matches) $("frame").scrollIntoView({ block: "center" });
  $("generate").setAttribute("aria-busy", "true");
  if (!repeated) onStage("asked");
  if (!current()) onStage("sending");
  try {
    const asked = await order();
    for (const prompt of prompts(asked.prompt)) if (!ended()) await submit({ ...asked, prompt });
    if (ended()) await stop("cancel");
    if (ended() && !current()) onStage("refused");
  } catch (error) {
    if (!current()) onStage("refused");
    fault(error);
  } finally {
    $("generate").removeAttribute("aria-busy");
  }
}

async function stop(how) {
  const job = current();
  if (how === "cancel") {
    halted = true;
    $("forever").checked = false;
  }
  if (!job) return;
  try {
    await end(job.id, how);
  } catch (error) {
    problem($("job-problem"), error);
  }
}

/** Begin anew after a job, where that is asked for, until one is cancelled or fails. */
function again(job) {
  if (!$("forever").checked) return;
  if (job.state !== "done") $("forever").checked = false;
  // The next job of ours, if one waits, is followed by then.
  else setTimeout(() => current() ?? generate(true));
}

let named = null;

/** What depends on the model beside its fields: names that prompts may have, and prompts to begin with. */
function follow() {
  if (model() === named) return;
  named = model();
  readNames(named);
  const example = (text) => button(text, () => {
    setField("prompt", text);
    $("generate").focus();
  }, { className: "quiet" });
  $("examples").replaceChildren(...(examples().length ? [t`Try: `, ...examples().map(example)] : []));
}

/** By view: how far it was scrolled when it was left, in this tab. */
const places = recall("olivelike.places", {}, sessionStorage);
/** The view that is shown. */
let at = null;

function route() {
  const wanted = location.hash.slice(1);
  const name = VIEWS.includes(wanted) && (wanted !== "workflows" || features.runs) ? wanted : "paint";
  // A step back from the canvas, which is Paint's, asks whether to leave it, and stays.
  if ($("mask").open && name !== "paint") {
    history.pushState(null, "", "#paint");
    return void $("mask").dispatchEvent(new Event("cancel", { cancelable: true }));
  }
  if (at && at !== name) places[at] = scrollY;
  for (const view of VIEWS) {
    $(`view-${view}`).hidden = view !== name;
    const link = document.querySelector(`nav a[href="#${view}"]`);
    if (view === name) {
      link.setAttribute("aria-current", "page");
      link.parentElement.scrollLeft = link.offsetLeft - link.parentElement.offsetLeft - 40;
    } else link.removeAttribute("aria-current");
  }
  if (at !== name) {
    scrollTo(0, places[name] ?? 0);
    for (const dialog of document.querySelectorAll("dialog[open]:not(#mask)")) dialog.close();
  }
  at = name;
  $("skip-link").hidden = name !== "paint";
  if (name === "workflows") readRuns();
  if (name === "settings") showSettings();
}

/** All keys, those of the canvas as it says them itself. */
function showKeys() {
  $("keys-canvas").textContent = document.querySelector("#mask .keys").textContent;
  $("keys").showModal();
}

function shortcuts(event) {
  if (event.key === "?" && !event.target.closest("input, textarea, select, dialog")) return showKeys();
  if ($("view-paint").hidden || document.querySelector("dialog[open]")) return;
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    event.preventDefault();
    generate();
  } else if (event.key === "Escape" && (current() || $("forever").checked)) stop("cancel");
}

function startForm() {
  on("form", "submit", (event) => {
    event.preventDefault();
    generate();
  });
  // What is changed may be what was wrong.
  on("form", "input", ({ target, isTrusted }) => {
    problem($("order-problem"), "");
    showFewSteps($("fast").checked ? fewStepsOf(lorasOfPrompt()) : null, isTrusted && target.id === "fast");
  });
  onFilled(() => markField(null));
  on("cancel", "click", () => stop("cancel"));
  on("skip", "click", () => stop("skip"));
  on("swap", "click", () => {
    const [width, height] = [$("width").value, $("height").value];
    setField("width", height);
    setField("height", width);
  });
  on("keys-open", "click", showKeys);
  on("keys-close", "click", () => $("keys").close());
  on("seed-random", "click", () => setField("seed", -1));
  on("seed-last", "click", () => {
    const seed = shownPicture()?.seed;
    if (seed === null || seed === undefined) notice(t`No picture is shown whose seed could be taken.`);
    else setField("seed", seed);
  });
  on("form-reset", "click", () => {
    const before = formState();
    // Prompts stay, and so do those that are typed meanwhile.
    for (const name of ["prompt", "negative_prompt"]) delete before.fields[name];
    resetFields();
    setLoras([]);
    fillPictures(NO_PICTURES);
    notice(t`All options are as the form begins.`, [[t`Undo`, () => fillForm(before)]]);
  });
  document.addEventListener("keydown", shortcuts);
  // An upscaler works without Hires fix, too.
  const tellHires = () => {
    const [times, unit] = [Number($("hires").value), Number($("width").step) || 1];
    const size = ["width", "height"].map((id) => Math.round(($(id).value * times) / unit) * unit).join("×");
    offerUpscalers(times || [...document.querySelectorAll(".axis select")].some(({ value }) => value === "hires"));
    $("hires-badge").textContent = hasPicture() ? "" : [times && `×${times} · ${size}`, $("upscaler").value].filter(Boolean).join(" · ");
  };
  on("form", "input", tellHires);
  onFilled(tellHires);
}

/** Sizes as text for a plot, the model's own and two shapes of it. */
function choices(field) {
  const [width, height] = [$("width").value, $("height").value];
  return {
    scheduler: samplers(), schedule: schedules(), model: modelNames(), lora: loraNames().map((name) => `${name}:1`),
    upscaler: [...$("upscaler").options].map((option) => option.value).filter(Boolean),
    size: [`${width}x${height}`, `${height}x${width}`],
  }[field];
}

/** Everything that the server has, read at the beginning and each time it is back. */
async function readAll(kept) {
  const done = askAhead("/api/loras", "/api/upscalers", "/api/models");
  try {
    await readInTurn(kept);
  } finally {
    done();
  }
}

/** Milliseconds that the page waits for a list which may come later. */
const LIST_WAIT = 500;

async function readInTurn(kept) {
  const server = await ask("/api/server");
  features = server.features;
  limitUploads(server.limits.max_upload_bytes);
  showServer(server);
  $("workflows-link").hidden = !features.runs;
  route();
  // A server reads a thousand of them for the first time in a minute; else they are there at once.
  const loras = readLoras().then(() => false, () => false);
  const isLate = await Promise.race([loras, new Promise((go) => setTimeout(go, LIST_WAIT, true))]);
  await readUpscalers(server.limits.max_enlarged).catch(() => {});
  tellFilled();
  await readModels(kept ?? model() ?? server.current);
  if (isLate) loras.then(showLoras);
}

let leave = null;

// A browser has six connections to a server: a tab that nobody looks at holds none, unless it waits for a picture.
function attend() {
  const wanted = document.visibilityState === "visible" || current() !== null;
  if (wanted && !leave) {
    leave = listen("/api/events", (type, data) => {
      if (type === "picture" || type === "sheet") addToGallery(data.picture);
      else if (QUEUE.has(type)) readQueue();
      // Others' jobs open models, too.
      if (["opened", "done"].includes(type) && !$("view-settings").hidden) showLoaded();
    }, { telling: true });
    readNewest();
    readQueue();
  } else if (!wanted && leave) {
    leave();
    leave = null;
  }
}

async function start() {
  nameKeys();
  startCanvas();
  startPicker();
  startModels();
  startSamplers();
  startLoras();
  startPrompts(model);
  startControls();
  startPlot(choices, countUnits);
  startInitial();
  for (const list of PICTURE_LISTS) list.start();
  startIncoming();
  startStage();
  startGallery(() => at === "gallery" && scrollTo(0, places.gallery));
  startRuns(readModels);
  const forgotten = (picture) => {
    leaveViewer(picture);
    removeFromGallery(picture);
    removeFromStage(picture);
    removeFromUpscale(picture);
  };
  startViewer();
  startUpscale();
  startSelection(listed, wanted, search, forgotten);
  startCompare();
  startOffers();
  startNotebook();
  startForm();
  startSizes();
  startSettings();
  onFilled(follow);
  const kept = rememberForm(() => ({ model: model(), loras: chosenLoras(), pictures: formPictures() }), async (state) => {
    if (modelNames().includes(state.model) && state.model !== model()) await setModel(state.model);
    setLoras(state.loras ?? []);
    if (state.pictures) await fillPictures(state.pictures);
  });
  setLoras(kept.loras ?? []);
  if (kept.pictures) fillPictures(kept.pictures);
  recount();
  addEventListener("hashchange", route);
  // A step back closes the dialog that is open, as Escape does, and goes nowhere.
  globalThis.navigation?.addEventListener("navigate", (event) => {
    const top = [...document.querySelectorAll("dialog[open]")].at(-1);
    if (!top || event.navigationType !== "traverse" || !event.cancelable) return;
    event.preventDefault();
    if (top.dispatchEvent(new Event("cancel", { cancelable: true }))) top.close();
  });
  // What a browser restores by itself was measured in another view.
  history.scrollRestoration = "manual";
  addEventListener("pagehide", () => remember("olivelike.places", { ...places, [at]: scrollY }, sessionStorage));
  route();
  onReturn(async () => {
    if ($("order-problem").dataset.code === "unreachable") problem($("order-problem"), "");
    await readAll().catch(() => {});
    readNewest();
    readQueue();
  });
  try {
    await readAll(kept.model);
  } catch (error) {
    problem($("order-problem"), error);
  }
  await restoreStage();
  await startJobs((type, data) => {
    onStage(type, data);
    if (type === "ended") again(data);
  }, usualSize);
  if (!current()) say(t`Ready.`);
  $("generate").disabled = false;
  document.addEventListener("visibilitychange", attend);
  attend();
  if (!$("view-settings").hidden) showSettings();
  document.documentElement.dataset.ready = "yes";
}

start();
