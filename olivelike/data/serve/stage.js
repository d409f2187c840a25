// What is painted now: preview, steps, time left, and the pictures of the job.

import { $, make } from "./dom.js";
import { addToGallery, thumbnail } from "./gallery.js";
import { current } from "./jobs.js";
import { announce, notice, problem } from "./notices.js";
import { view } from "./viewer.js";

const TITLE = "olivelike";

let pictures = [];
let shown = null;
let said = "";
let begun = null;
let position = null;

export const shownPicture = () => shown;

const seconds = (value) => {
  const whole = Math.max(1, Math.round(value));
  return whole < 90 ? `${whole} s` : `${Math.floor(whole / 60)} min ${whole % 60} s`;
};

function say(text, share = null) {
  $("status").textContent = text;
  $("step-bar").value = share ?? 0;
  $("step-bar").classList.toggle("idle", share === null);
  document.title = share ? `${Math.round(share * 100)} % · ${TITLE}` : TITLE;
}

/** Tell screen readers of a moment, once. */
function sayOnce(moment, text = moment) {
  if (moment === said) return;
  said = moment;
  announce(text);
}

function enable(going) {
  $("cancel").disabled = !going;
  $("skip").disabled = !going || (current()?.batches ?? 1) < 2;
}

export function display(picture) {
  shown = picture;
  $("preview").hidden = true;
  $("stage-empty").hidden = true;
  $("stage-open").hidden = false;
  $("stage-picture").src = picture.url;
  $("stage-picture").alt = picture.prompt || "Picture without a prompt";
  $("stage-picture").classList.toggle("tiny", picture.width <= 128);
  for (const item of $("strip").children) {
    const isShown = item.dataset.picture === picture.id;
    item.firstChild.setAttribute("aria-current", String(isShown));
    // The strip alone is moved: scrollIntoView would move the page too.
    if (isShown) $("strip").scrollLeft = item.offsetLeft - $("strip").offsetLeft - $("strip").clientWidth / 2 + item.clientWidth / 2;
  }
}

function showPreview(source) {
  $("preview").src = source;
  $("preview").hidden = false;
  $("stage-open").hidden = true;
  $("stage-empty").hidden = true;
}

function add(picture, { stored = true, show = true } = {}) {
  if (!pictures.some((one) => one.id === picture.id)) {
    pictures.push(picture);
    $("strip").append(make("li", { data: { picture: picture.id } }, thumbnail(picture, display)));
    if (stored) addToGallery(picture);
  }
  $("strip").hidden = pictures.length < 2;
  if (show) display(picture);
}

/** A job from its beginning, or as it is when the page comes back to it. */
function begin(job) {
  pictures = [];
  if (job.id !== begun) said = "";
  begun = job.id;
  position = null;
  $("strip").replaceChildren();
  $("strip").hidden = true;
  $("job-notes").replaceChildren();
  problem($("job-problem"), "");
  showNotes(job.notes);
  for (const picture of job.pictures) add(picture, { show: false });
  enable(true);
  told(job.state, job);
}

// What is said below the prompts already is not said again.
function showNotes(notes) {
  const said = $("prompt-notes").textContent + $("negative-notes").textContent;
  $("job-notes").replaceChildren(...notes.filter((text) => !said.includes(text)).map((text) => make("li", {}, text)));
}

function told(state, data) {
  if (state === "drawing") return heard.started();
  position = data.position ?? position;
  const text = position ? `Queued: ${position} before this one` : "Queued: next";
  say(`${text}.`, 0);
  // Nobody wants to hear of a place that is given up the moment it is taken.
  if (position) sayOnce(text);
}

const heard = {
  sending: () => say("Sending…", 0),
  refused: () => say("Ready."),
  follow: begin,
  queued: (data) => told("queued", data.view ?? data),
  queue: (data) => told("queued", data),
  opening({ loras }) {
    say(loras?.length ? "Opening the model, with LoRAs…" : "Opening the model…", 0);
  },
  started() {
    position = null;
    enable(true);
    say("Beginning…", 0);
    sayOnce("Painting has begun.");
  },
  step({ step, steps, done, steps_total, batch, batches, eta, preview }) {
    if (preview) showPreview(preview);
    const part = batches > 1 ? `, batch ${batch} of ${batches}` : "";
    const left = eta ? ` · ${seconds(eta)} left` : "";
    const share = done / steps_total;
    say(`Step ${step} of ${steps}${part}${left}`, share);
    if (share >= 0.5) sayOnce("half", `Half done${left}.`);
  },
  picture: ({ picture }) => add(picture),
  sheet: ({ picture }) => add(picture),
  ended(job) {
    enable(false);
    showNotes(job.notes);
    for (const picture of job.pictures) add(picture, { show: false });
    if (job.sheet) add(job.sheet);
    else if (pictures.length) display(pictures.at(-1));
    else if (!$("preview").hidden) clear();
    const flagged = job.pictures.filter((one) => one.flagged).length;
    const also = flagged ? ` ${flagged} flagged by the safety checker, and black.` : "";
    const count = job.pictures.length;
    const took = job.started && job.finished ? ` in ${seconds((new Date(job.finished) - new Date(job.started)) / 1000)}` : "";
    if (job.state === "done") {
      say(`${count === 1 ? "Painted" : `${count} pictures painted`}${took}.${also}`);
      announce($("status").textContent);
    } else if (job.state === "cancelled") {
      say(`Cancelled${count ? `; ${count} finished` : ""}.`);
      announce("Cancelled.");
    } else {
      say("Failed.");
      problem($("job-problem"), job.error?.message ?? "The server does not say why.");
    }
  },
};

function clear() {
  $("preview").hidden = true;
  if (shown) display(shown);
  else $("stage-empty").hidden = false;
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
    $("stage-empty").hidden = false;
  }
}

export function startStage() {
  say("Ready.");
  $("stage-open").addEventListener("click", () => shown && view(shown, (picture) => {
    const place = pictures.findIndex((one) => one.id === picture.id);
    return [pictures[place - 1] ?? null, pictures[place + 1] ?? null];
  }));
  $("stage-picture").addEventListener("error", () => notice("This picture is gone from the gallery."));
}
