// This page's jobs: sent, followed by their events, cancelled; and the queue of everybody.

import { FORM } from "./declared.js";
import { $, button, inWords, make, on, recall, remember, spaced } from "./dom.js";
import { t } from "./language.js";
import { notice, problem, shownAt } from "./notices.js";
import { ask, listen, path, query } from "./server.js";

const KEY = "olivelike.jobs";
const ENDED = new Set(["done", "failed", "cancelled"]);

const SENT = "olivelike.sent";
const MOST_SENT = 200;

const own = new Map();
let stream = null;
let followed = null;
let show = () => {};
let sizeOf = () => [512, 512];

/** Ids of what this browser sent, from whichever tab: its jobs are ended and moved in each. */
const sent = () => recall(SENT, []);

const isMine = (id) => own.has(id) || sent().includes(id);

/** Send an order; the job is followed from now on. */
export async function submit(order, now = false) {
  const job = await ask("/api/jobs", { method: "POST", json: order });
  if (now) show("asked");
  take(job);
  remember(SENT, [...sent(), job.id].slice(-MOST_SENT));
  if (followed) readQueue();
  else follow();
  return job;
}

function take(job) {
  if (ENDED.has(job.state)) own.delete(job.id);
  else own.set(job.id, job);
  remember(KEY, [...own.keys()], sessionStorage);
}

/** Follow the first job of ours that has not ended: what it says goes to the stage. */
function follow(next = own.keys().next().value) {
  stream?.();
  stream = null;
  followed = next ?? null;
  if (!followed) return;
  const id = followed;
  let ended = false;
  show("follow", own.get(id));
  stream = listen(`/api/jobs/${id}/events?previews=1`, (type, data) => {
    if (ended) return;
    if (ENDED.has(type)) {
      ended = true;
      finish(data.view);
    } else if (type === "state") show("follow", data.view);
    else {
      if (type === "step") pace(own.get(id), data);
      show(type, data);
    }
  }, { gone: () => check(id) });
}

function finish(job) {
  if (followed === job.id) stream?.();
  take(job);
  show("ended", job);
  follow();
  readQueue();
}

// The stream broke: the server may have been started anew without this job.
async function check(id) {
  try {
    await ask(path("jobs", id));
  } catch (error) {
    if (error.status !== 404 || followed !== id) return;
    finish({ ...own.get(id), state: "failed", error: { message: t`The server has this job no more.` } });
  }
}

export const current = () => own.get(followed) ?? null;

export async function end(id, how) {
  try {
    await ask(path("jobs", id, how), { method: "POST" });
  } catch (error) {
    // It had ended by itself, which is what was wanted.
    if (error.status !== 409 && error.status !== 404) throw error;
  }
}

/** Seconds of a unit of work, as the last steps took, and what is left of the job that is drawn. */
let secondsEach = 0;
let secondsLeft = 0;
let waiting = [];

/** How much there is to draw: steps, times the pixels of a batch. An order without a size has its model's. */
function work({ order, steps_total: steps }) {
  const [width, height] = sizeOf(order?.model);
  return steps * (order?.width ?? width) * (order?.height ?? height) * (order?.batch_size ?? 1);
}

function pace(job, { done, steps_total: steps, eta }) {
  if (!job || !eta || done >= steps) return;
  secondsLeft = eta;
  secondsEach = eta / (work({ order: job.order, steps_total: steps }) * (1 - done / steps));
  tellLeft();
}

function tellLeft() {
  const whole = secondsLeft + secondsEach * waiting.reduce((sum, job) => sum + work(job), 0);
  $("queue-left").textContent = secondsEach ? t`about ${inWords(whole)} left in all` : "";
}

