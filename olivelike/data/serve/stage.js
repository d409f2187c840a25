// What is painted now: preview, steps, time left, and the pictures of the job.

import { $, button, inWords, make, markInStrip, on, onFilled, recall, remember, showIn, startStrip } from "./dom.js";
import { inWordsOfThePage } from "./form.js";
import { addToGallery, thumbnail, variationOf } from "./gallery.js";
import { current } from "./jobs.js";
import { t } from "./language.js";
import { announce, notice, problem, say, shownAt } from "./notices.js";
import { showActions } from "./picture_actions.js";
import { ask, path } from "./server.js";
import { FLAGGED, view } from "./viewer.js";

/** The job and the picture that were shown last, for the next time. */
const KEY = "olivelike.stage";

/** How many pictures the strip has at most. */
const MOST = 60;
/** Jobs whose pictures are in the strip again after a reload. */
const MOST_JOBS = 12;

let pictures = [];
let shown = null;
let said = "";
let begun = null;
let position = null;
/** Whether somebody looks at an earlier picture, which previews and new ones leave there. */
let picked = false;
/** By job: how long it took and for how many pictures, and the prompt that was asked for. */
const took = new Map();
const asked = new Map();

export const shownPicture = () => shown;
const strip = () => pictures;
/** The last preview of the job that is drawn. */
let latest = null;

/** Tell screen readers of a moment, once. */
function sayOnce(moment, text = moment) {
  if (moment === said) return;
  said = moment;
  announce(text);
}

function enable(going) {
  // Between two jobs that are generated forever, too.
  $("cancel").disabled = !going && !$("forever").checked;
  $("skip").disabled = !going || (current()?.batches ?? 1) < 2;
}

function display(picture) {
  shown = picture;
  $("preview").hidden = true;
  $("stage-empty").hidden = true;
  $("stage-open").hidden = false;
  // Notes are about the job that was begun last.
  $("job-notes").hidden = picture.job !== begun;
  showIn($("stage-picture"), picture);
  showBar(picture);
  keep();
  markInStrip(picture);
}

/** Below the picture: what it is, and what can be done with it. */
function showBar(picture) {
  const facts = [picture.sheet ? t`Grid` : picture.seed === null || picture.seed === undefined ? "" : t`Seed ${picture.seed}`, `${picture.width}×${picture.height}`, variationOf(picture), tookFor(picture)];
  const parts = [facts.filter(Boolean).join(" · ")];
  // What wildcards and the like came to.
  if (asked.has(picture.job) && !picture.sheet && picture.prompt !== asked.get(picture.job)) parts.push(make("br"), picture.prompt);
  if (picture.flagged) parts.push(make("span", { className: "problem" }, FLAGGED));
  $("picture-facts").replaceChildren(...parts);
  showButtons();
  $("picture-bar").hidden = false;
  setAway(false);
}

function showButtons() {
  showActions("picture", shown, { failed: shownAt("job-problem"), before: () => problem($("job-problem"), "") });
}

/** Of several pictures it is known together how long they took. */
function tookFor({ job }) {
  const { time, count } = took.get(job) ?? {};
  return time && count > 1 ? t`${time} for ${count} pictures` : time;
}

const keep = () => remember(KEY, { job: shown?.job, picture: shown?.id, jobs: [...new Set(pictures.map((one) => one.job))].slice(-MOST_JOBS) });

const duration = (job) => (job.started && job.finished ? inWords((new Date(job.finished) - new Date(job.started)) / 1000) : "");

/** Show what was there when the page was last open. */
export async function restoreStage() {
  const before = recall(KEY, {});
  if (!before.job) return;
  const ids = [...new Set([...(before.jobs ?? []), before.job])];
  const jobs = (await Promise.all(ids.map((id) => ask(path("jobs", id)).catch(() => null)))).filter(Boolean);
  if (!jobs.length || current() || begun) return;
  begun = before.job;
  for (const job of jobs) {
    know(job);
    for (const picture of [...job.pictures, ...(job.sheet ? [job.sheet] : [])]) add(picture, { stored: false, show: false });
  }
  const last = pictures.find((one) => one.id === before.picture) ?? pictures.at(-1);
  if (last) display(last);
}

