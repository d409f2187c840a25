// Workflows and conversions: started from here, their plan, what they tell, and the report that they leave.

import { $, button, make, on, option } from "./dom.js";
import { locale, t } from "./language.js";
import { announce, notice, problem } from "./notices.js";
import { ask, listen, path, query } from "./server.js";

const OVER = new Set(["done", "failed", "cancelled", "interrupted"]);
const LINES = 500;
const STATES = { queued: t`queued`, running: t`running`, done: t`done`, failed: t`failed`, cancelled: t`cancelled`, interrupted: t`interrupted` };

let workflows = [];
let convert = null;
let checkpoints = [];
let kind = null;
let served = () => {};
const rows = new Map();

// No name of a file has a slash.
const CONVERSION = "/convert";

/** Choices of what is chosen: `{name, choices, default, hint}` each; without a default there is an empty choice. */
function settings() {
  if (kind !== CONVERSION) return workflows.find((one) => one.name === kind).settings;
  return [
    { name: "checkpoint", choices: checkpoints.map((one) => one.name), default: checkpoints[0].name },
    { name: "target", choices: convert.targets, default: convert.targets[0], hint: t`Where the pipeline will run` },
    { name: "precision", choices: convert.precisions, default: null, hint: t`Of the weights; without one, what the target takes` },
  ];
}

const NAMES = { checkpoint: t`Checkpoint`, target: t`Target`, precision: t`Precision` };

function field({ name, choices, default: value, hint }) {
  const options = (value === null ? ["", ...choices] : choices).map((one) => option(one, one || (hint ? "—" : t`as the workflow says`)));
  const input = make("select", { id: `run-${name}`, data: { setting: name } }, ...options);
  const words = hint ? make("span", { className: "hint", id: `run-${name}-hint` }, hint) : null;
  if (words) input.setAttribute("aria-describedby", words.id);
  return make("div", { className: "setting wide" }, make("label", { for: input.id }, NAMES[name] ?? name), input, words);
}

/** LoRAs to merge: those that are ticked, with their strengths. */
function loraFields() {
  const row = (name) => make("div", { className: "row" },
    make("label", { className: "check grow" }, make("input", { type: "checkbox", data: { lora: name } }), name),
    make("input", { type: "number", min: -4, max: 4, step: 0.05, value: 1, "aria-label": t`Strength of ${name}` }));
  return make("fieldset", { className: "wide" }, make("legend", {}, t`LoRAs, merged for good`), ...convert.loras.map(row));
}

function chosenLoras() {
  return [...$("run-fields").querySelectorAll("[data-lora]:checked")].map((box) => ({
    name: box.dataset.lora, weight: Number(box.closest(".row").querySelector("[type=number]").value),
  }));
}

function choose(name) {
  kind = name;
  problem($("run-problem"), "");
  $("run-plan-lines").hidden = true;
  const description = kind === CONVERSION ? t`Makes a pipeline of a checkpoint; it is served at once.` : workflows.find((one) => one.name === kind)?.description;
  $("run-description").textContent = (description ?? "").replaceAll("`", "");
  $("run-fields").replaceChildren(...settings().map(field));
  if (kind === CONVERSION && convert.loras.length) $("run-fields").append(loraFields());
}

function showKinds() {
  const all = [...(convert && checkpoints.length ? [[CONVERSION, t`Convert a checkpoint`]] : []), ...workflows.map((one) => [one.name, one.name])];
  $("run-kind").replaceChildren(...all.map((one) => option(...one)));
  $("run-start").disabled = $("run-plan").disabled = all.length === 0;
  if (!all.some(([name]) => name === kind)) kind = all[0]?.[0] ?? null;
  if (!kind) return;
  $("run-kind").value = kind;
  choose(kind);
}

function order() {
  const inputs = [...$("run-fields").querySelectorAll("[data-setting]")].filter((input) => input.value);
  const values = Object.fromEntries(inputs.map((input) => [input.dataset.setting, input.value]));
  return kind === CONVERSION ? { convert: { ...values, loras: chosenLoras() } } : { workflow: kind, set: values };
}

async function plan() {
  problem($("run-problem"), "");
  $("run-plan").setAttribute("aria-busy", "true");
  $("run-plan-lines").textContent = t`Planning…`;
  $("run-plan-lines").hidden = false;
  try {
    const { lines } = await ask("/api/runs/plan", { method: "POST", json: order() });
    $("run-plan-lines").textContent = lines.join("\n");
    announce(t`The plan is below.`);
  } catch (error) {
    $("run-plan-lines").hidden = true;
    problem($("run-problem"), error);
  } finally {
    $("run-plan").removeAttribute("aria-busy");
  }
}