/** What waits and draws, of everybody: the list below the picture, the next one first. */
export const readQueue = spaced(async () => {
  try {
    const states = await Promise.all(["drawing", "queued"].map((state) => ask(query("/api/jobs", { state, limit: 500 }))));
    const [drawing, queued] = states.map((found) => found.jobs.filter((job) => job.kind === "pictures"));
    for (const job of drawing) if (!own.has(job.id)) pace(job, { done: job.step, steps_total: job.steps_total, eta: job.eta_seconds });
    waiting = queued.sort((one, other) => one.position - other.position);
    // One that was moved is drawn before the one that is followed.
    const ahead = drawing.find((job) => own.has(job.id)) ?? waiting.find((job) => own.has(job.id));
    if (ahead && ahead.id !== followed && waiting.some((job) => job.id === followed)) {
      own.set(ahead.id, ahead);
      follow(ahead.id);
    }
    const before = own.get(followed) ?? drawing[0];
    const jobs = [...drawing, ...waiting].filter((job) => job.id !== followed);
    const focused = document.activeElement?.id;
    $("queue").hidden = jobs.length === 0;
    $("queue-clear").hidden = !jobs.some((job) => job.state === "queued" && isMine(job.id));
    const list = $("queue-list");
    const rows = jobs.map((job) => row(job, before));
    // What is as before stays: a button that is replaced between press and release hears of no click.
    rows.forEach((one, place) => {
      const old = list.children[place];
      if (!old) list.append(one);
      else if (!old.isEqualNode(one)) old.replaceWith(one);
    });
    while (list.children.length > rows.length) list.lastChild.remove();
    if (focused?.startsWith("queue-")) $(focused)?.focus();
    tellLeft();
  } catch {
    $("queue").hidden = true;
  }
}, 700);

/** In what an order differs from another one, the words aside: in the words of the form. */
function differences(order, other) {
  const size = (one) => (one?.width && one?.height ? `${one.width}×${one.height}` : "");
  const parts = order.num_images > 1 ? [t`${order.num_images} pictures`] : [];
  if (order.x || order.y || order.z) parts.push(t`X/Y/Z plot`);
  if (order.model !== other?.model) parts.push(order.model);
  if (size(order) !== size(other)) parts.push(size(order));
  for (const { name, label } of FORM.fields) {
    if (["negative_prompt", "num_images", "size", "variation_seed", "inpaint_padding"].includes(name)) continue;
    const value = order[name];
    if (String(value ?? "") === String(other?.[name] ?? "") || value === null || typeof value === "object") continue;
    parts.push(name === "scheduler" ? value : typeof value === "boolean" ? (value ? t`${label} on` : t`${label} off`) : `${label} ${value}`);
  }
  return parts.filter(Boolean).slice(0, 6).join(" · ");
}

function row(job, before) {
  const words = job.order?.prompt || t`Without a prompt`;
  const mine = isMine(job.id);
  const name = words.slice(0, 60);
  const act = (how, json) => () => ask(path("jobs", job.id, how), { method: "POST", json }).catch(shownAt("job-problem")).then(readQueue);
  const actions = !mine ? [] : [
    ...(job.state === "queued" ? [["↑", "Earlier", t`Earlier`, -1], ["↓", "Later", t`Later`, 1]].map(([sign, way, told, places]) => button(sign, act("move", { places }), { id: `queue-${way}-${job.id}`, "aria-label": `${told}: ${name}`, title: told, className: "quiet icon" })) : []),
    button("×", () => end(job.id, "cancel").then(() => own.delete(job.id)).then(readQueue), { "aria-label": t`Cancel: ${name}`, title: t`Cancel`, className: "quiet icon" }),
  ];
  return make("li", { id: `queue-${job.id}` }, // So that rows of two jobs are never equal: their buttons are not.
    make("span", { className: "hint" }, job.state === "drawing" ? t`now` : String(job.position + 1)),
    make("span", { className: "grow" }, make("span", { className: "cut" }, words), make("span", { className: "hint cut" }, [mine ? "" : job.client, job.order ? differences(job.order, before?.order) : ""].filter(Boolean).join(" · "))),
    ...actions);
}

/** Cancel all of ours that wait; they can be sent again. */
async function clear() {
  const ours = waiting.filter((job) => isMine(job.id) && job.id !== followed);
  const failed = (error) => problem($("job-problem"), error);
  await Promise.all(ours.map(({ id }) => end(id, "cancel").then(() => own.delete(id)))).catch(failed);
  readQueue();
  const again = async () => {
    for (const { order } of ours) await submit(order);
  };
  if (ours.length) notice(ours.length === 1 ? t`Cancelled.` : t`${ours.length} jobs cancelled.`, [[t`Undo`, () => again().catch(failed)]]);
}

/** `shown(type, data)` is the stage, `usual(model)` the size where none is asked for. Jobs of before the page was loaded anew are found again. */
export async function startJobs(shown, usual) {
  [show, sizeOf] = [shown, usual];
  on("queue-clear", "click", clear);
  for (const id of recall(KEY, [], sessionStorage)) {
    const job = await ask(path("jobs", id)).catch(() => null);
    if (job) take(job);
  }
  follow();
  readQueue();
}