function know(job) {
  took.set(job.id, { time: duration(job), count: job.pictures.length });
  if (job.order) asked.set(job.id, job.order.prompt);
}

/** Grey what is below the picture that was before, while another is drawn: it stays where it is. */
function setAway(now) {
  $("picture-bar").classList.toggle("away", now);
  $("picture-bar").inert = now;
}

/** Where an earlier picture is looked at while one is drawn, the strip ends with the way back to that. */
function showNow(going = current()) {
  now.remove();
  if (picked && going) $("strip").append(now);
}

const now = make("li", { id: "strip-now" }, button(t`Now`, () => {
  onStage("asked");
  if (latest) showPreview(latest);
  else display(pictures.at(-1));
}, { className: "thumbnail" }));

function showPreview(source) {
  latest = source;
  if (picked) return;
  setAway(true);
  $("preview").src = source;
  $("preview").hidden = false;
  $("stage-open").hidden = true;
  $("stage-empty").hidden = true;
}

function add(picture, { stored = true, show = true } = {}) {
  if (!pictures.some((one) => one.id === picture.id)) {
    const apart = picture.sheet || (pictures.length && pictures.at(-1).job !== picture.job);
    pictures.push(picture);
    $("strip").insertBefore(make("li", { className: apart ? "apart" : "", data: { picture: picture.id } }, thumbnail(picture, pickOne)), now.parentNode && now);
    if (pictures.length > MOST) dropFirst();
    if (stored) addToGallery(picture);
  }
  $("strip").hidden = pictures.length < 2;
  if (show && !picked) display(picture);
}

function pickOne(picture) {
  picked = picture.id !== pictures.at(-1).id;
  display(picture);
  showNow();
}

function dropFirst() {
  pictures.shift();
  $("strip").firstChild.remove();
}

/** A job from its beginning, or as it is when the page comes back to it. */
function begin(job) {
  if (job.id !== begun) said = "";
  begun = job.id;
  position = null;
  know(job);
  $("job-notes").replaceChildren();
  problem($("job-problem"), "");
  showNotes(job.notes);
  for (const picture of job.pictures) add(picture, { show: false });
  enable(true);
  told(job.state, job);
}

/** What is said below the prompts already, in other words. */
const AT_PROMPTS = /^the (?:negative prompt|prompt '.*'): taken as words: /s;

// What is said below the prompts already is not said again.
function showNotes(notes) {
  const said = $("prompt-notes").textContent + $("negative-notes").textContent;
  $("job-notes").replaceChildren(...notes.filter((text) => !said.includes(text) && !AT_PROMPTS.test(text)).map((text) => make("li", {}, inWordsOfThePage(text))));
}

function told(state, data) {
  if (state === "drawing") return heard.started(data);
  position = data.position ?? position;
  const text = position ? t`Queued: ${position} before this one.` : t`Queued: next.`;
  say(text, 0);
  // Nobody wants to hear of a place that is given up the moment it is taken.
  if (position) sayOnce(text);
}

