// This page's jobs: sent, followed by their events, cancelled; and the queue of everybody.

import { $, button, make, spaced } from "./dom.js";
import { ask, listen, path, query } from "./server.js";

const KEY = "olivelike.jobs";
export const ENDED = new Set(["done", "failed", "cancelled"]);

const own = new Map();
let stream = null;
let followed = null;
let show = () => {};

/** Send an order; the job is followed from now on. */
export async function submit(order) {
  const job = await ask("/api/jobs", { method: "POST", json: order });
  take(job);
  if (followed) readQueue();
  else follow();
  return job;
}

function take(job) {
  if (ENDED.has(job.state)) own.delete(job.id);
  else own.set(job.id, job);
  sessionStorage.setItem(KEY, JSON.stringify([...own.keys()]));
}

/** Follow the first job of ours that has not ended: what it says goes to the stage. */
function follow() {
  stream?.();
  stream = null;
  followed = own.keys().next().value ?? null;
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
    else show(type, data);
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
    finish({ ...own.get(id), state: "failed", error: { message: "The server has this job no more." } });
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

/** What waits and draws, of everybody: the list below the picture. */
export const readQueue = spaced(async () => {
  try {
    const states = await Promise.all(["drawing", "queued"].map((state) => ask(query("/api/jobs", { state, limit: 50 }))));
    const jobs = states.flatMap((found) => found.jobs).filter((job) => job.kind === "pictures" && job.id !== followed);
    $("queue").hidden = jobs.length === 0;
    $("queue-list").replaceChildren(...jobs.map(row));
  } catch {
    $("queue").hidden = true;
  }
}, 700);

function row(job) {
  const words = job.order?.prompt || "Without a prompt";
  const place = job.state === "drawing" ? "is drawn now" : `place ${job.position + 1}`;
  const mine = own.has(job.id);
  return make("li", {},
    make("span", { className: "grow cut" }, words),
    make("span", { className: "hint" }, mine ? place : `${place} · ${job.client}`),
    mine ? button("×", () => end(job.id, "cancel").then(() => own.delete(job.id)).then(readQueue), { "aria-label": `Cancel: ${words.slice(0, 60)}`, className: "quiet icon" }) : null);
}

/** `shown(type, data)` is the stage. Jobs of before the page was loaded anew are found again. */
export async function startJobs(shown) {
  show = shown;
  let before = [];
  try {
    before = JSON.parse(sessionStorage.getItem(KEY) ?? "[]");
  } catch {
    before = [];
  }
  for (const id of before) {
    const job = await ask(path("jobs", id)).catch(() => null);
    if (job) take(job);
  }
  follow();
  readQueue();
}
