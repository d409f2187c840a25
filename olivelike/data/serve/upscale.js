// Upscale: pictures enlarged by a network or without one, into the gallery; and the list of upscalers, for Hires fix too.

import { $, offer, on, option, recall, remember, showIn } from "./dom.js";
import { addToGallery } from "./gallery.js";
import { fromGallery } from "./given.js";
import { t } from "./language.js";
import { announce, problem, sentence, shownAt } from "./notices.js";
import { showActions } from "./picture_actions.js";
import { pictureList } from "./picture_lists.js";
import { ask, path } from "./server.js";
import { view } from "./viewer.js";

const KEY = "olivelike.upscale";

/** Pictures to enlarge. */
const list = pictureList("upscale", "uploads", t`a picture to enlarge`, { most: 100, changed: show });
let mostSide = Infinity;
/** How many times as large networks that have run make pictures, by name. */
let scales = {};
let result = null;
/** The enlargement that was begun last: its id, and whether it goes on. */
let run = null;
let isDone = false;

/** Read what there is, into both lists; what was chosen stays, if it is still there. */
export async function readUpscalers(most) {
  mostSide = most;
  const found = await ask("/api/upscalers");
  scales = Object.fromEntries(found.map(({ name, scale }) => [name, scale]));
  const networks = found.filter((one) => one.network);
  const others = found.filter((one) => !one.network);
  const options = (upscalers, more) => upscalers.map(({ name }) => option(name, name, more));
  offer($("upscale-by"), options([...networks, ...others]));
  // What enlarges latents, or nothing: as Hires fix is on or off. The others need it.
  offer($("upscaler"), [option(""), ...options(others, { className: "twice" }), ...options(networks)]);
  $("upscale-none").hidden = networks.length > 0;
  show();
}

/** Offer what there is with Hires fix, or without. */
export function offerUpscalers(twice) {
  const select = $("upscaler");
  if (!select.options.length) return;
  select.options[0].textContent = twice ? "Latent" : t`None`;
  for (const one of select.querySelectorAll(".twice")) one.hidden = one.disabled = !twice;
  if (select.selectedOptions[0]?.disabled) select.value = "";
}

/** Whether the server has an upscaler, such as the one of a recipe. */
export const hasUpscaler = (name) => [...$("upscaler").options].some((option) => option.value === name);

/** Have these, beside those that are not enlarged yet. */
async function add(pictures, how) {
  if (isDone) list.fill([]);
  isDone = false;
  await list.add(pictures, how);
}

/** Take files to enlarge. */
export const setUpscale = (...files) => add(files);

/** Go to Upscale with pictures of the gallery, in place of others. */
export async function sendToUpscale(...chosen) {
  location.hash = "#upscale";
  isDone = true;
  await add(chosen, (one) => fromGallery(one, t`this picture`));
  $("upscale-start").focus();
}

/** Whether what is dropped or pasted is meant for this view. */
export const takesPictures = () => !$("view-upscale").hidden;

const byFactor = () => $("upscale-how").value === "factor";
const value = (name) => Number($(`upscale-${name}`).value);

/** The size that a picture gets. */
function sizeOf({ width, height }) {
  const to = [value("width"), value("height")];
  if (!byFactor() && $("upscale-crop").checked) return to;
  const times = byFactor() ? value("factor") : Math.max(to[0] / width, to[1] / height);
  return [width, height].map((side) => Math.round(side * times));
}

/** Say why a picture can't be enlarged so; "" if it can, as far as is known. */
function tooLarge(one) {
  const [across, down] = sizeOf(one);
  if (Math.max(across, down) > mostSide || across * down > 1 << 26) return t`${across}×${down} is too large: at most ${mostSide} pixels a side, 67 million in all.`;
  const by = $("upscale-by").value;
  const times = scales[by];
  return times && one.width * one.height * times ** 2 > 1 << 26 ? t`${by} makes ${one.width * times}×${one.height * times} of it first, more than 67 million pixels.` : "";
}

/** Words on one of several pictures: which it is. */
const of = (one, words) => (list.all().length > 1 ? `${one.name}: ${words}` : words);

