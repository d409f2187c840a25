// Upscale: pictures enlarged by a network or without one, into the gallery; and the list of upscalers, for Hires fix too.

import { $, offer, on, option, recall, remember, showIn } from "./dom.js";
import { addToGallery } from "./gallery.js";
import { fromGallery } from "./given.js";
import { t } from "./language.js";
import { announce, problem, shownAt } from "./notices.js";
import { showActions } from "./picture_actions.js";
import { pictureList } from "./picture_lists.js";
import { ask, path } from "./server.js";
import { view } from "./viewer.js";

const KEY = "olivelike.upscale";

/** Pictures to enlarge. */
const list = pictureList("upscale", "uploads", t`a picture to enlarge`, { most: 100, changed: show });
let mostSide = Infinity;
let result = null;
/** The enlargement that was begun last: its id, and whether it goes on. */
let run = null;
let isDone = false;

/** Read what there is, into both lists; what was chosen stays, if it is still there. */
export async function readUpscalers(most) {
  mostSide = most;
  const found = await ask("/api/upscalers");
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

function show() {
  const pictures = list.all();
  for (const one of document.querySelectorAll("#upscale-form .by, #upscale-form .to")) {
    one.hidden = one.lastElementChild.disabled = one.classList.contains("by") !== byFactor();
  }
  const sizes = pictures.map(sizeOf);
  const large = sizes.find(([across, down]) => Math.max(across, down) > mostSide || across * down > 1 << 26);
  const [first] = pictures;
  $("upscale-size").textContent = large ? t`${large[0]}×${large[1]} is too large: at most ${mostSide} pixels a side, 67 million in all.` : first ? t`${first.width}×${first.height} becomes ${sizes[0][0]}×${sizes[0][1]}` : "";
  $("upscale-empty").hidden = first;
  $("upscale-start").disabled = !first || large || run?.goesOn;
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
  if (one?.error) problem($("upscale-problem"), new Error(one.error));
  if (one?.pictures.length) showResult(one, began);
  show();
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