async function start(event) {
  event.preventDefault();
  problem($("run-problem"), "");
  $("run-start").disabled = true;
  try {
    show(await ask("/api/runs", { method: "POST", json: order() }), true);
    $("run-none").hidden = true;
    announce(t`The run is on its way.`);
  } catch (error) {
    problem($("run-problem"), error);
  } finally {
    $("run-start").disabled = false;
  }
}

/** Show a run, or what has changed of it. */
function show(run, first = false) {
  let row = rows.get(run.id);
  if (!row) {
    row = makeRow(run);
    rows.set(run.id, row);
    $("run-list")[first ? "prepend" : "append"](row.item);
  }
  const over = OVER.has(run.state);
  row.state.textContent = run.state === "queued" && run.position ? t`queued, ${run.position} before it` : STATES[run.state] ?? run.state;
  row.state.className = `state is-${run.state}`;
  row.bar.hidden = over || !run.progress?.total;
  if (run.progress?.total) Object.assign(row.bar, { max: run.progress.total, value: run.progress.done });
  row.cancel.hidden = over;
  row.report.hidden = !run.report;
  if (run.report) row.report.href = run.report;
  row.outputs.textContent = run.outputs?.length ? t`Served now: ${run.outputs.join(", ")}` : "";
  problem(row.problem, run.error?.message);
  if (over && !row.over) {
    row.stop?.();
    row.stop = null;
    if (row.watched && run.outputs?.length) served();
    if (row.watched) notice(`${run.name}: ${STATES[run.state]}`);
  }
  row.over = over;
  if (!over && !row.stop) watch(run.id, row);
}

function makeRow(run) {
  const name = `${run.name}, ${new Date(run.created).toLocaleString(locale())}`;
  const row = {
    state: make("span", { className: "state" }),
    bar: make("progress", { max: 1, value: 0, "aria-label": t`Progress of ${run.name}` }),
    report: make("a", { target: "_blank", rel: "noopener", className: "button", hidden: true }, t`Report`),
    outputs: make("p", { className: "hint" }),
    problem: make("p", { className: "problem", hidden: true }),
    lines: make("pre", { tabIndex: 0, role: "log", "aria-label": t`Events of ${name}`, "aria-live": "off" }),
    cancel: button(t`Cancel`, () => ask(path("runs", run.id, "cancel"), { method: "POST" }).catch((error) => problem(row.problem, error)), { "aria-label": t`Cancel: ${name}` }),
    seen: 0,
  };
  const log = make("details", {}, make("summary", {}, t`Events`), row.lines);
  log.addEventListener("toggle", () => log.open && !row.stop && row.seen === 0 && watch(run.id, row));
  row.log = log;
  row.item = make("li", { className: "run" },
    make("div", { className: "row" }, make("strong", { className: "grow" }, run.name), row.state),
    make("p", { className: "hint" }, new Date(run.created).toLocaleString(locale())),
    row.bar, row.problem, row.outputs, make("div", { className: "row" }, row.report, row.cancel), log);
  return row;
}

function watch(id, row) {
  row.watched = !row.over;
  if (row.watched) row.log.open = true;
  row.stop = listen(`/api/runs/${encodeURIComponent(id)}/events`, (type, data) => {
    if (type === "state") show(data);
    else if (data.event.event === "run_progress") {
      Object.assign(row.bar, { max: data.event.total, value: data.event.done, hidden: row.over });
    } else if (data.text && data.number > row.seen) {
      row.seen = data.number;
      const end = row.lines.scrollHeight - row.lines.scrollTop - row.lines.clientHeight < 30;
      row.lines.append(`${data.text}\n`);
      while (row.lines.childNodes.length > LINES) row.lines.firstChild.remove();
      if (end) row.lines.scrollTop = row.lines.scrollHeight;
    }
  }, { gone: () => row.over && row.stop?.() });
}

export async function readRuns() {
  try {
    const [found, made, below] = await Promise.all([
      ask("/api/workflows"), ask(query("/api/runs", { limit: 50 })), ask("/api/checkpoints").catch(() => ({ checkpoints: [] })),
    ]);
    workflows = found.workflows;
    convert = found.convert ?? null;
    checkpoints = below.checkpoints;
    showKinds();
    for (const run of made.runs) show(run);
    $("run-none").hidden = rows.size > 0;
  } catch (error) {
    problem($("run-problem"), error);
  }
}

/** `onServed()` is called when a run has made a model that can paint now. */
export function startRuns(onServed) {
  served = onServed;
  on("run-kind", "change", () => choose($("run-kind").value));
  on("run-plan", "click", plan);
  on("run-form", "submit", start);
}