function show() {
  const pictures = list.all();
  for (const one of document.querySelectorAll("#upscale-form .by, #upscale-form .to")) {
    one.hidden = one.lastElementChild.disabled = one.classList.contains("by") !== byFactor();
  }
  const large = pictures.filter(tooLarge);
  const [first] = pictures;
  const [across, down] = first ? sizeOf(first) : [];
  $("upscale-size").textContent = large.length ? large.map((one) => of(one, tooLarge(one))).join("\n") : first ? t`${first.width}×${first.height} becomes ${across}×${down}` : "";
  $("upscale-empty").hidden = first;
  $("upscale-start").disabled = large.length === pictures.length || run?.goesOn;
  $("upscale-cancel").hidden = $("upscale-bar").hidden = !run?.goesOn;
  remember(KEY, { pictures: list.state(), run: run?.id });
}

async function start(event) {
  event.preventDefault();
  if ($("upscale-start").disabled || !$("upscale-form").reportValidity()) return;
  problem($("upscale-problem"), "");
  const uploads = list.all().map(({ id }) => id);
  const size = byFactor() ? { factor: value("factor") } : { width: value("width"), height: value("height"), crop: $("upscale-crop").checked };
  try {
    const { id } = await ask("/api/upscales", { method: "POST", json: { uploads, upscaler: $("upscale-by").value, ...size } });
    follow(id, Date.now());
  } catch (error) {
    problem($("upscale-problem"), error);
  }
}

/** Show how far an enlargement is until it ends, and then what came of it. */
async function follow(id, began) {
  run = { id, goesOn: true };
  show();
  let one;
  try {
    for (;;) {
      one = (await ask("/api/upscales")).find((other) => other.id === id);
      if (run.id !== id) return;
      if (one?.state !== "running") break;
      const seconds = `${Math.ceil(one.eta_seconds)} s`;
      $("upscale-status").textContent = [t`Upscaling… ${Math.floor(one.progress * 100)} %`, one.total > 1 && `${one.done + 1}/${one.total}`, seconds !== "0 s" && t`${seconds} left`].filter(Boolean).join(" · ");
      $("upscale-bar").value = one.progress;
      await new Promise((later) => setTimeout(later, 500));
    }
  } catch (error) {
    problem($("upscale-problem"), error);
  }
  run.goesOn = false;
  isDone = one?.state === "done";
  $("upscale-status").textContent = one?.state === "cancelled" ? t`Cancelled.` : "";
  // Now the server knows the network's factor.
  if (!scales[$("upscale-by").value]) await readUpscalers(mostSide).catch(() => {});
  if (one?.error || one?.refused.length) problem($("upscale-problem"), reasons(one));
  if (one?.pictures.length) showResult(one, began);
  show();
}

/** Say why pictures were not enlarged. */
function reasons({ refused, error }) {
  const told = refused.map(({ upload, error: why }) => {
    const one = list.all().find(({ id }) => id === upload);
    return one ? of(one, tooLarge(one) || sentence(why)) : sentence(why);
  });
  return told.length ? told.join("\n") : sentence(error);
}

function showResult({ pictures, total }, began) {
  for (const one of pictures) addToGallery(one);
  result = pictures.at(-1);
  showIn($("upscale-result"), result);
  $("upscale-open").hidden = $("upscaled-actions").hidden = false;
  showActions("upscaled", result, { failed: shownAt("upscale-problem"), before: () => problem($("upscale-problem"), "") });
  const many = total > 1 ? `${pictures.length}/${total} · ` : "";
  if (began) $("upscale-status").textContent = many + t`${result.width}×${result.height}, after ${Math.max(1, Math.round((Date.now() - began) / 1000))} s. It is in the gallery.`;
  announce($("upscale-status").textContent);
}

/** Forget a result that was deleted. */
export function removeFromUpscale(gone) {
  if (result?.id !== gone.id) return;
  result = null;
  $("upscale-open").hidden = $("upscaled-actions").hidden = true;
  $("upscale-status").textContent = "";
}

export function startUpscale() {
  on("upscale-form", "submit", start);
  on("upscale-form", "input", show);
  on("upscale-cancel", "click", () => ask(path("upscales", run.id, "cancel"), { method: "POST" }).catch(shownAt("upscale-problem")));
  on("upscale-open", "click", () => result && view(result));
  const kept = recall(KEY, {});
  list.start(add);
  list.fill(kept.pictures ?? []);
  if (kept.run) follow(kept.run);
  show();
}