const heard = {
  asked() {
    picked = false;
    showNow();
  },
  sending() {
    $("job-notes").replaceChildren();
    say(t`Sending…`, 0);
  },
  refused() {
    enable(false);
    say(t`Ready.`);
  },
  follow: begin,
  queued: (data) => told("queued", data.view ?? data),
  queue: (data) => told("queued", data),
  opening({ model, loras }) {
    say(loras?.length ? t`Loading model ${model} with LoRAs…` : t`Loading model ${model}…`, $("step-bar").value);
  },
  started({ opening }) {
    [position, latest] = [null, null];
    enable(true);
    showNow(true);
    say(opening ? t`Loading model ${opening}…` : t`Beginning…`, 0);
    sayOnce(t`Painting has begun.`);
  },
  step({ step, steps, done, steps_total, batch, batches, eta, preview }) {
    if (preview) showPreview(preview);
    const left = eta ? ` · ${t`${inWords(eta)} left`}` : "";
    const share = done / steps_total;
    say((batches > 1 ? t`Step ${step} of ${steps}, batch ${batch} of ${batches}` : t`Step ${step} of ${steps}`) + left, share);
    if (share >= 0.5) sayOnce("half", t`Half done.` + left);
  },
  picture: ({ picture }) => add(picture),
  sheet: ({ picture }) => add(picture),
  ended(job) {
    enable(false);
    showNotes(job.notes);
    for (const picture of job.pictures) add(picture, { show: false });
    know(job);
    // A plot or a matrix is its sheet; of a batch the pictures are what counts.
    if (job.sheet) add(job.sheet, { show: false });
    const last = ["x", "y", "z", "prompt_matrix"].some((one) => job.order?.[one]) ? job.sheet : job.pictures.filter((one) => !one.flagged).at(-1) ?? job.pictures.at(-1);
    showNow(false);
    // The new one is in sight, where somebody looks at an earlier one.
    if (picked) $("strip").scrollLeft = $("strip").scrollWidth;
    if (last && !picked) display(last);
    else if (!$("preview").hidden) clear();
    const flagged = job.pictures.filter((one) => one.flagged).length;
    const also = flagged ? ` ${t`${flagged} flagged by the safety checker, and black.`}` : "";
    const open = last ? [[t`Open`, () => view(last, strip)]] : [];
    if ($("view-paint").hidden && job.state === "done") notice(t`Painted: ${job.order?.prompt || t`Picture without a prompt`}`, open);
    const count = job.pictures.length;
    if (job.state === "done") {
      const { time } = took.get(job.id);
      say((count === 1 ? t`Painted in ${time}.` : t`${count} pictures painted in ${time}.`) + also);
      announce($("status").textContent);
      sound();
    } else if (job.state === "cancelled") {
      say(count ? t`Cancelled; ${count} finished.` : t`Cancelled.`);
      announce(t`Cancelled.`);
    } else {
      say(t`Failed.`);
      problem($("job-problem"), job.error ? inWordsOfThePage(job.error.message) : t`The server does not say why.`);
    }
  },
};

function clear() {
  $("preview").hidden = true;
  if (shown) display(shown);
  else $("stage-empty").hidden = false;
}

/** A short tone, where Settings want one. */
function sound() {
  if (!$("sound").checked) return;
  const audio = new AudioContext();
  const [tone, volume] = [audio.createOscillator(), audio.createGain()];
  volume.gain.value = 0.1;
  tone.connect(volume).connect(audio.destination);
  tone.start();
  tone.stop(0.2);
  tone.onended = () => audio.close();
}

/** Take what the jobs tell. */
export function onStage(type, data) {
  heard[type]?.(data);
}

export function removeFromStage(picture) {
  pictures = pictures.filter((one) => one.id !== picture.id);
  $("strip").querySelector(`[data-picture="${CSS.escape(picture.id)}"]`)?.remove();
  $("strip").hidden = pictures.length < 2;
  if (shown?.id !== picture.id) return;
  shown = null;
  if (pictures.length) display(pictures.at(-1));
  else {
    $("stage-open").hidden = true;
    $("picture-bar").hidden = true;
    $("stage-empty").hidden = false;
    keep();
  }
}

export function startStage() {
  // Another model may have other guides.
  onFilled(() => shown && showButtons());
  on("stage-open", "click", () => shown && view(shown, strip));
  startStrip();
  on("stage-picture", "error", () => notice(t`This picture is gone; the gallery no longer has it.`));
}
